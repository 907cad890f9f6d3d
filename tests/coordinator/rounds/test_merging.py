import numpy as np
import pytest

from coordinator.rounds.merging import JobVectors, TourResult, departs_from, next_vectors
from coordinator.strategies.strategy import Strategy
from sojourn.parts import AvgM, Scaffold, ScaffoldServer, SingleArranger, UniformMean, WeightedMean

MEAN = Strategy(arranger=SingleArranger(), aggregator=WeightedMean())


def vector(*numbers):
    return np.array(numbers, np.float32)


def lists_of(stand):
    return {name: value.tolist() for name, value in stand.vectors.items()}


def test_results_without_slots_merge_at_once():
    results = [TourResult(vector(1, 2), 1), TourResult(vector(4, 8), 2)]
    stand = next_vectors(MEAN, JobVectors({"model": vector(0, 0)}), results, 2, due=True)
    assert lists_of(stand) == {"model": [3, 6]}
    assert stand.slots == {}


def test_slots_keep_models_and_samples_and_mean_is_evaluated():
    stand = JobVectors({"model": vector(0, 0)})
    stand = next_vectors(
        MEAN, stand, [TourResult(vector(2, 2), 10, "slot-0"), TourResult(vector(8, 8), 30, "slot-1")], 4, due=False
    )
    assert stand.slots == {"slot-0": 10, "slot-1": 30}
    assert lists_of(stand) == {"anchor": [0, 0], "slot-0": [2, 2], "slot-1": [8, 8], "model": [6.5, 6.5]}
    stand = next_vectors(MEAN, stand, [TourResult(vector(4, 0), 20, "slot-0")], 4, due=False)
    assert stand.slots == {"slot-0": 30, "slot-1": 30}
    assert lists_of(stand) == {"anchor": [0, 0], "slot-0": [4, 0], "slot-1": [8, 8], "model": [6, 4]}
    stand = next_vectors(MEAN, stand, [TourResult(vector(1, 1), 30, "slot-1")], 4, due=True)
    assert lists_of(stand) == {"model": [2, pytest.approx(2 / 3)]}
    assert stand.slots == {}


def test_round_without_tours_keeps_slots_models_and_samples():
    before = next_vectors(MEAN, JobVectors({"model": vector(0)}), [TourResult(vector(2), 5, "slot-0")], 2, due=False)
    after = next_vectors(MEAN, before, [], 2, due=False)
    assert (lists_of(after), after.slots) == (lists_of(before), before.slots)


def test_cycle_without_results_keeps_the_model():
    lost = next_vectors(MEAN, JobVectors({"model": vector(3)}), [], 2, due=False)
    assert lists_of(lost) == {"anchor": [3], "model": [3]}
    assert lists_of(next_vectors(MEAN, lost, [], 2, due=True)) == {"model": [3]}


def test_late_slot_merges_with_its_samples():
    stand = next_vectors(MEAN, JobVectors({"model": vector(0)}), [TourResult(vector(2), 1, "slot-0")], 2, due=False)
    stand = next_vectors(MEAN, stand, [TourResult(vector(4), 3, "slot-2")], 2, due=True)
    assert lists_of(stand) == {"model": [3.5]}


def test_aggregator_gets_model_of_last_merge():
    momentum = Strategy(arranger=SingleArranger(), aggregator=AvgM(momentum=0.5, lr=1.0))
    stand = next_vectors(momentum, JobVectors({"model": vector(1)}), [TourResult(vector(3), 1, "slot-0")], 1, due=False)
    assert lists_of(stand)["model"] == [3]
    stand = next_vectors(momentum, stand, [TourResult(vector(5), 1, "slot-0")], 1, due=True)
    assert lists_of(stand) == {"model": [5], "momentum": [4]}
    stand = next_vectors(momentum, stand, [TourResult(vector(5), 1)], 1, due=True)
    assert lists_of(stand) == {"model": [7], "momentum": [2]}


def test_slots_merge_in_numerical_order():
    uniform = Strategy(arranger=SingleArranger(), aggregator=UniformMean())
    numbers = [1e8, 1.0, -1e8, 3.0, 7.0, 1e-3, 2.5, -4.0, 0.1, 11.0, 1e7]
    results = [TourResult(vector(x), 1, f"slot-{n}") for n, x in enumerate(numbers)]
    shuffled = [results[n] for n in (10, 2, 5, 1, 0, 9, 3, 8, 4, 7, 6)]
    ends = [
        next_vectors(uniform, JobVectors({"model": vector(0)}), given, 11, due=True) for given in (results, shuffled)
    ]
    assert lists_of(ends[0]) == lists_of(ends[1])


def test_returned_extras_add_up_until_the_merge():
    scaffold = Strategy(arranger=SingleArranger(), objective=Scaffold(), aggregator=ScaffoldServer())
    stand = JobVectors({"model": vector(0), "control": vector(0)})
    one = TourResult(vector(1), 1, "slot-0", {"control_delta": vector(2)})
    two = TourResult(vector(3), 1, "slot-1", {"control_delta": vector(4)})
    stand = next_vectors(scaffold, stand, [one, two], 4, due=False)
    assert lists_of(stand) == {
        "model": [2],
        "anchor": [0],
        "slot-0": [1],
        "slot-1": [3],
        "control": [0],
        "sum-control_delta": [6],
    }
    stand = next_vectors(scaffold, stand, [one], 4, due=True)
    assert lists_of(stand) == {"model": [2], "control": [2]}


def test_model_without_a_slot_forces_a_merge():
    stand = next_vectors(MEAN, JobVectors({"model": vector(0)}), [TourResult(vector(2), 1)], 1, due=False)
    assert lists_of(stand) == {"model": [2]}


def test_tours_start_from_their_slot_or_the_last_merge():
    assert departs_from(None, {"model": 1}) == "model"
    assert departs_from("slot-1", {"model": 1}) == "model"
    assert departs_from("slot-1", {"model": 1, "anchor": 1, "slot-0": 1}) == "anchor"
    assert departs_from("slot-0", {"model": 1, "anchor": 1, "slot-0": 1}) == "slot-0"
