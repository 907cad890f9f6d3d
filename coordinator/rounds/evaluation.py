"""What the coordinator can say of a model without a device: accuracy on the test set, signatures on the exemplars."""

from __future__ import annotations

import threading
from math import nan
from typing import TYPE_CHECKING

import msgspec

from coordinator.records import RoundMeasured
from coordinator.rounds.merging import BEFORE
from coordinator.rounds.voting import scores_of_vote, scores_together
from hierarchy.edge.exemplar_view import ExemplarView
from sojourn.errors import Fault
from sojourn.model import vectors
from sojourn.model.exemplars import ViewedExemplars, signature_of
from sojourn.model.fused import FusedGraphs, can_be_fused
from sojourn.model.graphs import Graphs
from sojourn.model.scoring import ScoredSamples, Scores, scores_of
from sojourn.model.vectors import CORES
from sojourn.protocol.envelope import unpack_blob
from sojourn.protocol.limits import LOSS, within
from sojourn.protocol.spec import Kit
from sojourn.protocol.wire import Ref

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable, Iterator

    import numpy as np
    from numpy.typing import NDArray

    from coordinator.state import JobState
    from hierarchy.edge.exemplar_view import ExemplarViews
    from sojourn.model.exemplars import Exemplars
    from sojourn.store.blobs import BlobStore

    Vector = NDArray[np.float32]


class MeasureRound(msgspec.Struct, frozen=True):
    """A round is closed, and the next one may be under way: say how good the model of this one is.

    It has no copy of the job's state, which is large where there are many devices.
    """

    job: str
    round: int
    kit: Ref | None
    test: Ref | None
    model: Ref | None
    trunk: Ref | None = None
    """The model whose trunk it is fused with, where it is."""

    @classmethod
    def newest(cls, state: JobState) -> MeasureRound:
        """Of the newest round of a job."""
        number = len(state.history)
        return cls(state.name, number, state.kit, state.test, state.models.get(number), state.vectors.get(BEFORE))


def measure_round(work: MeasureRound, evaluator: Evaluator) -> RoundMeasured:
    """Test the model that a round came to."""
    if work.kit is None or work.test is None or work.model is None:
        raise Fault(f"round {work.round} of {work.job} has no kit, test set or model")
    found = evaluator.score(work.kit, work.test, work.model, work.trunk)
    return RoundMeasured(work.job, work.round, found.accuracy, within(found.loss, LOSS), figures=told(found.figures))


def told(figures: dict[str, float]) -> dict[str, float] | msgspec.UnsetType:
    """Figures as records and messages hold them."""
    return {name: within(figure, LOSS) for name, figure in figures.items()} or msgspec.UNSET


class _Opened:
    """A kit with its graphs, and the samples that were read for it."""

    def __init__(self, digest: bytes, kit: Kit, graphs: Graphs) -> None:
        self.digest, self.kit, self.graphs = digest, kit, graphs
        self.exemplars: dict[bytes, Exemplars] = {}
        self.shown: dict[bytes, ScoredSamples] = {}
        """The exemplars as signatures are taken of them."""
        self.tests: dict[bytes, ScoredSamples] = {}
        self.view: ExemplarView | None = None
        self.fused: FusedGraphs | None = None


class Evaluator:
    """Graphs and samples of the job that runs, read once; `make` makes the graphs of a kit.

    `views` are those of the edge servers where these are in the same process: a model is looked at once. Several
    threads may ask at the same time, and of several jobs: the model of one is tested while another goes on.
    """

    def __init__(
        self, blobs: BlobStore, make: Callable[[Kit, int], Graphs] = Graphs, views: ExemplarViews | None = None
    ) -> None:
        self._blobs = blobs
        self._make, self._views = make, views
        self._opened: _Opened | None = None
        self._lock = threading.Lock()
        """Held while something is read, and not while it is used."""

    def kit(self, state: JobState) -> Kit:
        """The job's kit."""
        return self._of(state).kit

    def evaluate(self, state: JobState, vector: NDArray[np.float32], trunk: Vector | None = None) -> Scores:
        """How good a model is on the test set; NaN without one. `trunk`: of a model that it is fused with, if any."""
        opened = self._of(state)
        return self._scored(opened, state.test, vector, trunk) if state.test else Scores(nan, nan, {})

    def score(self, kit: Ref, test: Ref, model: Ref, trunk: Ref | None = None) -> Scores:
        """How good a model is that is kept."""
        opened = self._open(kit)
        frozen = vectors.load(self._blobs, trunk, opened.kit.model) if trunk else None
        return self._scored(opened, test, vectors.load(self._blobs, model, opened.kit.model), frozen)

    def together(self, state: JobState, models: Iterable[Ref]) -> Scores:
        """How good the mean of the models' answers is on the test set; NaN without one."""
        opened = self._of(state)
        if not state.test:
            return Scores(nan, nan, {})
        return scores_together(opened.graphs, self._models(opened, models), self._tested(opened, state.test))

    def vote(self, state: JobState, models: Iterable[Ref], most: int) -> Scores:
        """How good a vote of models is on the test set, of each sample by the `most` surest; NaN without one."""
        opened = self._of(state)
        if not state.test:
            return Scores(nan, nan, {})
        return scores_of_vote(opened.graphs, self._models(opened, models), self._tested(opened, state.test), most)

    def _models(self, opened: _Opened, models: Iterable[Ref]) -> Iterator[NDArray[np.float32]]:
        return (vectors.load(self._blobs, ref, opened.kit.model) for ref in models)

    def signature(self, state: JobState, vector: NDArray[np.float32]) -> tuple[float, ...]:
        """A device's signature, from the model that it trained."""
        exemplars, opened = self.exemplars(state), self._of(state)
        if exemplars is None or state.exemplars is None:
            raise Fault(f"{state.name} has no exemplars")
        with self._lock:
            if state.exemplars.digest not in opened.shown:
                opened.shown[state.exemplars.digest] = ScoredSamples(exemplars, opened.graphs)
        return signature_of(opened.graphs, vector, opened.shown[state.exemplars.digest], opened.kit.learns.strata.count)

    def graphs(self, state: JobState) -> Graphs:
        """The job's graphs."""
        return self._of(state).graphs

    def exemplars(self, state: JobState) -> Exemplars | None:
        """The job's exemplars, if it has any."""
        opened = self._of(state)
        if state.exemplars is None:
            return None
        with self._lock:
            if state.exemplars.digest not in opened.exemplars:
                opened.exemplars[state.exemplars.digest] = self._read(state.exemplars)
        return opened.exemplars[state.exemplars.digest]

    def view(self, state: JobState) -> ExemplarView | None:
        """The job's exemplars as the gate looks at them, if it has any."""
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
            if trunk is not None and opened.fused is None and can_be_fused(opened.kit):
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
