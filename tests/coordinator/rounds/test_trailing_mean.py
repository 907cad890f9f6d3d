"""The mean of the last merges is tested; training continues from the newest one."""

from collections.abc import Sequence

import numpy as np
import pytest

from coordinator.rounds.merging import JobVectors, TourResult, at_front, departs_from, next_vectors, with_trailing_mean
from coordinator.strategies import Strategy
from sojourn.parts import AvgM, RandomArranger, UniformMean

START = {"model": np.zeros(2, np.float32)}


def course(merges: Sequence[Sequence[float]], window: int) -> list[dict[str, list[float]]]:
    """Yield the job's vectors after each round; an empty round has no result."""
    strategy = Strategy(arranger=RandomArranger(), aggregator=UniformMean(window=window))
    now, found = JobVectors(START), []
    for number, merge in enumerate(merges, 1):
        results = [TourResult(np.array(merge, np.float32), 1.0)] if merge else []
        merged = next_vectors(strategy, at_front(now), results, 1, due=True)
        now = with_trailing_mean(now, merged, window, number)
        found.append({name: vector.tolist() for name, vector in now.vectors.items()})
    return found


def test_window_of_one_equals_the_merge():
    assert course([[1, 2], [3, 4]], 1) == [{"model": [1, 2]}, {"model": [3, 4]}]


def test_mean_covers_a_quarter_of_rounds_up_to_the_window():
    merges = [[float(number), 0.0] for number in range(1, 17)]
    models = [each["model"][0] for each in course(merges, 3)]
    assert models[:7] == [1, 2, 3, 4, 5, 6, 7]  # one of one
    assert models[7:11] == [7.5, 8.25, 9.125, 10.0625]  # halfway to the newest
    assert models[11] == pytest.approx(10.0625 + (12 - 10.0625) / 3)
    assert models[15] == pytest.approx(models[14] + (16 - models[14]) / 3)  # a quarter would be four


def test_tours_start_from_the_newest_merge():
    after = course([[1, 0]] * 7 + [[3, 0]], 5)[-1]
    assert after == {"model": [2, 0], "front": [3, 0]}
    assert departs_from(None, after) == "front"
    assert departs_from(None, {"model": 1, "anchor": 1, "front": 1}) == "anchor"


def test_round_without_models_changes_nothing():
    assert course([[1, 0], [], [], [3, 0]], 2)[1:3] == [{"model": [1, 0], "front": [1, 0]}] * 2


def test_late_first_merge_equals_its_own_mean():
    assert course([[], [], [], [6, 2]], 5)[-1] == {"model": [6, 2], "front": [6, 2]}


@pytest.mark.parametrize("window", [1, 3])
def test_window_does_not_change_training(window: int):
    """Momentum uses the newest merges, not their mean."""
    strategy = Strategy(arranger=RandomArranger(), aggregator=AvgM(momentum=0.5, weighting="uniform", window=window))
    now = JobVectors(START)
    for number in range(1, 5):
        start = now.vectors[departs_from(None, now.vectors)]
        results = [TourResult(start + np.float32(1), 1.0)]  # every tour goes one on from where it departed
        now = with_trailing_mean(now, next_vectors(strategy, at_front(now), results, 1, due=True), window, number)
    newest = now.vectors[departs_from(None, now.vectors)]
    np.testing.assert_array_equal(newest, np.array([6.125, 6.125], np.float32))  # 1 + 1.5 + 1.75 + 1.875
