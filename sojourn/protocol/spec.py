"""The spec of a model, shared by all roles: one float32 vector with named tensors, and the graphs that use it."""

from __future__ import annotations

from functools import cached_property
from itertools import accumulate
from math import prod
from typing import TYPE_CHECKING, Annotated, Literal

import msgspec

from sojourn.protocol.limits import LABEL
from sojourn.protocol.task import Shape, Size, TaskSpec, classes_as_strata

if TYPE_CHECKING:
    import numpy as np
    from numpy.typing import NDArray

VARIANCE = "running_var"
"""Suffix of the names of state tensors that hold variances."""
MOST_COLUMNS = 65_536
"""Maximum columns of a table."""
GAMMA = "fusion.gamma"
"""Suffix of the name of the tensor that weighs a frozen trunk (FedFusion)."""


class TensorSpec(msgspec.Struct, frozen=True, array_like=True):
    """One named tensor of a model."""

    name: str
    shape: Shape

    @property
    def size(self) -> int:
        """The number of elements."""
        return prod(self.shape)


class ModelSpec(msgspec.Struct, frozen=True, omit_defaults=True, dict=True):
    """The tensors of a model in the order of its vector: trained ones first, then state.

    Derived values are cached (`dict`), since every check of a result needs them.
    """

    tensors: tuple[TensorSpec, ...]
    state: Annotated[int, msgspec.Meta(ge=0)] = 0
    """The number of last tensors that are state, such as BatchNorm's running statistics: training replaces them instead
    of updating them with a gradient."""

    @cached_property
    def size(self) -> int:
        """The length of the model's vector."""
        return sum(self.sizes)

    @cached_property
    def sizes(self) -> tuple[int, ...]:
        """The length of each tensor within the vector."""
        return tuple(tensor.size for tensor in self.tensors)

    @cached_property
    def places(self) -> tuple[slice, ...]:
        """The position of each tensor in the vector."""
        return tuple(slice(end - size, end) for size, end in zip(self.sizes, accumulate(self.sizes), strict=True))

    @cached_property
    def trainable_size(self) -> int:
        """The number of trained parameters in the vector; the rest is state."""
        return sum(self.trainable_sizes)

    @cached_property
    def trainable_sizes(self) -> tuple[int, ...]:
        """The length of each tensor that is trained."""
        return self.sizes[: self._trained]

    @cached_property
    def variances(self) -> tuple[slice, ...]:
        """The positions of state elements in the vector that cannot be negative."""
        state = zip(self.tensors[self._trained :], self.places[self._trained :], strict=True)
        return tuple(place for tensor, place in state if tensor.name.endswith(VARIANCE))

    @cached_property
    def gamma(self) -> slice | None:
        """The position of FedFusion's operator in the vector, if it has one."""
        placed = zip(self.tensors, self.places, strict=True)
        return next((place for tensor, place in placed if tensor.name.endswith(GAMMA)), None)

    @cached_property
    def _trained(self) -> int:
        return max(0, len(self.tensors) - self.state)

    def split(self, vector: NDArray[np.float32]) -> dict[str, NDArray[np.float32]]:
        """Return views of the vector's tensors by name."""
        placed = zip(self.tensors, self.places, strict=True)
        return {tensor.name: vector[place].reshape(tensor.shape) for tensor, place in placed}


class InputSpec(msgspec.Struct, frozen=True):
    """One sample as the graphs take it, before the preprocessing inside the graph."""

    shape: Shape
    dtype: Literal["float32", "int64"] = "float32"


ColumnName = Annotated[str, msgspec.Meta(min_length=1, max_length=LABEL)]


class TableSpec(msgspec.Struct, frozen=True, omit_defaults=True):
    """The columns of a job's table by name. Every role matches the columns of its files with these.

    The values of a sample are numbers, of the type that `InputSpec.dtype` names. Predicted quantities have their names
    in the task (`TaskSpec.names`); classes have none.
    """

    columns: Annotated[tuple[ColumnName, ...], msgspec.Meta(max_length=MOST_COLUMNS)] = ()
    """The columns with the values of a sample, in the model's order; empty if the job does not name them."""
    label: ColumnName | None = None
    """The column with the label."""
    time: ColumnName | None = None
    """The column with the time of a row of a series."""
    series: ColumnName | None = None
    """The column that distinguishes several series."""
    by_position: bool = False
    """Whether the job accepts a table without column names, with its columns in the job's order."""

    def __post_init__(self) -> None:
        if len(set(self.columns)) < len(self.columns):
            raise ValueError("Expected columns with different names")


