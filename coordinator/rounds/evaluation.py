"""Evaluate models: the job's model on the test set, several models together, and devices' own models."""

from __future__ import annotations

import threading
from collections.abc import Callable, Iterable, Iterator
from math import nan
from statistics import fmean, pstdev

import msgspec
import numpy as np
from numpy.typing import NDArray

from coordinator.job_state import JobState
from coordinator.records import RoundMeasured
from coordinator.rounds.merging import BEFORE
from sojourn.errors import Fault
from sojourn.model import vectors
from sojourn.model.exemplar_view import ExemplarView, ExemplarViews
from sojourn.model.exemplars import Exemplars, ViewedExemplars, signature_of
from sojourn.model.graphs import Graphs
from sojourn.model.metrics import cross_entropies
from sojourn.model.predictions import FusedGraphs, supports_fusion
from sojourn.model.scoring import BATCH, ScoredSamples, Scores, probabilities, scores_of, votes_of
from sojourn.model.vectors import CORES
from sojourn.protocol.envelope import unpack_blob
from sojourn.protocol.limits import LOSS, within
from sojourn.protocol.metric_names import MAIN, MERGED, OWN, OWN_DEVICES, SHARES, SPREAD, VALIDATION
from sojourn.protocol.spec import Kit
from sojourn.protocol.task import Kind
from sojourn.protocol.wire import Ref, VisitReport
from sojourn.store.blobs import BlobStore

Models = Iterable[NDArray[np.float32]]
Vector = NDArray[np.float32]

MIN_PROBABILITY = 1e-30
"""Smaller probabilities are raised to this value before taking their logarithm."""


def scores_together(graphs: Graphs, models: Models, samples: ScoredSamples) -> Scores:
    """Score the mean of the models' outputs, as DENSE defines its teachers; holds one model in memory at a time."""
    total, count = np.zeros(0), 0
    for vector in models:
        rows = (slice(at, at + BATCH) for at in range(0, len(samples.y), BATCH))
        outputs = np.concatenate([graphs.outputs(vector, samples.inputs(each)) for each in rows]).astype(np.float64)
        total, count = outputs if not count else total + outputs, count + 1
    return _scores(total / max(1, count), total, samples)


def scores_of_vote(graphs: Graphs, models: Models, samples: ScoredSamples, most: int) -> Scores:
    """Score a vote: the sum of the models' probabilities."""
    x = samples.inputs(slice(0, len(samples.y)))
    votes = votes_of([probabilities(graphs, vector, x) for vector in models], most, unknown=graphs.has_unknown)
    return _scores(np.log(np.maximum(votes, MIN_PROBABILITY)), votes, samples)


def _scores(logits: NDArray[np.float64], votes: NDArray[np.float64], samples: ScoredSamples) -> Scores:
    losses = cross_entropies(logits.astype(np.float32), samples.y)
    return Scores(float((votes.argmax(1) == samples.y).mean()), float(losses.mean()), {})


# Metrics that devices report for their personal models, averaged over devices, in addition to those of the job's model.
#
# Each device tests its model on private samples, so the coordinator cannot verify the metrics: values out of range are
# dropped, each device counts once, and the number of reporting devices is given with the mean.


def own_results(reports: Iterable[VisitReport], kind: Kind) -> dict[str, float]:
    """Return the mean of each reported metric over devices, the spread of the main one, and its number of devices."""
    newest = {report.device: report.metrics for report in reports}
    main, found = OWN + MAIN[kind], dict[str, float]()
    for name in dict.fromkeys((main, f"{OWN}loss", OWN + VALIDATION, MERGED + MAIN[kind])):
        reported = [metrics[name] for metrics in newest.values() if name in metrics and _sound(name, metrics[name])]
        if not reported:
            continue
        found[name] = fmean(reported)
        if name == main:
            found |= {main + SPREAD: pstdev(reported), OWN_DEVICES: float(len(reported))}
    return found


def _sound(name: str, metric: float) -> bool:
    """Return whether a metric is in its range, such as 0 to 1 for a share; that it is finite was checked on receipt."""
    plain = name.removeprefix(OWN).removeprefix(MERGED)
    return 0.0 <= metric <= 1.0 if plain in SHARES or plain == VALIDATION else True


class MeasureRound(msgspec.Struct, frozen=True):
    """Test the model of a closed round, possibly while the next one is in progress.

    It contains no copy of the job's state, which is large in a fleet with many devices.
    """

    job: str
    round: int
    kit: Ref | None
    test: Ref | None
    model: Ref | None
    trunk: Ref | None = None
    """The model whose trunk it is fused with, if any."""

    @classmethod
    def newest(cls, state: JobState) -> MeasureRound:
        """Return the work of testing a job's newest round."""
        number = len(state.history)
        return cls(state.name, number, state.kit, state.test, state.models.get(number), state.vectors.get(BEFORE))


def measure_round(work: MeasureRound, evaluator: Evaluator) -> RoundMeasured:
    """Test the model of a round."""
    if work.kit is None or work.test is None or work.model is None:
        raise Fault(f"round {work.round} of {work.job} has no kit, test set or model")
    found = evaluator.score(work.kit, work.test, work.model, work.trunk)
    return RoundMeasured(
        work.job, work.round, found.accuracy, within(found.loss, LOSS), metrics=storable_metrics(found.metrics)
    )


def storable_metrics(metrics: dict[str, float]) -> dict[str, float]:
    """Convert metrics to the form of records and messages."""
    return {name: within(metric, LOSS) for name, metric in metrics.items()}


