"""Models with state: it is merged by plain mean under every aggregator, which sees the trained numbers alone."""

from __future__ import annotations

import numpy as np
import pytest
from msgspec.structs import replace

from coordinator.aggregators.aggregating import Contribution, aggregate, first_state
from coordinator.aggregators.contributions import weighting_of
from coordinator.aggregators.model_state import aggregate_with_state
from coordinator.rounds.merging import JobVectors, TourResult, next_vectors
from coordinator.strategies import named
from sojourn.parts import Adam, Aggregator, Objective
from tests.coordinator.aggregators.merges import about, drawn, plain_mean
from tests.coordinator.aggregators.test_aggregating import ALL

LEARNT, STATE = 7, 4
PREVIOUS = np.linspace(1, 2, LEARNT + STATE).astype(np.float32)


def with_state() -> list[Contribution]:
    """Tours' models whose last numbers are variances."""
    states = np.random.default_rng(3).uniform(0, 9, (5, STATE)).astype(np.float32)
    tours = zip(drawn("state", 5), states, strict=True)
    return [Contribution(np.concatenate([each.vector, state]), each.weight) for each, state in tours]


@pytest.mark.parametrize(("settings", "objective"), ALL)
def test_the_trained_numbers_are_merged_as_alone_and_the_state_by_plain_mean(
    settings: Aggregator, objective: Objective
) -> None:
    tours = with_state()
    alone = [Contribution(each.vector[:LEARNT], each.weight) for each in tours]
    change = np.linspace(-1, 1, LEARNT + STATE).astype(np.float32)
    kept, kept_alone = first_state(settings, LEARNT + STATE), first_state(settings, LEARNT)
    model, model_alone = PREVIOUS, PREVIOUS[:LEARNT]
    for _ in range(3):  # by then a momentum has grown
        merge, merge_alone = (about(objective, control_delta=change[:size]) for size in (LEARNT + STATE, LEARNT))
        model, kept = aggregate_with_state(LEARNT, settings, model, tours, kept, merge)
        model_alone, kept_alone = aggregate(settings, model_alone, alone, kept_alone, merge_alone)
        assert model[:LEARNT].tobytes() == model_alone.tobytes()
    states = [Contribution(each.vector[LEARNT:], each.weight) for each in tours]
    np.testing.assert_allclose(model[LEARNT:], plain_mean(states, weighting_of(settings)), rtol=6e-8)
    assert kept.keys() == kept_alone.keys()
    for name, vector in kept.items():
        assert vector.tolist() == [*kept_alone[name].tolist(), 0, 0, 0, 0]


@pytest.mark.parametrize(("settings", "objective"), ALL)
def test_without_any_model_the_state_stays(settings: Aggregator, objective: Objective) -> None:
    first = first_state(settings, LEARNT + STATE)
    model, _ = aggregate_with_state(LEARNT, settings, PREVIOUS, [], first, about(objective))
    assert model[LEARNT:].tobytes() == PREVIOUS[LEARNT:].tobytes()


def test_an_optimiser_would_have_made_a_variance_negative() -> None:
    strategy = replace(named("fedadam", "a test"), aggregator=Adam(lr=0.1))
    small = np.full(LEARNT + STATE, 1e-3, np.float32)
    now = JobVectors({"model": np.full(LEARNT + STATE, 5e-3, np.float32)})
    results = [TourResult(small, 1.0)]
    whole = next_vectors(strategy, now, results, 4, due=True).vectors["model"]
    apart = next_vectors(strategy, now, results, 4, due=True, learnt=LEARNT).vectors["model"]
    assert (whole[LEARNT:] < 0).all()
    assert apart[LEARNT:].tolist() == small[LEARNT:].tolist()
    assert apart[:LEARNT].tobytes() == whole[:LEARNT].tobytes()
