"""What a model is to every role: one float32 vector, and a spec that names its tensors."""

from __future__ import annotations

from functools import cached_property
from math import prod
from typing import TYPE_CHECKING, Annotated, Literal

import msgspec

from sojourn.protocol.limits import LABEL
from sojourn.protocol.task import Shape, Size, TaskSpec, classes_as_strata

if TYPE_CHECKING:
    import numpy as np
    from numpy.typing import NDArray

__all__ = [
    "FrozenTensor",
    "InputSpec",
    "Kit",
    "ModelSpec",
    "MoreGraphs",
    "OutlierGraphs",
    "Probe",
    "Shape",
    "Size",
    "TableSpec",
    "TapGraph",
    "TapLayer",
    "TensorSpec",
    "Trunk",
    "TwoStreamGraph",
    "ValueRange",
]
VARIANCE = "running_var"
"""How the name of a state tensor ends that holds variances."""
MOST_COLUMNS = 65_536
"""Columns of a table."""
GAMMA = "fusion.gamma"
"""How the name of the tensor ends that says how much of a frozen trunk is taken (FedFusion)."""


class TensorSpec(msgspec.Struct, frozen=True, array_like=True):
    """One named tensor of a model."""

    name: str
    shape: Shape

    @property
    def size(self) -> int:
        """How many numbers it holds."""
        return prod(self.shape)


class ModelSpec(msgspec.Struct, frozen=True, omit_defaults=True, dict=True):
    """The tensors of a model, in the order in which they stand in its vector: those that are trained, then state.

    What is worked out of them is kept (`dict`): every check of a result asks for it.
    """

    tensors: tuple[TensorSpec, ...]
    state: Annotated[int, msgspec.Meta(ge=0)] = 0
    """How many of the last tensors are state: training replaces them, and no gradient moves them. BatchNorm's running
    statistics are."""

    @cached_property
    def size(self) -> int:
        """The length of the model's vector."""
        return sum(tensor.size for tensor in self.tensors)

    @cached_property
    def sizes(self) -> tuple[int, ...]:
        """The length of each tensor within the vector."""
        return tuple(tensor.size for tensor in self.tensors)

    @cached_property
    def learnt(self) -> int:
        """How many numbers of the vector are trained; what follows them is state."""
        return sum(tensor.size for tensor in self.tensors[: self._trained])

    @cached_property
    def learnt_sizes(self) -> tuple[int, ...]:
        """The length of each tensor that is trained."""
        return self.sizes[: self._trained]

    @cached_property
    def variances(self) -> tuple[slice, ...]:
        """Where in the vector those numbers of the state stand that cannot be negative."""
        found, at = [], self.learnt
        for tensor in self.tensors[self._trained :]:
            if tensor.name.endswith(VARIANCE):
                found.append(slice(at, at + tensor.size))
            at += tensor.size
        return tuple(found)

    @cached_property
    def gamma(self) -> slice | None:
        """Where in the vector the numbers of FedFusion's operator stand, if it has such."""
        at = 0
        for tensor in self.tensors:
            if tensor.name.endswith(GAMMA):
                return slice(at, at + tensor.size)
            at += tensor.size
        return None

    @cached_property
    def _trained(self) -> int:
        return max(0, len(self.tensors) - self.state)

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


ColumnName = Annotated[str, msgspec.Meta(min_length=1, max_length=LABEL)]


class TableSpec(msgspec.Struct, frozen=True, omit_defaults=True):
    """The columns of a job's table by name. Every role matches the columns of its own files with these.

    The values of a sample are numbers, of the type that `InputSpec.dtype` names. What a job predicts has its names in
    the task (`TaskSpec.names`) or is a class.
    """

    columns: Annotated[tuple[ColumnName, ...], msgspec.Meta(max_length=MOST_COLUMNS)] = ()
    """The columns with the values of a sample, in the model's order; empty where the job does not name them."""
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

    The gradient is told by its L2 norm and by its values at a few places, so a probe stays small.
    """

    x: bytes
    y: tuple[int, ...]
    """The class of each sample; of a task of another kind 0, and `targets` holds what they are compared with."""
    noise_seed: int
    loss: float
    norm: float
    places: tuple[int, ...]
    values: tuple[float, ...]
    spread: tuple[float, ...] = ()
    """The largest number of each trained tensor in the vector, where the plain one would multiply rounding errors."""
    state: tuple[float, ...] = ()
    """Of a model with state, some numbers of the new one: at `sojourn.model.graphs.state_places`."""
    targets: bytes = b""
    """The targets of all samples, in the shape and type that the task says, little-endian; of a plain classifier and a
    reconstruction there are none."""


class ValueRange(msgspec.Struct, frozen=True):
    """Between which values samples lie: as the job demands it of devices, or else as its public samples have it."""

    low: float
    high: float
    demanded: bool = False


class FrozenTensor(msgspec.Struct, frozen=True, array_like=True):
    """A tensor of a model that is not trained: its numbers (float32, little-endian), and the graphs that use them.

    In a graph it is called `frozen/` and its name; it is put there as an initializer before the graph is run.
    """

    name: str
    shape: Shape
    data: bytes
    graphs: tuple[str, ...] = ()


class Trunk(msgspec.Struct, frozen=True):
    """The first part of a model, where it is frozen and draws nothing: of a sample it always makes the same features.

    graph: x[B, ...] -> features[B, ...], float32; shape: of the features of one sample.
    """

    graph: bytes
    shape: Shape


class TwoStreamGraph(msgspec.Struct, frozen=True):
    """A second training graph, for objectives that look at what frozen models make of the same samples.

    graph: as the kit's training graph, with further inputs: anchor_0[P], ... and scalar_0[], ...; the loss that it
    gives is the plain one, and the gradient that of the whole objective. Behind a trunk it takes features, too.

    What torch says of it at the kit's probe, with the frozen models of `sojourn.model.graphs.probe_anchors` and every
    number 1: loss, norm and values of the gradient at the probe's places, numbers of the new state.
    """

    graph: bytes
    anchors: int
    scalars: int
    loss: float
    norm: float
    values: tuple[float, ...]
    state: tuple[float, ...] = ()
    fused: bytes = b""
    """Where the model is fused with a frozen trunk (FedFusion): (vector[P], x[B, ...], anchor_0[P]) -> the answers.
    Devices do not run it; whoever tests a round's model does."""