class Probe(msgspec.Struct, frozen=True, omit_defaults=True):
    """A batch with the loss and gradient that torch computed for it at `sojourn.model.graphs.probe_vector`.

    Of the gradient it contains only the L2 norm and the values at a few places, so that it stays small.
    """

    x: bytes
    y: tuple[int, ...]
    """The class of each sample; 0 for tasks of another kind, whose targets are in `targets`."""
    noise_seed: int
    loss: float
    norm: float
    places: tuple[int, ...]
    values: tuple[float, ...]
    spread: tuple[float, ...] = ()
    """The largest element of each trained tensor in the vector, if the plain one would amplify rounding errors."""
    state: tuple[float, ...] = ()
    """For a model with state, some elements of the new state: at `sojourn.model.graphs.state_indices`."""
    targets: bytes = b""
    """The targets of all samples, in the task's shape and type, little-endian; empty for a plain classifier and a
    reconstruction."""


class ValueRange(msgspec.Struct, frozen=True):
    """The range of values in samples: as the job requires it of devices, otherwise as in its public samples."""

    low: float
    high: float
    demanded: bool = False


class FrozenTensor(msgspec.Struct, frozen=True, array_like=True):
    """A tensor of a model that is not trained: its elements (float32, little-endian), and the graphs that use them.

    In a graph its name has the prefix `frozen/`; it is inserted as an initializer before the graph is run.
    """

    name: str
    shape: Shape
    data: bytes
    graphs: tuple[str, ...] = ()


class Trunk(msgspec.Struct, frozen=True):
    """The first part of a model, if it is frozen and deterministic: a sample always has the same features.

    graph: x[B, ...] -> features[B, ...], float32; shape: of the features of one sample.
    """

    graph: bytes
    shape: Shape


class TwoStreamGraph(msgspec.Struct, frozen=True):
    """A second training graph, for objectives that use the outputs of frozen models for the same samples.

    graph: as the kit's training graph, with further inputs: anchor_0[P], ... and scalar_0[], ...; it returns the plain
    loss, and the gradient of the whole objective. Behind a trunk its input is features, too.

    loss, norm, values, state: torch's results at the kit's probe, with the frozen models of
    `sojourn.model.graphs.probe_anchors` and every scalar 1.
    """

    graph: bytes
    anchors: int
    scalars: int
    loss: float
    norm: float
    values: tuple[float, ...]
    state: tuple[float, ...] = ()
    fused: bytes = b""
    """For a model that is fused with a frozen trunk (FedFusion): (vector[P], x[B, ...], anchor_0[P]) -> outputs.
    It is used only to test a round's model, not on devices."""


class TapLayer(msgspec.Struct, frozen=True):
    """A layer with weights whose inputs devices use.

    weight, bias: its tensors, bias empty if it has none. shape: of its input for one sample; kernel: height and width
    of a convolution's kernel, empty for a fully connected layer.
    """

    weight: str
    bias: str
    shape: Shape
    kernel: tuple[Size, ...] = ()

    @property
    def inputs(self) -> int:
        """The number of inputs of one of its outputs, including the 1 of a bias."""
        meeting = self.shape[0] * prod(self.kernel) if self.kernel else self.shape[-1]
        return meeting + bool(self.bias)


class TapGraph(msgspec.Struct, frozen=True):
    """The inputs of the layers of a model during prediction.

    graph: (vector[P], x[B, ...]) -> (tap_0[B, ...], ...), one for each of `layers`, of which the last makes the
    outputs.
    """

    graph: bytes
    layers: tuple[TapLayer, ...]