class _Opened:
    """A kit with its graphs, and the samples that were read for it."""

    def __init__(self, digest: bytes, kit: Kit, graphs: Graphs) -> None:
        self.digest, self.kit, self.graphs = digest, kit, graphs
        self.exemplars: dict[bytes, Exemplars] = {}
        self.shown: dict[bytes, ScoredSamples] = {}
        """The exemplars in the form used for signatures."""
        self.tests: dict[bytes, ScoredSamples] = {}
        self.view: ExemplarView | None = None
        self.fused: FusedGraphs | None = None


class Evaluator:
    """Evaluates with the graphs and samples of the current job, which it reads once; `make` makes the graphs of a kit.

    `views` are shared with edge servers in the same process, so that a model is examined once. Several threads may call
    it at the same time, and for several jobs: the model of one is tested while another job continues.
    """

    def __init__(
        self, blobs: BlobStore, make: Callable[[Kit, int], Graphs] = Graphs, views: ExemplarViews | None = None
    ) -> None:
        self._blobs = blobs
        self._make, self._views = make, views
        self._opened: _Opened | None = None
        self._lock = threading.Lock()
        """Held while something is read, but not while it is used."""

    def kit(self, state: JobState) -> Kit:
        """Return the job's kit."""
        return self._of(state).kit

    def evaluate(self, state: JobState, vector: NDArray[np.float32], trunk: Vector | None = None) -> Scores:
        """Score a model on the test set; NaN without one. `trunk`: the model that it is fused with, if any."""
        opened = self._of(state)
        return self._scored(opened, state.test, vector, trunk) if state.test else Scores(nan, nan, {})

    def score(self, kit: Ref, test: Ref, model: Ref, trunk: Ref | None = None) -> Scores:
        """Score a stored model."""
        opened = self._open(kit)
        frozen = vectors.load(self._blobs, trunk, opened.kit.model) if trunk else None
        return self._scored(opened, test, vectors.load(self._blobs, model, opened.kit.model), frozen)

    def together(self, state: JobState, models: Iterable[Ref]) -> Scores:
        """Score the mean of the models' outputs on the test set; NaN without one."""
        opened = self._of(state)
        if not state.test:
            return Scores(nan, nan, {})
        return scores_together(opened.graphs, self._models(opened, models), self._tested(opened, state.test))

    def vote(self, state: JobState, models: Iterable[Ref], most: int) -> Scores:
        """Score a vote of models on the test set, by the `most` surest models for each sample; NaN without one."""
        opened = self._of(state)
        if not state.test:
            return Scores(nan, nan, {})
        return scores_of_vote(opened.graphs, self._models(opened, models), self._tested(opened, state.test), most)

    def _models(self, opened: _Opened, models: Iterable[Ref]) -> Iterator[NDArray[np.float32]]:
        return (vectors.load(self._blobs, ref, opened.kit.model) for ref in models)

    def signature(self, state: JobState, vector: NDArray[np.float32]) -> tuple[float, ...]:
        """Return a device's signature, from the model that it trained."""
        exemplars, opened = self.exemplars(state), self._of(state)
        if exemplars is None or state.exemplars is None:
            raise Fault(f"{state.name} has no exemplars")
        with self._lock:
            if state.exemplars.digest not in opened.shown:
                opened.shown[state.exemplars.digest] = ScoredSamples(exemplars, opened.graphs)
        return signature_of(opened.graphs, vector, opened.shown[state.exemplars.digest], opened.kit.learns.strata.count)

    def graphs(self, state: JobState) -> Graphs:
        """Return the job's graphs."""
        return self._of(state).graphs

    def exemplars(self, state: JobState) -> Exemplars | None:
        """Return the job's exemplars, if it has any."""
        opened = self._of(state)
        if state.exemplars is None:
            return None
        with self._lock:
            if state.exemplars.digest not in opened.exemplars:
                opened.exemplars[state.exemplars.digest] = self._read(state.exemplars)
        return opened.exemplars[state.exemplars.digest]

    def view(self, state: JobState) -> ExemplarView | None:
        """Return the gate's view of the job's exemplars, if it has any."""
        if self._views and state.kit and state.exemplars:
            return self._views.of(state.kit, state.exemplars, self._blobs)
        opened, exemplars = self._of(state), self.exemplars(state)
        if opened.view is None and exemplars is not None:
            opened.view = ExemplarView(opened.kit, opened.graphs, exemplars)
        return opened.view

    def _of(self, state: JobState) -> _Opened:
        if state.kit is None:
            raise Fault(f"{state.name} has not been compiled")
        return self._open(state.kit)

    def _open(self, kit: Ref) -> _Opened:
        with self._lock:
            if self._opened is None or self._opened.digest != kit.digest:
                content = unpack_blob(self._blobs.read(kit.digest), Kit)
                self._opened = _Opened(kit.digest, content, self._make(content, 1))
            return self._opened

    def _scored(self, opened: _Opened, test: Ref, vector: Vector, trunk: Vector | None) -> Scores:
        samples = self._tested(opened, test)
        with self._lock:
            if trunk is not None and opened.fused is None and supports_fusion(opened.kit):
                opened.fused = FusedGraphs(opened.kit)
        graphs = opened.graphs if trunk is None or opened.fused is None else opened.fused.with_trunk(trunk)
        return scores_of(graphs, vector, samples, cores=CORES)

    def _tested(self, opened: _Opened, test: Ref) -> ScoredSamples:
        with self._lock:
            if test.digest not in opened.tests:
                opened.tests[test.digest] = ScoredSamples(self._read(test), opened.graphs, cores=CORES)
        return opened.tests[test.digest]

    def _read(self, ref: Ref) -> Exemplars:
        return unpack_blob(self._blobs.read(ref.digest), ViewedExemplars)
