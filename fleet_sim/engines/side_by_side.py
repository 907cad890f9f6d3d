"""Trains several brief visits together: copies of a kit's training graph in one graph, one onnxruntime run per step."""

from __future__ import annotations

import logging
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from time import perf_counter
from typing import TYPE_CHECKING, Any, NamedTuple

import msgspec
import numpy as np
from numpy.typing import NDArray

from edge_agent.training import descent, objectives
from edge_agent.training.descent import Prepared
from edge_agent.training.messages import Train, Trained, Warm
from fleet_sim.engines.descents import Descent, descends
from fleet_sim.engines.engine import Outcome, Shards, outcome_of
from sojourn.errors import SojournError
from sojourn.model.graphs import Graphs, graph_session
from sojourn.model.session import RUNTIME_ERRORS, complete_graph
from sojourn.node.machine import WorkDone
from sojourn.protocol.spec import Kit
from sojourn.randomness import noise
from sojourn.store.memory_blobs import MemoryBlobs

if TYPE_CHECKING:
    import onnxruntime

    from fleet_sim.engines.serial import ReadKit, VisitTrainer

    Gradients = tuple[list[float], NDArray[np.float32]]


# A graph with several copies of a kit's training graph computes the steps of several devices in one onnxruntime run.
# Each copy has the same nodes, shapes and kernels as the single graph and gives the same bits; the first batches are
# compared with the single graph to verify that. This saves the overhead of calling onnxruntime.

COPIES = (8, 4, 2)
"""Allowed numbers of copies in a graph; other numbers are composed of these and of single runs."""
CHECKED = 4
"""Number of runs per number of copies that are compared with single runs, bit for bit."""
MAX_NODES = 4096
"""Maximum number of nodes of all copies; in larger graphs the call overhead is small, and sessions need memory."""


class StepInput(NamedTuple):
    """The inputs of a device's step in addition to its vector."""

    x: NDArray[np.generic]
    y: NDArray[np.int64]
    noise: Sequence[NDArray[np.float32]]


class SideBySideGraphs:
    """Losses and gradients of several devices' batches, each at its own vector, with the same bits as `Graphs`."""

    def __init__(self, kit: Kit, graphs: Graphs) -> None:
        """`graphs` are the kit's, on one thread."""
        self._kit, self._graphs = kit, graphs
        self._targets = kit.learns.target is not None
        self._sessions: dict[int, onnxruntime.InferenceSession | None] = {}
        self._checks: dict[int, int] = {}

    def losses_and_gradients(self, vectors: NDArray[np.float32], batches: Sequence[StepInput]) -> Gradients:
        """Return the mean loss of each batch, and its gradient by its vector, a row per vector.

        Vectors beyond the last batch belong to finished devices; their gradient is zero.
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
        """Return the results of single runs; if those of the copies differ, stop using copies."""
        self._checks[copies] -= 1
        alone = self._run_alone(vectors, batches)
        same = np.array(alone[0]).tobytes() == np.array(found[0]).tobytes() and alone[1].tobytes() == found[1].tobytes()
        if not same:
            self._sessions = dict.fromkeys(COPIES)
        return alone

    def _session(self, copies: int) -> onnxruntime.InferenceSession | None:
        if copies not in self._sessions:
            graph = side_by_side(self._kit, copies) if copies > 1 else None
            self._sessions[copies] = graph_session(graph, 1, "the combined graph") if graph else None
            self._checks[copies] = CHECKED
        return self._sessions[copies]


def side_by_side(kit: Kit, copies: int) -> bytes | None:
    """Return a graph with this many copies: inputs "0/vector", "0/x", ..., joined outputs "losses" and "gradients".

    None if it is too large, or has graphs within its nodes.
    """
    import onnx  # noqa: PLC0415  # slow, and most simulations do not need it
    from onnx import TensorProto, helper, numpy_helper  # noqa: PLC0415

    model = onnx.load_from_string(complete_graph(kit, "train"))
    graph = model.graph
    if copies * len(graph.node) > MAX_NODES or any(_has_graphs(node) for node in graph.node):
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
                if size.dim_param:  # batches of devices may differ in size
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
    """Return the node with its copy's names; all copies share constants."""
    mine = type(node)()
    mine.CopyFrom(node)
    mine.name = f"{copy}/{node.name}"
    for names in (mine.input, mine.output):
        names[:] = [name if name in shared else f"{copy}/{name}" for name in names]
    return mine


# Several brief visits step together, with the device's own graphs and bits. Objectives and optimisers are the device's,
# on vectors of shape (B, P), and give the same numbers as for one device. Visits that are not plain descents
# (`descents`) run sequentially.

log = logging.getLogger(__name__)


@dataclass(frozen=True)
class LocalVisit:
    """A visit to train in this process; `store` holds its inputs and receives its results."""

    shards: Shards
    device: str
    key: str
    work: Train | Warm
    kit: ReadKit
    store: MemoryBlobs


