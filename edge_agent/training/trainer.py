"""Training a visit in the worker: prepares data and graphs, trains, and reports failures with a reason."""

from __future__ import annotations

import logging
from collections.abc import Callable, Mapping, Sequence
from time import perf_counter
from typing import Any, Protocol

import msgspec
import numpy as np
from numpy.typing import NDArray

from edge_agent.training import objectives
from edge_agent.training.descent import EpochResult, Prepared, Progress, descended, metrics
from edge_agent.training.estimates import estimate, trains
from edge_agent.training.features import FeatureFiles, content_of, with_features
from edge_agent.training.fedbn import train_with_own_norms
from edge_agent.training.fedelmy import train_model_pool
from edge_agent.training.fedgen import train_generated
from edge_agent.training.fedov import train_with_outliers
from edge_agent.training.ma_echo import train_echo
from edge_agent.training.messages import Train, Trained, Warm, Warmed, name_of_work
from edge_agent.training.metafed import train_own_model
from edge_agent.training.objectives import SHIFT, begin_two_stream
from edge_agent.training.visit_vectors import (
    RuntimeDiffers,
    Unsupported,
    companions_of,
    memory_of,
    model_of,
    reason_of,
    save_model,
    sent_model,
)
from sojourn.data.checks import data_warnings, scale_warning, value_range
from sojourn.data.samples import DataWarning, Samples, fit
from sojourn.data.source import DataSettings, read_content
from sojourn.errors import DataError, SojournError
from sojourn.model import vectors
from sojourn.model.graphs import Graphs, check_probe
from sojourn.model.layers import output_bias
from sojourn.node.machine import WorkDone, WorkEvent, WorkFailed, WorkProgress
from sojourn.parts import (
    Common,
    Echo,
    Elmy,
    Generated,
    LocalNorms,
    LogitAdjustment,
    Objective,
    Outliers,
    Part,
    TwoStreamPart,
    name_of,
)
from sojourn.parts.two_stream import OWN
from sojourn.protocol.envelope import unpack_blob
from sojourn.protocol.limits import TEXT
from sojourn.protocol.messages import Visit
from sojourn.protocol.spec import Kit, ModelSpec
from sojourn.protocol.wire import Ref, Task
from sojourn.store.blobs import BlobStore

Vector = NDArray[np.float32]
Named = Mapping[str, Vector]


def received_by(visit: Visit, blobs: BlobStore, prepared: Prepared) -> dict[str, NDArray[np.float32]]:
    """Return an objective's inputs in addition to the model: the visit's vectors and those the device computes."""
    return companions_of(visit, blobs, prepared.kit) | shift_of(visit.task.objective, prepared)


def shift_of(objective: Objective, prepared: Prepared) -> dict[str, NDArray[np.float32]]:
    """Return the vector of a logit adjustment; empty for other objectives and for tasks without classes."""
    kit = prepared.kit
    if not isinstance(objective, LogitAdjustment) or kit.task:
        return {}
    place = output_bias(kit)
    if place is None:
        raise Unsupported("the objective 'logit-adjustment' needs a model with an output bias")
    counts = np.bincount(prepared.samples.y.astype(np.int64), minlength=len(kit.classes)) + objective.smoothing
    shift = np.zeros(kit.model.size, np.float32)
    shift[place] = objective.tau * np.log(counts / counts.sum())
    return {SHIFT: shift}


_MAX_NOTES = 3
"""Number of data problems that are reported to the operator with each visit."""
log = logging.getLogger(__name__)


