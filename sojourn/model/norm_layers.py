"""What the BatchNorm layers of a model hold: scale, shift and running statistics, found by the names in its spec.

A layer with running statistics has them in the model's state as `layer.running_mean` and `layer.running_var`; all
tensors of that layer are meant. So a device finds them in any kit, and needs neither torch nor a list.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

import numpy as np

from sojourn.protocol.spec import VARIANCE, ModelSpec

if TYPE_CHECKING:
    from numpy.typing import NDArray

    from sojourn.protocol.spec import TensorSpec


def norm_spec(spec: ModelSpec) -> ModelSpec:
    """The tensors of the BatchNorm layers alone, as a spec of their own; it is empty where there are none."""
    tensors = [tensor for tensor, ours in _told_apart(spec) if ours]
    learnt = len(spec.tensors) - spec.state
    state = [tensor for at, (tensor, ours) in enumerate(_told_apart(spec)) if ours and at >= learnt]
    return ModelSpec(tuple(tensors), len(state))


def norms_of(vector: NDArray[np.float32], spec: ModelSpec) -> NDArray[np.float32]:
    """The numbers of the BatchNorm layers of a model, one after another."""
    return vector[_places(spec)]


def with_norms(vector: NDArray[np.float32], norms: NDArray[np.float32], spec: ModelSpec) -> NDArray[np.float32]:
    """A model with these numbers in its BatchNorm layers."""
    made = vector.copy()
    made[_places(spec)] = norms
    return made


def _places(spec: ModelSpec) -> NDArray[np.bool_]:
    """Which numbers of the vector are of BatchNorm layers."""
    ours = [each for _, each in _told_apart(spec)]
    return np.repeat(np.array(ours, bool), spec.sizes)


def _told_apart(spec: ModelSpec) -> list[tuple[TensorSpec, bool]]:
    """Each tensor, and whether it is of a BatchNorm layer."""
    state = spec.tensors[max(0, len(spec.tensors) - spec.state) :]
    layers = {_layer(tensor.name) for tensor in state if tensor.name.endswith(VARIANCE)}
    return [(tensor, _layer(tensor.name) in layers) for tensor in spec.tensors]


def _layer(name: str) -> str:
    return name.rpartition(".")[0]
