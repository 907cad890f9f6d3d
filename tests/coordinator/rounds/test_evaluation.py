"""Models are tested at once or afterwards, by several threads and for several jobs, with the same figures."""

from __future__ import annotations

from concurrent.futures import ThreadPoolExecutor
from math import isnan
from typing import Any

import msgspec
import numpy as np
import pytest

from coordinator.records import RoundClosed, RoundMeasured
from coordinator.rounds.closing import close_round
from coordinator.rounds.evaluation import Evaluator, MeasureRound, measure_round
from coordinator.rounds.results import CloseRound
from coordinator.state import JobState
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
    """Of two classes, the second where the sample and the model point the same way."""

    def outputs(self, vector, x):
        score = (np.asarray(x, np.float32) @ vector).astype(np.float32)
        return np.stack([-score, score], axis=1)


class CountedReads(MemoryBlobs):
    """Blobs that are counted when they are read."""

    def __init__(self) -> None:
        super().__init__()
        self.reads: list[bytes] = []

    def read(self, digest, start=0, length=None) -> bytes:
        self.reads.append(digest)
        return super().read(digest, start, length)


def labelled(home: Home, seed: int, count: int = 700) -> Ref:
    """A test set of which about half is right."""
    draw = np.random.default_rng(seed)
    x, y = draw.integers(0, 255, (count, 3)).astype(np.uint8), draw.integers(0, 2, count)
    return home.keep(pack_blob(Exemplars.of(x, y)))


def home_with_tests(seed: int = 0) -> Home:
    home = Home()
    home.state.test = labelled(home, seed)
    return home


def test_a_model_has_the_same_figures_at_once_and_afterwards() -> None:
    home = home_with_tests()
    evaluator = Evaluator(home.blobs, Leaning)
    at_once, later = (
        close_round(CloseRound(home.state.copy(), 1.0, 0, measure=measure), home.blobs, evaluator)
        for measure in (True, False)
    )
    assert isinstance(at_once, RoundClosed)
    assert isinstance(later, RoundClosed)
    assert (at_once.unmeasured, later.unmeasured) == (False, True)
    assert 0.3 < at_once.report.accuracy < 0.7
    assert isnan(later.report.accuracy)
    assert isnan(later.report.loss)
    assert later.vectors == at_once.vectors
    home.state.apply(later)
    measured = measure_round(MeasureRound.newest(home.state), evaluator)
    figures = at_once.report.figures
    assert figures
    assert {"macro_f1", "auc"} == figures.keys()
    assert measured == RoundMeasured("job", 1, at_once.report.accuracy, at_once.report.loss, figures=figures)
    home.state.apply(measured)
    assert home.state.history == [at_once.report]


def test_what_is_not_there_cannot_be_tested() -> None:
    home = Home()  # without a test set
    with pytest.raises(Fault, match="has no kit, test set or model"):
        measure_round(MeasureRound.newest(home.state), Evaluator(home.blobs, Leaning))


def test_a_test_set_is_read_once() -> None:
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


def test_several_jobs_are_tested_at_the_same_time() -> None:
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
    assert all(figures == alone[name] for name, figures, _ in found)
    assert {(name, classes) for name, _, classes in found} == {("job", ("a", "b")), ("other", ("p", "q"))}


def test_without_a_test_set_a_model_has_no_figures_and_without_a_kit_none_is_tested() -> None:
    home = Home()
    evaluator = Evaluator(home.blobs, Leaning)
    accuracy, loss, figures = evaluator.evaluate(home.state, np.zeros(3, np.float32))
    assert isnan(accuracy)
    assert isnan(loss)
    assert not figures
    with pytest.raises(Fault, match="has not been compiled"):
        evaluator.kit(JobState("job", ""))
