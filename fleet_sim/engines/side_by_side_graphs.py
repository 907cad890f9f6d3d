"""A kit's training graph several times in one graph: the steps of several devices as one run of onnxruntime.

Each copy has the nodes, shapes and kernels of the graph alone, so it gives the same bits; that is not taken on trust,
but compared with the graph alone on the first batches. What is saved is the way into onnxruntime and out of it.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, NamedTuple

import numpy as np

from sojourn.model.frozen import whole as whole_graph
from sojourn.model.graphs import graph_session

if TYPE_CHECKING:
    from collections.abc import Sequence

    import onnxruntime
    from numpy.typing import NDArray

    from sojourn.model.graphs import Graphs
    from sojourn.protocol.spec import Kit

    Gradients = tuple[list[float], NDArray[np.float32]]

COPIES = (8, 4, 2)
"""How many copies a graph may hold; runs of other numbers are put together of these and of single ones."""
CHECKED = 4
"""So many runs of each number of copies are compared with single ones, bit for bit."""
MOST_NODES = 4096
"""Nodes of all copies together: of a larger graph the way in and out costs little, and sessions take memory."""


class StepInput(NamedTuple):
    """What a device's step needs besides its vector."""

    x: NDArray[np.generic]
    y: NDArray[np.int64]
    noise: Sequence[NDArray[np.float32]]


class SideBySideGraphs:
    """Losses and gradients of several devices' batches, each at a vector of its own; the bits are those of `Graphs`."""

    def __init__(self, kit: Kit, graphs: Graphs) -> None:
        """`graphs` are the kit's, on one thread."""
        self._kit, self._graphs = kit, graphs
        self._targets = kit.learns.target is not None
        self._sessions: dict[int, onnxruntime.InferenceSession | None] = {}
        self._checks: dict[int, int] = {}

    def losses_and_gradients(self, vectors: NDArray[np.float32], batches: Sequence[StepInput]) -> Gradients:
        """The mean loss of each batch, and its gradient by its vector: a row each, of as many as there are vectors.

        Vectors beyond the last batch belong to devices that are done; their gradient is zero.
        """
        losses: list[float] = []
        gradients = None
        while len(losses) < len(batches):
            first, rest = len(losses), len(batches) - len(losses)
            copies = next((copies for copies in COPIES if copies <= rest and self._session(copies)), 1)
            part = slice(first, first + copies)
            some, found = self._run(copies, vectors[part], batches[part])
            losses += some
            if copies == len(vectors):
                return losses, found
            if gradients is None:
                gradients = np.empty_like(vectors)
                gradients[len(batches) :] = 0.0
            gradients[part] = found
        assert gradients is not None  # noqa: S101  # there is always a batch
        return losses, gradients

    def _run(self, copies: int, vectors: NDArray[np.float32], batches: Sequence[StepInput]) -> Gradients:
        session = self._session(copies)
        if session is None:
            return self._run_alone(vectors, batches)
        feeds: dict[str, Any] = {}
        for at, batch in enumerate(batches):
            feeds[f"{at}/vector"], feeds[f"{at}/x"] = vectors[at], batch.x
            if self._targets:
                feeds[f"{at}/y"] = batch.y
            for number, values in enumerate(batch.noise):
                feeds[f"{at}/noise_{number}"] = values
        losses, gradients = session.run(["losses", "gradients"], feeds)
        found = losses.tolist(), gradients.reshape(vectors.shape)
        return self._checked(copies, found, vectors, batches) if self._checks[copies] else found

    def _run_alone(self, vectors: NDArray[np.float32], batches: Sequence[StepInput]) -> Gradients:
        losses, gradients = [], np.empty_like(vectors)
        for at, (vector, batch) in enumerate(zip(vectors, batches, strict=True)):
            loss, gradients[at] = self._graphs.loss_and_gradient(vector, batch.x, batch.y, batch.noise)
            losses.append(loss)
        return losses, gradients

    def _checked(
        self, copies: int, found: Gradients, vectors: NDArray[np.float32], batches: Sequence[StepInput]
    ) -> Gradients:
        """The bits of single runs; where those of the copies are others, the copies are used no more."""
        self._checks[copies] -= 1
        alone = self._run_alone(vectors, batches)
        same = np.array(alone[0]).tobytes() == np.array(found[0]).tobytes() and alone[1].tobytes() == found[1].tobytes()
        if not same:
            self._sessions = dict.fromkeys(COPIES)
        return alone

    def _session(self, copies: int) -> onnxruntime.InferenceSession | None:
        if copies not in self._sessions:
            graph = side_by_side(self._kit, copies) if copies > 1 else None
            self._sessions[copies] = graph_session(graph, 1, "the graphs side by side") if graph else None
            self._checks[copies] = CHECKED
        return self._sessions[copies]


def side_by_side(kit: Kit, copies: int) -> bytes | None:
    """The training graph so many times: inputs "0/vector", "0/x", ..., outputs "losses" and "gradients", joined.

    None where it is too large, or has graphs within its nodes.
    """
    import onnx  # noqa: PLC0415  # it takes a third of a second, and most simulations do not need it
    from onnx import TensorProto, helper, numpy_helper  # noqa: PLC0415

    model = onnx.load_from_string(whole_graph(kit, "train"))
    graph = model.graph
    if copies * len(graph.node) > MOST_NODES or any(_has_graphs(node) for node in graph.node):
        return None
    shared = {constant.name for constant in graph.initializer} | {""}
    joined = _fresh("joined", shared)
    nodes, inputs = [], []
    for copy in range(copies):
        for value in graph.input:
            mine = onnx.ValueInfoProto()
            mine.CopyFrom(value)
            mine.name = f"{copy}/{value.name}"
            for size in mine.type.tensor_type.shape.dim:
                if size.dim_param:  # devices' batches need not be of one size
                    size.dim_param = f"{copy}/{size.dim_param}"
            inputs.append(mine)
        nodes += [_renamed(node, copy, shared) for node in graph.node]
        nodes.append(helper.make_node("Reshape", [f"{copy}/loss", joined], [f"{copy}/{joined}"]))
    every = range(copies)
    nodes.append(helper.make_node("Concat", [f"{copy}/{joined}" for copy in every], ["losses"], axis=0))
    nodes.append(helper.make_node("Concat", [f"{copy}/gradient" for copy in every], ["gradients"], axis=0))
    outputs = [
        helper.make_tensor_value_info("losses", TensorProto.FLOAT, [copies]),
        helper.make_tensor_value_info("gradients", TensorProto.FLOAT, [copies * kit.model.size]),
    ]
    one = numpy_helper.from_array(np.array([1], np.int64), joined)
    made = helper.make_graph(nodes, "side_by_side", inputs, outputs, [*graph.initializer, one])
    whole = helper.make_model(made, opset_imports=model.opset_import, ir_version=model.ir_version)
    return bytes(whole.SerializeToString())


def _fresh(name: str, taken: set[str]) -> str:
    return name if name not in taken else _fresh(f"{name}_", taken)


def _has_graphs(node: Any) -> bool:
    return any(attribute.HasField("g") or attribute.graphs for attribute in node.attribute)


def _renamed(node: Any, copy: int, shared: set[str]) -> Any:
    """The node with the names of its copy; constants are shared by all."""
    mine = type(node)()
    mine.CopyFrom(node)
    mine.name = f"{copy}/{node.name}"
    for names in (mine.input, mine.output):
        names[:] = [name if name in shared else f"{copy}/{name}" for name in names]
    return mine
