"""The training worker's side of a visit: data and graphs made ready, the visit done, failures told by their word."""

from __future__ import annotations

import logging
from time import perf_counter
from typing import TYPE_CHECKING, Protocol

import msgspec
import numpy as np

from edge_agent.training import objectives
from edge_agent.training.class_shares import received_by
from edge_agent.training.descent import Prepared, descended, metrics
from edge_agent.training.echo import train_echo
from edge_agent.training.estimates import estimate, trains
from edge_agent.training.features import content_of, with_features
from edge_agent.training.generated import train_generated
from edge_agent.training.handover import memory_of, model_of, save_model, sent_model
from edge_agent.training.model_pool import train_pool
from edge_agent.training.outliers import train_with_outliers
from edge_agent.training.own_model import train_own_model
from edge_agent.training.own_norms import train_with_own_norms
from edge_agent.training.reasons import RuntimeDiffers, Unsupported, reason_of
from edge_agent.training.second_stream import begin_two_stream
from edge_agent.training.work import Train, Trained, Warm, Warmed, name_of_work
from sojourn.data.doubts import doubts_of
from sojourn.data.samples import Samples, fit
from sojourn.data.scale_check import range_of, scale_doubt
from sojourn.data.source import read_content
from sojourn.errors import DataError, SojournError
from sojourn.model import vectors
from sojourn.model.graphs import Graphs, check_probe
from sojourn.node.machine import Did, DidNot, Doing
from sojourn.parts import Common, Echo, Elmy, Generated, LocalNorms, Outliers, TwoStreamPart, name_of
from sojourn.parts.two_stream import OWN
from sojourn.protocol.envelope import unpack_blob
from sojourn.protocol.limits import TEXT
from sojourn.protocol.spec import Kit
from sojourn.protocol.wire import Task

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping, Sequence

    from numpy.typing import NDArray

    from edge_agent.training.descent import EpochResult, Progress
    from edge_agent.training.features import FeatureFiles
    from sojourn.data.samples import Doubt
    from sojourn.data.source import DataSettings
    from sojourn.parts import Part
    from sojourn.protocol.messages import Visit
    from sojourn.protocol.spec import ModelSpec
    from sojourn.protocol.wire import Ref
    from sojourn.store.blobs import BlobStore

    Vector = NDArray[np.float32]
    Named = Mapping[str, Vector]

_NOTED = 3
"""Odd things about its data that go to the operator with each visit."""
log = logging.getLogger(__name__)


class Trainer:
    """Trains visits one at a time, and keeps what the last one needed for the next."""

    def __init__(
        self, blobs: BlobStore, data: DataSettings, threads: int = 1, features: FeatureFiles | None = None
    ) -> None:
        """Read and write `blobs`; use `threads` threads unless a task says how many; keep features in `features`."""
        self._blobs = blobs
        self._data = data
        self._threads = threads
        self._features = features
        self._kept: tuple[tuple[bytes, int], Prepared] | None = None
        self._mark = ""
        """The state of the data when it was read."""

    def perform(self, work: Warm | Train, progress: Progress = lambda _step, _steps: None) -> Warmed | Trained:
        """Do what the agent asks."""
        if isinstance(work, Warm):
            return Warmed(len(self._prepare(work.kit, work.task).samples))
        kit, task = work.visit.kit, work.visit.task
        prepared = self._prepare(kit, task)
        if isinstance(prepared.samples, Samples) and prepared.graphs.cuts and trains(task):
            prepared = with_features(prepared, self._features, kit.digest, self._mark, progress)
            self._kept = (kit.digest, task.threads or self._threads), prepared
        return train_visit(work, self._blobs, prepared, progress)

    def _prepare(self, ref: Ref, task: Task) -> Prepared:
        key = ref.digest, task.threads or self._threads
        if self._kept is None or self._kept[0] != key:
            self._kept = None  # not two data sets in memory at a time
            self._mark = self._features.folder.mark() if self._features else ""
            self._kept = key, prepare(unpack_blob(self._blobs.read(ref.digest), Kit), self._data, key[1])
        return self._kept[1]


class InlineTraining:
    """Workers that train at once, in the caller: for simulation and for tests."""

    def __init__(self, trainer: Trainer) -> None:
        self._trainer = trainer

    def start(self, key: str, work: Warm | Train, report: Callable[[Did | Doing | DidNot], None]) -> None:
        """Train and report."""
        report(attempt(key, work, self._trainer, lambda step, steps: report(Doing(key, step, steps))))

    def stop(self, key: str) -> None:
        """There is nothing to stop: work is done when `start` returns."""

    def close(self) -> None:
        """There is nothing to end."""


class Performs(Protocol):
    """Whoever can do what an agent asks."""

    def perform(self, work: Warm | Train, progress: Progress) -> Warmed | Trained:
        """Do the work and return what came of it."""


def attempt(key: str, work: Warm | Train, trainer: Performs, progress: Progress) -> Did | DidNot:
    """Do the work; a failure is a report with its word, never a crash."""
    try:
        return Did(key, trainer.perform(work, progress))
    except Exception as error:
        if not isinstance(error, SojournError):
            log.exception("%s failed", name_of_work(key, work))
        return DidNot(key, reason_of(error), str(error) or type(error).__name__)