class Trainer:
    """Trains visits one at a time, and keeps the prepared data and graphs for the next visit."""

    def __init__(
        self, blobs: BlobStore, data: DataSettings, threads: int = 1, features: FeatureFiles | None = None
    ) -> None:
        """Read and write `blobs`; use `threads` threads if a task sets no number; store features in `features`."""
        self._blobs = blobs
        self._data = data
        self._threads = threads
        self._features = features
        self._kept: tuple[tuple[bytes, int], Prepared] | None = None
        self._mark = ""
        """The state of the data when it was read."""

    def perform(self, work: Warm | Train, progress: Progress = lambda _step, _steps: None) -> Warmed | Trained:
        """Perform a work item."""
        if isinstance(work, Warm):
            return Warmed(len(self._prepare(work.kit, work.task).samples))
        kit, task = work.visit.kit, work.visit.task
        prepared = self._prepare(kit, task)
        if isinstance(prepared.samples, Samples) and prepared.graphs.has_trunk and trains(task):
            prepared = with_features(prepared, self._features, kit.digest, self._mark, progress)
            self._kept = (kit.digest, task.threads or self._threads), prepared
        return train_visit(work, self._blobs, prepared, progress)

    def _prepare(self, ref: Ref, task: Task) -> Prepared:
        key = ref.digest, task.threads or self._threads
        if self._kept is None or self._kept[0] != key:
            self._kept = None  # never hold two data sets in memory
            self._mark = self._features.folder.mark() if self._features else ""
            self._kept = key, prepare(unpack_blob(self._blobs.read(ref.digest), Kit), self._data, key[1])
        return self._kept[1]


class InlineTraining:
    """Workers that train synchronously in the caller: for the simulation and for tests."""

    def __init__(self, trainer: Trainer) -> None:
        self._trainer = trainer

    def start(self, key: str, work: Warm | Train, report: Callable[[WorkEvent], None]) -> None:
        """Train and report."""
        report(attempt(key, work, self._trainer, lambda step, steps: report(WorkProgress(key, step, steps))))

    def stop(self, key: str) -> None:
        """Do nothing: work is finished when `start` returns."""

    def close(self) -> None:
        """Do nothing."""


class Performs(Protocol):
    """An object that performs work items, such as `Trainer`."""

    def perform(self, work: Warm | Train, progress: Progress) -> Warmed | Trained:
        """Perform the work and return its outcome."""


def attempt(key: str, work: Warm | Train, trainer: Performs, progress: Progress) -> WorkDone | WorkFailed:
    """Perform the work; return any failure with its reason instead of raising."""
    try:
        return WorkDone(key, trainer.perform(work, progress))
    except Exception as error:
        if not isinstance(error, SojournError):
            log.exception("%s failed", name_of_work(key, work))
        return WorkFailed(key, reason_of(error), str(error) or type(error).__name__)


def prepare(kit: Kit, data: DataSettings, threads: int) -> Prepared:
    """Load the data, build the graphs, and check them against the kit's probe."""
    found = read_content(data, "train", kit.input, kit.classes, kit.task or None, kit.table or None)
    samples = fit(found, kit)
    warnings = [*_check_scale(samples.x, kit), *data_warnings(found, kit.task or None)]
    graphs = Graphs(kit, threads)
    if objection := check_probe(kit, graphs):
        raise RuntimeDiffers(objection)
    skipped = int(np.count_nonzero(~samples.kept))
    notes = [f"{warning.what}; to do: {warning.remedy}" for warning in warnings[:_MAX_NOTES]]
    notes += [f"{skipped:,} of {len(samples.kept):,} samples are skipped"] if skipped else []
    messages = [f"{warning.what} ({warning.detail}); to do: {warning.remedy}" for warning in warnings]
    messages += [f"skipped: {text}" for text in samples.skipped]
    content = content_of(samples) if graphs.has_trunk else b""
    return Prepared(kit, graphs, samples, "; ".join(notes)[:TEXT], tuple(messages), content)


def _check_scale(x: NDArray[np.generic], kit: Kit) -> list[DataWarning]:
    """Return a warning if the values are outside of the job's range; raise DataError if the job requires the range."""
    found = value_range(x) if kit.values and kit.input.dtype != "int64" else None
    warning = scale_warning(found, kit.values) if found and kit.values else None
    if warning is None or kit.values is None:
        return []
    if kit.values.demanded:
        log.warning("%s (%s); to do: %s", *warning)
        raise DataError(f"{warning.what}; to do on the device: {warning.remedy}")
    return [warning]


