"""What a model is to every role: one float32 vector, and a spec that names its tensors."""

from __future__ import annotations

from math import prod
from typing import TYPE_CHECKING, Annotated, Literal

import msgspec

if TYPE_CHECKING:
    import numpy as np
    from numpy.typing import NDArray

Size = Annotated[int, msgspec.Meta(ge=1, le=1 << 31)]
Shape = Annotated[tuple[Size, ...], msgspec.Meta(max_length=8)]


class TensorSpec(msgspec.Struct, frozen=True, array_like=True):
    """One named tensor of a model."""

    name: str
    shape: Shape

    @property
    def size(self) -> int:
        """How many numbers it holds."""
        return prod(self.shape)


class ModelSpec(msgspec.Struct, frozen=True):
    """The tensors of a model, in the order in which they stand in its vector."""

    tensors: tuple[TensorSpec, ...]

    @property
    def size(self) -> int:
        """The length of the model's vector."""
        return sum(tensor.size for tensor in self.tensors)

    @property
    def sizes(self) -> tuple[int, ...]:
        """The length of each tensor within the vector."""
        return tuple(tensor.size for tensor in self.tensors)

    def split(self, vector: NDArray[np.float32]) -> dict[str, NDArray[np.float32]]:
        """Views of the vector's tensors by name."""
        views, at = {}, 0
        for tensor in self.tensors:
            views[tensor.name] = vector[at : at + tensor.size].reshape(tensor.shape)
            at += tensor.size
        return views


class InputSpec(msgspec.Struct, frozen=True):
    """One sample as the graphs take it, before the preprocessing that lives in the graph."""

    shape: Shape
    dtype: Literal["float32", "int64"] = "float32"


class Probe(msgspec.Struct, frozen=True, omit_defaults=True):
    """A batch with the loss and gradient that torch computed for it at `sojourn.model.graphs.probe_vector`.

    The gradient is told by its L2 norm and by its values at a few places, so a probe stays small.
    """

    x: bytes
    y: tuple[int, ...]
    noise_seed: int
    loss: float
    norm: float
    places: tuple[int, ...]
    values: tuple[float, ...]
    spread: tuple[float, ...] = ()
    """The largest number of each tensor in the vector, where the plain vector would multiply rounding errors."""


class ValueRange(msgspec.Struct, frozen=True):
    """Between which values samples lie: as the job demands it of devices, or else as its public samples have it."""

    low: float
    high: float
    demanded: bool = False


class Kit(msgspec.Struct, frozen=True):
    """All that a device needs to train and to predict: graphs, spec and a probe. Travels as one blob.

    train: (vector[P], x[B, ...], y[B], noise_0[B, ...], ...) -> (loss[], gradient[P])
    predict: (vector[P], x[B, ...]) -> logits[B, classes]
    """

    model: ModelSpec
    input: InputSpec
    classes: tuple[str, ...]
    noise: tuple[Shape, ...]
    train: bytes
    predict: bytes
    probe: Probe
    linear: tuple[str, ...] = ()
    """The weight tensors of the fully connected layers, first layer first (`sojourn.model.classifier`)."""
    values: ValueRange | None = None
    """Where a device's values are expected; older kits do not say."""
