"""The position of layers in a model's vector: fully connected weights, BatchNorm layers and the output bias."""

from __future__ import annotations

from itertools import compress, islice
from typing import Literal

import numpy as np
from numpy.typing import NDArray

from sojourn.errors import JobError, ModelError
from sojourn.model.graphs import Graphs, probe_samples, probe_vector
from sojourn.protocol.spec import VARIANCE, Kit, ModelSpec

# The weights of the fully connected layers: FedSeq's psi_clf.
#
# FedSeq uses "the weights of all, the last two or only the last fully connected layer": weights without biases, as in
# the authors' code, in the order of the layers. Servers and devices share this code, so that they get the same numbers.

Layers = Literal["all", "last-two", "last"]
_TAKEN: dict[Layers, int] = {"all": 0, "last-two": -2, "last": -1}
"""The index of the first layer used."""


def classifier_slices(kit: Kit, layers: Layers) -> tuple[slice, ...]:
    """Return the vector slices of these layers' weights; with a single layer, `last-two` selects that one."""
    if not kit.linear:
        raise JobError(
            "the model has no fully connected layer (nn.Linear), so devices cannot be compared by their classifiers"
        )
    places = {tensor.name: place for tensor, place in zip(kit.model.tensors, kit.model.places, strict=True)}
    return tuple(places[name] for name in kit.linear[_TAKEN[layers] :])


def classifier_weights(kit: Kit, vector: NDArray[np.float32], layers: Layers) -> NDArray[np.float32]:
    """Return the concatenated weights of these fully connected layers."""
    return np.concatenate([vector[place] for place in classifier_slices(kit, layers)])


# The BatchNorm layers: scale, shift and running statistics, found by tensor name.
#
# A layer with running statistics has `layer.running_mean` and `layer.running_var` in the model's state; all tensors of
# that layer belong to it. A device can find them in any kit, without torch.


def norm_spec(spec: ModelSpec) -> ModelSpec:
    """Return the spec of the BatchNorm tensors, empty if there are none."""
    flags = _batchnorm_flags(spec)
    return ModelSpec(tuple(compress(spec.tensors, flags)), sum(flags[len(flags) - spec.state :]))


def norms_of(vector: NDArray[np.float32], spec: ModelSpec) -> NDArray[np.float32]:
    """Return the concatenated numbers of a model's BatchNorm layers."""
    return vector[_places(spec)]


def with_norms(vector: NDArray[np.float32], norms: NDArray[np.float32], spec: ModelSpec) -> NDArray[np.float32]:
    """Return a copy of the model with these numbers in its BatchNorm layers."""
    made = vector.copy()
    made[_places(spec)] = norms
    return made


def _places(spec: ModelSpec) -> NDArray[np.bool_]:
    """Return which numbers of the vector belong to BatchNorm layers."""
    return np.repeat(np.array(_batchnorm_flags(spec), bool), spec.sizes)


def _batchnorm_flags(spec: ModelSpec) -> list[bool]:
    """Return whether each tensor belongs to a BatchNorm layer."""
    state = spec.tensors[max(0, len(spec.tensors) - spec.state) :]
    layers = {_layer(tensor.name) for tensor in state if tensor.name.endswith(VARIANCE)}
    return [_layer(tensor.name) in layers for tensor in spec.tensors]


def _layer(name: str) -> str:
    return name.rpartition(".")[0]


TOLERANCE = 1e-3


def output_bias(kit: Kit) -> slice | None:
    """Return the slice of the last trained tensor with one number for each class, or None.

    `check_output_bias` verifies that the graph only adds it to the outputs.
    """
    trained = islice(zip(kit.model.tensors, kit.model.places, strict=True), len(kit.model.trainable_sizes))
    found = [place for tensor, place in trained if tensor.shape == (len(kit.classes),)]
    return found[-1] if found else None


def check_output_bias(kit: Kit) -> None:
    """Raise ModelError unless a shift of the bias shifts each output by the same amount."""
    place = output_bias(kit)
    if place is None:
        raise ModelError(
            "the objective logit-adjustment shifts the bias of the model's outputs, but no trained tensor of this "
            f"model has one number for each of the {len(kit.classes)} classes: end the model with a linear layer that "
            'has a bias, or set objective.name = "sgd"'
        )
    graphs = Graphs(kit)
    x = graphs.features(probe_samples(kit))
    vector = probe_vector(kit.model.sizes, kit.probe.spread, kit.model.state)
    shift = np.linspace(-1.0, 2.0, len(kit.classes)).astype(np.float32)
    moved = vector.copy()
    moved[place] += shift
    apart = np.abs(graphs.outputs(moved, x) - graphs.outputs(vector, x) - shift).max()
    if not apart <= TOLERANCE * max(1.0, float(np.abs(graphs.outputs(vector, x)).max())):
        raise ModelError(
            "the objective logit-adjustment shifts the bias of the model's outputs, but this model does not end with a "
            "layer whose bias is added to its outputs unchanged: let it return plain logits, or set "
            'objective.name = "sgd"'
        )