def train_visit(work: Train, blobs: BlobStore, prepared: Prepared, progress: Progress) -> Trained:
    """Train a visit; its vectors are in `blobs` when this returns."""
    began, task = perf_counter(), work.visit.task
    if task.kind == "estimate":
        done = estimate(work.visit, blobs, prepared, progress)
    else:
        train = _WHOLE_VISITS.get(type(task.objective), _train_one_model)
        done = train(work, task.objective, blobs, prepared, progress)
    measured = done.metrics | {"seconds": perf_counter() - began}
    return msgspec.structs.replace(done, metrics=measured, note=prepared.note, warnings=prepared.warnings)


_WHOLE_VISITS: dict[type[Part], Callable[[Train, Any, BlobStore, Prepared, Progress], Trained]] = {
    Elmy: train_model_pool,
    LocalNorms: train_with_own_norms,
    Common: train_own_model,
    Echo: train_echo,
    Outliers: train_with_outliers,
    Generated: train_generated,
}
"""The objectives that run a whole visit, by the type of their settings; any other changes the steps of one descent."""


def _train_one_model(
    work: Train, settings: Objective, blobs: BlobStore, prepared: Prepared, progress: Progress
) -> Trained:
    """Train one model with an objective."""
    visit, spec = work.visit, prepared.kit.model
    start, (memory, remembered) = model_of(visit, blobs, spec), memory_of(work, blobs, spec)
    objective = begin(settings, spec, start, received_by(visit, blobs, prepared), memory)
    if objective is None:
        raise Unsupported(f"the objective {name_of(settings)!r} is unknown")
    end, passed = descended(start, objective, prepared, visit.task.training, visit.seed, progress)
    return visit_result(visit, blobs, prepared, (start, end), objective, passed, remembered)


def begin(
    settings: Part, spec: ModelSpec, start: Vector, received: Named, memory: Named
) -> objectives.Objective | None:
    """Create the objective of a visit: with a second stream from complete models, otherwise from trained parameters."""
    if isinstance(settings, TwoStreamPart):
        return begin_two_stream(settings, start, received, memory)
    return objectives.begin(settings, *trainable_parts(spec, start, received, memory))


def trainable_parts(spec: ModelSpec, start: Vector, received: Named, memory: Named) -> tuple[Vector, Named, Named]:
    """Cut the state off each model vector, which objectives do not see; other vectors stay unchanged."""
    size = spec.trainable_size
    came, kept = (
        {name: vector[:size] if len(vector) == spec.size else vector for name, vector in named.items()}
        for named in (received, memory)
    )
    return start[:size], came, kept


def visit_result(  # all outputs of a visit
    visit: Visit,
    blobs: BlobStore,
    prepared: Prepared,
    start_and_end: tuple[NDArray[np.float32], NDArray[np.float32]],
    objective: objectives.Objective,
    passed: Sequence[EpochResult],
    remembered: int,
) -> Trained:
    """Return the result of a visit that trained from start to end: the vectors to send and to store."""
    (start, end), spec = start_and_end, prepared.kit.model
    measured = metrics(passed)
    if visit.task.objective.keeps:
        measured["remembered"] = float(remembered)
    model = save_model(blobs, start, end, visit.task, spec)
    # The memory refers to the model as others receive it, after its encoding.
    seen = sent_model(blobs, start, model, spec)[: spec.trainable_size]
    left = objective.end(seen, int(measured["steps"]), visit.task.training.lr)
    sent, kept = (
        {name: vectors.save(blobs, vectors.padded(vector, spec), "float32", spec) for name, vector in named.items()}
        for named in (left.vectors, left.memory)
    )
    if visit.task.objective.keeps_model:
        kept |= {OWN: vectors.save(blobs, sent_model(blobs, start, model, spec), "float32", spec)}
    return Trained(sent | {"model": model}, len(prepared.samples), measured, None, kept)