def prepare(kit: Kit, data: DataSettings, threads: int) -> Prepared:
    """Load the data, build the graphs and compare them with the kit's probe."""
    found = read_content(data, "train", kit.input, kit.classes, kit.task or None, kit.table or None)
    samples = fit(found, kit)
    doubts = [*_check_scale(samples.x, kit), *doubts_of(found, kit.task or None)]
    graphs = Graphs(kit, threads)
    if objection := check_probe(kit, graphs):
        raise RuntimeDiffers(objection)
    left_out = int(np.count_nonzero(~samples.kept))
    notes = [f"{doubt.what}; to do: {doubt.remedy}" for doubt in doubts[:_NOTED]]
    notes += [f"{left_out:,} of {len(samples.kept):,} samples are left out"] if left_out else []
    warnings = [f"{doubt.what} ({doubt.detail}); to do: {doubt.remedy}" for doubt in doubts]
    warnings += [f"left out: {text}" for text in samples.skipped]
    content = content_of(samples) if graphs.cuts else b""
    return Prepared(kit, graphs, samples, "; ".join(notes)[:TEXT], tuple(warnings), content)


def _check_scale(x: NDArray[np.generic], kit: Kit) -> list[Doubt]:
    """Whether values are where the job expects them; DataError where it demands that and they are not."""
    found = range_of(x) if kit.values and kit.input.dtype != "int64" else None
    doubt = scale_doubt(found, kit.values) if found and kit.values else None
    if doubt is None or kit.values is None:
        return []
    if kit.values.demanded:
        log.warning("%s (%s); to do: %s", *doubt)
        raise DataError(f"{doubt.what}; to do on the device: {doubt.remedy}")
    return [doubt]


def train_visit(work: Train, blobs: BlobStore, prepared: Prepared, progress: Progress) -> Trained:
    """Do what the visit asks; the results are in `blobs` when this returns."""
    began = perf_counter()
    match work.visit.task:
        case Task(kind="estimate"):
            done = estimate(work.visit, blobs, prepared, progress)
        case Task(objective=Elmy() as settings):
            done = _train_pool(work, settings, blobs, prepared, progress)
        case Task(objective=LocalNorms() as norms):
            done = train_with_own_norms(work, norms, blobs, prepared, progress)
        case Task(objective=Common() as common):
            done = train_own_model(work, common, blobs, prepared, progress)
        case Task(objective=Echo() as echo):
            done = train_echo(work, echo, blobs, prepared, progress)
        case Task(objective=Outliers() as open_set):
            done = train_with_outliers(work, open_set, blobs, prepared, progress)
        case Task(objective=Generated() as generated):
            done = train_generated(work, generated, blobs, prepared, progress)
        case _:
            done = _train_one_model(work, blobs, prepared, progress)
    measured = done.metrics | {"seconds": perf_counter() - began}
    return msgspec.structs.replace(done, metrics=measured, note=prepared.note, warnings=prepared.warnings)


def _train_one_model(work: Train, blobs: BlobStore, prepared: Prepared, progress: Progress) -> Trained:
    """Train along the task's objective, in one descent."""
    visit, spec = work.visit, prepared.kit.model
    start, (memory, remembered) = model_of(visit, blobs, spec), memory_of(work, blobs, spec)
    objective = begin(visit.task.objective, spec, start, received_by(visit, blobs, prepared), memory)
    if objective is None:
        raise Unsupported(f"the objective {name_of(visit.task.objective)!r} is not known here")
    end, passed = descended(start, objective, prepared, visit.task.training, visit.seed, progress)
    return visit_result(visit, blobs, prepared, (start, end), objective, passed, remembered)


def begin(
    settings: Part, spec: ModelSpec, start: Vector, received: Named, memory: Named
) -> objectives.Objective | None:
    """The objective of a visit: one with a second stream is given whole models, others what is trained of them."""
    if isinstance(settings, TwoStreamPart):
        return begin_two_stream(settings, start, received, memory)
    return objectives.begin(settings, *learnt_parts(spec, start, received, memory))


def learnt_parts(spec: ModelSpec, start: Vector, received: Named, memory: Named) -> tuple[Vector, Named, Named]:
    """Of each vector the numbers that are trained: an objective sees no state. One that is no model stays whole."""
    learnt = spec.learnt
    came, kept = (
        {name: vector[:learnt] if len(vector) == spec.size else vector for name, vector in named.items()}
        for named in (received, memory)
    )
    return start[:learnt], came, kept


def visit_result(  # all that a visit ends with
    visit: Visit,
    blobs: BlobStore,
    prepared: Prepared,
    start_and_end: tuple[NDArray[np.float32], NDArray[np.float32]],
    objective: objectives.Objective,
    passed: Sequence[EpochResult],
    remembered: int,
) -> Trained:
    """The result of a visit that trained from start to end: what is sent and what is kept."""
    (start, end), spec = start_and_end, prepared.kit.model
    measured = metrics(passed)
    if visit.task.objective.keeps:
        measured["remembered"] = float(remembered)
    model = save_model(blobs, start, end, visit.task, spec)
    # What is remembered is of the model that the others see: as it comes out of its encoding.
    seen = sent_model(blobs, start, model, spec)[: spec.learnt]
    left = objective.end(seen, int(measured["steps"]), visit.task.training.lr)
    sent, kept = (
        {name: vectors.save(blobs, vectors.padded(vector, spec), "float32", spec) for name, vector in named.items()}
        for named in (left.vectors, left.memory)
    )
    if visit.task.objective.keeps_model:
        kept |= {OWN: vectors.save(blobs, sent_model(blobs, start, model, spec), "float32", spec)}
    return Trained(sent | {"model": model}, len(prepared.samples), measured, None, kept)


def _train_pool(work: Train, settings: Elmy, blobs: BlobStore, prepared: Prepared, progress: Progress) -> Trained:
    """Train FedELMY's pool of models, which takes several descents."""
    visit, spec = work.visit, prepared.kit.model
    start = model_of(visit, blobs, spec)
    end, passed = train_pool(start, settings, prepared, visit, progress)
    sent = {"model": save_model(blobs, start, end, visit.task, spec)}
    return Trained(sent, len(prepared.samples), metrics(passed), None, {})