class TapLayer(msgspec.Struct, frozen=True):
    """A layer of weights of which devices look at the inputs.

    weight, bias: its tensors, bias empty where it has none. shape: of what it is given of one sample; kernel: height
    and width of a convolution's kernel, nothing of a fully connected layer.
    """

    weight: str
    bias: str
    shape: Shape
    kernel: tuple[Size, ...] = ()

    @property
    def inputs(self) -> int:
        """How many numbers meet in one of its answers, the 1 of a bias among them."""
        meeting = self.shape[0] * prod(self.kernel) if self.kernel else self.shape[-1]
        return meeting + bool(self.bias)


class TapGraph(msgspec.Struct, frozen=True):
    """What the layers of a model are given, as it predicts.

    graph: (vector[P], x[B, ...]) -> (tap_0[B, ...], ...), one for each of `layers`, of which the last makes the
    answers.
    """

    graph: bytes
    layers: tuple[TapLayer, ...]


class OutlierGraphs(msgspec.Struct, frozen=True, omit_defaults=True):
    """Graphs of a model that has one answer more than there are classes: the last one says that a sample is unknown.

    votes: (vector[P], x[B, ...]) -> votes[B, C + 1], the answers; the kit's own graph predicts the first C.
    slope: (vector[P], x[B, ...]) -> slope[B, ...], of the cross-entropy of x and the unknown, by x.
    train: as the kit's training graph, with further inputs by `terms`: outlier[B, ...], adversarial[B, ...], and
    other[B, ...], unlike[B] and share[B] for `mix`; none of a model with state. The loss that it gives is the plain
    one, and the gradient that of the whole objective.
    zero, scale: which value of a channel the model sees as 0, and how much it sees as 1.
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

    taps: TapGraph | msgspec.UnsetType = msgspec.UNSET
    outliers: OutlierGraphs | msgspec.UnsetType = msgspec.UNSET
    soft: bytes = b""
    """As the training graph, with one more input: soft[B, C], how much each class counts for a sample besides its
    label. The loss that it gives is the plain one."""


class Kit(msgspec.Struct, frozen=True):
    """All that a device needs to train and to predict: graphs, spec and a probe. Travels as one blob.

    train: (vector[P], x[B, ...], y[B], noise_0[B, ...], ...) -> (loss[], gradient[L]), and state[P - L] where L < P
    predict: (vector[P], x[B, ...]) -> logits[B, classes]

    Behind a trunk x is the trunk's features; without one it is the samples.

    With a task y is what that says, and there is none where a sample is its own target:
    train: (vector[P], x[B, ...], y[B, ...], noise_0[B, ...], ..., beside_0[P], ...) -> (loss[], gradient[L], state)
    predict: (vector[P], x[B, ...]) -> outputs[B, ...], in the targets' own units
    score: (vector[P], x[B, ...], y[B, ...], beside_0[P], ...) -> losses[B]
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
    frozen: tuple[FrozenTensor, ...] = ()
    """What is not trained, where a job says what is: in no visit's vector, and here once for all graphs."""
    trunk: Trunk | msgspec.UnsetType = msgspec.UNSET
    """What samples go through before both graphs, if the model was cut; the probe's x are samples all the same."""
    task: TaskSpec | msgspec.UnsetType = msgspec.UNSET
    """What is learnt, where it is not simply one class of several."""
    score: bytes | msgspec.UnsetType = msgspec.UNSET
    """The loss of each sample, as the model predicts it: of a kit with a task."""
    two_stream: TwoStreamGraph | msgspec.UnsetType = msgspec.UNSET
    """Of a job whose objective compares the model with frozen ones."""
    more: MoreGraphs | msgspec.UnsetType = msgspec.UNSET
    """Graphs that only some objectives need; the kit of a plain job has none."""
    table: TableSpec | msgspec.UnsetType = msgspec.UNSET
    """The columns of the job's table. A kit for images, text or windows of tokens has none."""

    @property
    def outliers(self) -> OutlierGraphs | None:
        """The graphs of a model that may say that a sample is unknown, if it is one."""
        return (self.more and self.more.outliers) or None

    @property
    def learns(self) -> TaskSpec:
        """What is learnt."""
        return self.task or classes_as_strata(len(self.classes))

    @property
    def taken(self) -> InputSpec:
        """What the training and the prediction graph take of one sample."""
        return InputSpec(self.trunk.shape) if self.trunk else self.input