class OutlierGraphs(msgspec.Struct, frozen=True, omit_defaults=True):
    """Graphs of a model with one more output than there are classes: the last one means that a sample is unknown.

    votes: (vector[P], x[B, ...]) -> votes[B, C + 1], the outputs; the kit's own graph predicts the first C.
    slope: (vector[P], x[B, ...]) -> slope[B, ...], the gradient by x of the cross-entropy of x and the unknown.
    train: as the kit's training graph, with further inputs by `terms`: outlier[B, ...], adversarial[B, ...], and
    other[B, ...], unlike[B] and share[B] for `mix`; empty for a model with state. It returns the plain loss, and the
    gradient of the whole objective.
    zero, scale: the value of a channel that the model sees as 0, and the difference that it sees as 1.
    """

    votes: bytes
    slope: bytes
    train: bytes = b""
    terms: tuple[str, ...] = ()
    zero: tuple[float, ...] = ()
    scale: tuple[float, ...] = ()

    @property
    def further(self) -> tuple[str, ...]:
        """The inputs of `train` that other training graphs do not have."""
        more = {"outlier": ("outlier",), "adversarial": ("adversarial",), "mix": ("other", "unlike", "share")}
        return tuple(name for term in self.terms for name in more.get(term, ()))


class MoreGraphs(msgspec.Struct, frozen=True, omit_defaults=True):
    """Graphs that only some objectives need."""

    taps: TapGraph | None = None
    outliers: OutlierGraphs | None = None
    soft: bytes = b""
    """As the training graph, with one more input: soft[B, C], the weight of each class for a sample in addition to its
    label. It returns the plain loss."""


class Kit(msgspec.Struct, frozen=True):
    """All that a device needs to train and to predict: graphs, spec and a probe. It is sent as one blob.

    train: (vector[P], x[B, ...], y[B], noise_0[B, ...], ...) -> (loss[], gradient[L]), and state[P - L] if L < P
    predict: (vector[P], x[B, ...]) -> logits[B, classes]

    Behind a trunk x is the trunk's features; without one it is the samples.

    With a task, y has the task's form, and is absent if a sample is its own target:
    train: (vector[P], x[B, ...], y[B, ...], noise_0[B, ...], ..., reference_0[P], ...) -> (loss[], gradient[L], state)
    predict: (vector[P], x[B, ...]) -> outputs[B, ...], in the targets' own units
    score: (vector[P], x[B, ...], y[B, ...], reference_0[P], ...) -> losses[B]
    """

    model: ModelSpec
    input: InputSpec
    classes: tuple[str, ...]
    noise: tuple[Shape, ...]
    train: bytes
    predict: bytes
    probe: Probe
    linear: tuple[str, ...] = ()
    """The weight tensors of the fully connected layers, first layer first (`sojourn.model.layers`)."""
    values: ValueRange | None = None
    """The expected range of a device's values, if the job has one."""
    frozen: tuple[FrozenTensor, ...] = ()
    """Frozen tensors, if the job selects the trained ones: they are not part of a visit's vector, and here only
    once."""
    trunk: Trunk | None = None
    """The first part of both graphs, if the model was split; the probe's x are samples in any case."""
    task: TaskSpec | None = None
    """The task, unless it is a plain classification."""
    score: bytes | None = None
    """Returns the loss of each prediction; only for a kit with a task."""
    two_stream: TwoStreamGraph | None = None
    """Set if the job's objective compares the model with frozen ones."""
    more: MoreGraphs | None = None
    """Graphs that only some objectives need; the kit of a plain job has none."""
    table: TableSpec | None = None
    """The columns of the job's table. A kit for images, text or windows of tokens has none."""

    @property
    def outliers(self) -> OutlierGraphs | None:
        """The graphs of a model that can mark a sample as unknown, if it is one."""
        return (self.more and self.more.outliers) or None

    @property
    def learns(self) -> TaskSpec:
        """The task."""
        return self.task or classes_as_strata(len(self.classes))

    @property
    def taken(self) -> InputSpec:
        """The input of the training and the prediction graph for one sample."""
        return InputSpec(self.trunk.shape) if self.trunk else self.input