class SideBySideTrainer:
    """Trains visits together where possible, and the others one after another."""

    def __init__(self, trainer: VisitTrainer) -> None:
        self._trainer = trainer
        self._graphs: tuple[Any, SideBySideGraphs] | None = None

    def train(self, visits: Sequence[LocalVisit]) -> tuple[list[Outcome], int]:
        """Return the outcome of each visit, and how many of them were trained together with others."""
        outcomes: dict[int, Outcome] = {}
        groups: dict[Any, list[tuple[int, Descent]]] = {}
        for at, visit in enumerate(visits if len(visits) > 1 else ()):
            descent = self._descent(visit)
            if descent:
                groups.setdefault(descent.kind, []).append((at, descent))
        for group in groups.values():
            if len(group) > 1:
                outcomes |= self._together({at: visits[at].key for at, _ in group}, [descent for _, descent in group])
        together = len(outcomes)
        for at, visit in enumerate(visits):
            if at not in outcomes:
                outcomes[at] = self._trainer.train(
                    visit.shards, visit.device, visit.key, visit.work, {}, visit.kit, visit.store
                )
        return [outcomes[at] for at in range(len(visits))], together

    def _descent(self, visit: LocalVisit) -> Descent | None:
        """Return the prepared visit; None if it must run alone or fails: a failing visit then reports its own error."""
        work = visit.work
        if not isinstance(work, Train) or not descends(work.visit.task) or work.visit.task.threads not in {0, 1}:
            return None
        try:
            prepared = self._trainer.prepare(visit.shards, visit.device, work, visit.kit)
            alone = prepared.kit.model.state or prepared.kit.learns.reference_models
            return None if alone else Descent.of(work, prepared, visit.store)
        except (SojournError, KeyError):
            return None

    def _together(self, keys: Mapping[int, str], group: Sequence[Descent]) -> dict[int, Outcome]:
        """Return the outcomes by the visits' positions in `keys`; none if they have to run alone after all."""
        began = perf_counter()
        try:
            ends = descend_side_by_side(group, self._graphs_of(group[0].prepared))
            done = [descent.result(*end) for descent, end in zip(group, ends, strict=True)]
        except (SojournError, *RUNTIME_ERRORS) as error:
            log.debug("%d visits cannot run together: %s", len(group), error)
            return {}
        seconds = (perf_counter() - began) / len(group)
        return {
            at: outcome_of(WorkDone(key, _timed(each, descent.prepared, seconds)), descent.blobs)
            for (at, key), descent, each in zip(keys.items(), group, done, strict=True)
        }

    def _graphs_of(self, prepared: Prepared) -> SideBySideGraphs:
        if self._graphs is None or self._graphs[0] is not prepared.graphs:
            self._graphs = prepared.graphs, SideBySideGraphs(prepared.kit, prepared.graphs)
        return self._graphs[1]


def descend_side_by_side(
    group: Sequence[Descent], graphs: SideBySideGraphs
) -> list[tuple[NDArray[np.float32], list[float]]]:
    """Return the final vector of each visit, and the loss of each of its steps. Finished visits stay unchanged."""
    training = group[0].work.visit.task.training
    longest_first = sorted(range(len(group)), key=lambda at: -len(group[at].order))
    visits = [group[at] for at in longest_first]
    w = np.stack([visit.start for visit in visits])
    objective = objectives.begin(
        visits[0].objective,
        w.copy(),
        {name: np.stack([visit.received[name] for visit in visits]) for name in visits[0].received},
        {name: np.stack([visit.memory[name] for visit in visits]) for name in visits[0].memory},
    )
    assert objective is not None  # noqa: S101  # FedELMY and custom objectives never get here
    optimiser, ends = descent.begin(training), np.empty_like(w)
    losses: list[list[float]] = [[] for _ in visits]
    with np.errstate(over="ignore", invalid="ignore"):  # the gate rejects diverging models
        for step in range(len(visits[0].order)):
            now = [_step_input(visit, step) for visit in visits if step < len(visit.order)]

            def slope(at: NDArray[np.float32], now: Sequence[StepInput] = now) -> Any:
                return graphs.losses_and_gradients(at, now)

            loss, direction = objective.direction(w, slope)
            optimiser.move(w, direction)
            for at in range(len(now)):
                losses[at].append(loss[at])
                if len(visits[at].order) == step + 1:
                    ends[at] = w[at]
    found = dict(zip(longest_first, zip(ends, losses, strict=True), strict=True))
    return [found[at] for at in range(len(group))]


def _step_input(visit: Descent, step: int) -> StepInput:
    """Return the samples and the noise of a step, as the device draws them."""
    index, kit = visit.order[step], visit.prepared.kit
    x, y = visit.samples.batch(index, kit.input.dtype)
    return StepInput(x, y, noise(visit.seed, step, len(index), kit.noise))


def _timed(done: Trained, prepared: Prepared, seconds: float) -> Trained:
    measured = done.metrics | {"seconds": seconds}
    return msgspec.structs.replace(done, metrics=measured, note=prepared.note, warnings=prepared.warnings)
