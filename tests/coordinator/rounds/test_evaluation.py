"""Models are tested at once or afterwards, by several threads and for several jobs, with the same metrics."""

from __future__ import annotations

from concurrent.futures import ThreadPoolExecutor
from math import isnan
from typing import Any

import msgspec
import numpy as np
import pytest

from coordinator.job_state import JobState
from coordinator.records import RoundClosed, RoundMeasured
from coordinator.rounds.closing import close_round
from coordinator.rounds.evaluation import Evaluator, MeasureRound, measure_round
from coordinator.rounds.results import CloseRound
from sojourn.errors import Fault
from sojourn.model import vectors
from sojourn.model.exemplars import Exemplars
from sojourn.model.graphs import Graphs
from sojourn.protocol.envelope import pack_blob
from sojourn.protocol.spec import InputSpec
from sojourn.protocol.wire import Ref
from sojourn.store.memory_blobs import MemoryBlobs
from tests.coordinator.rounds.test_closing import SPEC, Home
from tests.sojourn.protocol.examples import kit_without_graphs


class Leaning(Graphs):
    """Predict the second of two classes if the sample and the model have the same sign."""

    def outputs(self, vector, x):
        score = (np.asarray(x, np.float32) @ vector).astype(np.float32)
        return np.stack([-score, score], axis=1)


class CountedReads(MemoryBlobs):
    """Blobs that count reads."""

    def __init__(self) -> None:
        super().__init__()
        self.reads: list[bytes] = []

    def read(self, digest, start=0, length=None) -> bytes:
        self.reads.append(digest)
        return super().read(digest, start, length)


def labelled(home: Home, seed: int, count: int = 700) -> Ref:
    """A test set of which about half is predicted correctly."""
    draw = np.random.default_rng(seed)
    x, y = draw.integers(0, 255, (count, 3)).astype(np.uint8), draw.integers(0, 2, count)
    return home.keep(pack_blob(Exemplars.of(x, y)))


def home_with_tests(seed: int = 0) -> Home:
    home = Home()
    home.state.test = labelled(home, seed)
    return home


def test_immediate_and_deferred_evaluation_give_equal_metrics() -> None:
    home = home_with_tests()
    evaluator = Evaluator(home.blobs, Leaning)
    at_once, later = (
        close_round(CloseRound(home.state.copy(), 1.0, 0, measure=measure), home.blobs, evaluator)
        for measure in (True, False)
    )
    assert isinstance(at_once, RoundClosed)
    assert isinstance(later, RoundClosed)
    assert (at_once.evaluation_pending, later.evaluation_pending) == (False, True)
    assert 0.3 < at_once.report.accuracy < 0.7
    assert isnan(later.report.accuracy)
    assert isnan(later.report.loss)
    assert later.vectors == at_once.vectors
    home.state.apply(later)
    measured = measure_round(MeasureRound.newest(home.state), evaluator)
    metrics = at_once.report.metrics
    assert metrics
    assert {"macro_f1", "auc"} == metrics.keys()
    assert measured == RoundMeasured("job", 1, at_once.report.accuracy, at_once.report.loss, metrics=metrics)
    home.state.apply(measured)
    assert home.state.history == [at_once.report]


def test_evaluation_needs_kit_test_set_and_model() -> None:
    home = Home()  # without a test set
    with pytest.raises(Fault, match="has no kit, test set or model"):
        measure_round(MeasureRound.newest(home.state), Evaluator(home.blobs, Leaning))


def test_test_set_is_read_once() -> None:
    home = home_with_tests()
    blobs = CountedReads()
    blobs._blobs = home.blobs._blobs
    evaluator = Evaluator(blobs, Leaning)
    model = vectors.load(blobs, home.state.vectors["model"], SPEC)
    first, *others = (evaluator.evaluate(home.state, model) for _ in range(5))
    assert others == [first] * 4
    assert home.state.test
    assert home.state.kit
    assert (blobs.reads.count(home.state.test.digest), blobs.reads.count(home.state.kit.digest)) == (1, 1)


def test_several_jobs_are_evaluated_concurrently() -> None:
    home = home_with_tests()
    other = msgspec.structs.replace(home.state, name="other")
    other.kit = home.keep(pack_blob(kit_without_graphs(SPEC, InputSpec((3,)), classes=("p", "q"))))
    other.test = labelled(home, 1)
    model = np.array([1, -1, 0.5], np.float32)
    evaluator = Evaluator(home.blobs, Leaning)
    alone = {state.name: Evaluator(home.blobs, Leaning).evaluate(state, model) for state in (home.state, other)}
    assert alone["job"] != alone["other"]

    def ask(state: JobState) -> Any:
        return state.name, evaluator.evaluate(state, model), evaluator.kit(state).classes

    with ThreadPoolExecutor(4) as pool:
        found = list(pool.map(ask, [home.state, other] * 20))
    assert all(metrics == alone[name] for name, metrics, _ in found)
    assert {(name, classes) for name, _, classes in found} == {("job", ("a", "b")), ("other", ("p", "q"))}


def test_missing_test_set_gives_nan_and_missing_kit_fails() -> None:
    home = Home()
    evaluator = Evaluator(home.blobs, Leaning)
    accuracy, loss, metrics = evaluator.evaluate(home.state, np.zeros(3, np.float32))
    assert isnan(accuracy)
    assert isnan(loss)
    assert not metrics
    with pytest.raises(Fault, match="has not been compiled"):
        evaluator.kit(JobState("job", ""))
