"""Tests of models with state: every aggregator gets only the trained parameters, and the state is averaged."""

from __future__ import annotations

import numpy as np
import pytest
from msgspec.structs import replace

from coordinator.aggregators.aggregating import Contribution, aggregate, aggregate_with_state, first_state
from coordinator.aggregators.contributions import weighting_of
from coordinator.rounds.merging import JobVectors, TourResult, next_vectors
from coordinator.strategies import named
from sojourn.parts import Adam, Aggregator, Objective
from tests.coordinator.aggregators.merges import about, drawn, plain_mean
from tests.coordinator.aggregators.test_aggregating import ALL

TRAINED, STATE = 7, 4
PREVIOUS = np.linspace(1, 2, TRAINED + STATE).astype(np.float32)


def with_state() -> list[Contribution]:
    """Return tours' models whose last values are variances."""
    states = np.random.default_rng(3).uniform(0, 9, (5, STATE)).astype(np.float32)
    tours = zip(drawn("state", 5), states, strict=True)
    return [Contribution(np.concatenate([each.vector, state]), each.weight) for each, state in tours]


@pytest.mark.parametrize(("settings", "objective"), ALL)
def test_trained_part_merges_as_usual_and_state_by_plain_mean(settings: Aggregator, objective: Objective) -> None:
    tours = with_state()
    alone = [Contribution(each.vector[:TRAINED], each.weight) for each in tours]
    change = np.linspace(-1, 1, TRAINED + STATE).astype(np.float32)
    kept, kept_alone = first_state(settings, TRAINED + STATE), first_state(settings, TRAINED)
    model, model_alone = PREVIOUS, PREVIOUS[:TRAINED]
    for _ in range(3):  # until then a momentum has grown
        merge, merge_alone = (about(objective, control_delta=change[:size]) for size in (TRAINED + STATE, TRAINED))
        model, kept = aggregate_with_state(TRAINED, settings, model, tours, kept, merge)
        model_alone, kept_alone = aggregate(settings, model_alone, alone, kept_alone, merge_alone)
        assert model[:TRAINED].tobytes() == model_alone.tobytes()
    states = [Contribution(each.vector[TRAINED:], each.weight) for each in tours]
    np.testing.assert_allclose(model[TRAINED:], plain_mean(states, weighting_of(settings)), rtol=6e-8)
    assert kept.keys() == kept_alone.keys()
    for name, vector in kept.items():
        assert vector.tolist() == [*kept_alone[name].tolist(), 0, 0, 0, 0]


@pytest.mark.parametrize(("settings", "objective"), ALL)
def test_model_state_stays_if_no_model_arrives(settings: Aggregator, objective: Objective) -> None:
    first = first_state(settings, TRAINED + STATE)
    model, _ = aggregate_with_state(TRAINED, settings, PREVIOUS, [], first, about(objective))
    assert model[TRAINED:].tobytes() == PREVIOUS[TRAINED:].tobytes()


def test_optimiser_would_make_variance_negative() -> None:
    strategy = replace(named("fedadam", "a test"), aggregator=Adam(lr=0.1))
    small = np.full(TRAINED + STATE, 1e-3, np.float32)
    now = JobVectors({"model": np.full(TRAINED + STATE, 5e-3, np.float32)})
    results = [TourResult(small, 1.0)]
    whole = next_vectors(strategy, now, results, 4, due=True).vectors["model"]
    apart = next_vectors(strategy, now, results, 4, due=True, trained=TRAINED).vectors["model"]
    assert (whole[TRAINED:] < 0).all()
    assert apart[TRAINED:].tolist() == small[TRAINED:].tolist()
    assert apart[:TRAINED].tobytes() == whole[:TRAINED].tobytes()
