"""Limiting cases in which one strategy equals another, in whole jobs; and that every setting changes the model."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest

from tests.fleet_sim.small_fleet import Run, job, run
from tests.fleet_sim.written_out import PLAIN, SITES, start, tour, uniform

CLOSE: dict[str, Any] = {"rtol": 0, "atol": 2e-6}
SEQ = {"estimator__epochs": 1, "arranger__sets": 3, "arranger__size": 2, "schedule__fraction": 0.7}
ELMY = {
    "rounds": None,
    "objective__models": 2,
    "objective__warmup": 1,
    "training__optimiser": "adam",
    "training__lr": 0.01,
}


def done(strategy: str, **changes: Any) -> Run:
    ended = run(job(**{"strategy": strategy, **PLAIN, "rounds": 3, **changes}), SITES, one_broker=True)
    assert ended.state.status == "done", ended.state.detail
    return ended


def check_same(one: Run, other: Run) -> None:
    np.testing.assert_allclose(one.model, other.model, **CLOSE)
    assert np.abs(one.model - start()).max() > 1e-3


def test_fedprox_with_mu_zero_equals_fedavg() -> None:
    check_same(done("fedprox", objective__mu=0), done("fedavg"))


def test_fedgen_equals_fedavg_in_round_one_and_without_terms() -> None:
    small = {"objective__hidden": 16, "finisher__steps": 3, "training__batch": 16}
    plain = {"training__batch": 16}
    first = done("fedgen", **small, rounds=1)
    assert np.array_equal(first.model, done("fedavg", **plain, rounds=1).model)
    none = done("fedgen", **small, objective__a=0, objective__b=0)
    assert np.array_equal(none.model, done("fedavg", **plain).model)
    both = done("fedgen", **small)
    assert not np.array_equal(both.model, none.model)
    for knob in ({"objective__a": 0}, {"objective__b": 0}, {"finisher__steps": 9}, {"finisher__eta": 0}):
        assert not np.array_equal(done("fedgen", **{**small, **knob}).model, both.model), knob


def test_fedseq_with_single_superclients_equals_fedavg() -> None:
    single = {"estimator__epochs": 1, "arranger__max_devices": 1, "schedule__fraction": 1.0}
    check_same(done("fedseq", **single), done("fedavg"))


def test_fedseq_inter_merging_every_round_equals_fedseq() -> None:
    one, other = done("fedseq-inter", **SEQ, schedule__merge_every=1), done("fedseq", **SEQ)
    assert np.array_equal(one.model, other.model)
    assert not np.array_equal(one.model, done("fedseq-inter", **SEQ).model)


def test_fedgsp_with_many_groups_equals_sampled_uniform_fedavg() -> None:
    ended = done("fedgsp", schedule__beta=4, schedule__kappa=0.5)
    w = start()
    for number, plan in enumerate(ended.fleet.ledger.plans, 1):
        assert [len(each.hops) for each in plan.tours] == [1, 1, 1]
        w = uniform([tour(w, each.hops, number)[0] for each in plan.tours])
    np.testing.assert_allclose(ended.model, w, rtol=0, atol=2e-5)
    whole = done("fedgsp", schedule__beta=6, schedule__kappa=1.0)
    check_same(whole, done("fedavg", aggregator__name="uniform-mean"))


def test_first_scaffold_round_equals_uniform_fedavg() -> None:
    check_same(done("scaffold", rounds=1), done("fedavg", rounds=1, aggregator__name="uniform-mean"))
    assert not np.allclose(done("scaffold").model, done("fedavg", aggregator__name="uniform-mean").model, atol=1e-4)


def test_first_feddyn_round_is_twice_the_fedprox_step() -> None:
    prox = done("fedprox", objective__mu=0.3, rounds=1, aggregator__name="uniform-mean")
    dyn = done("feddyn", objective__a=0.3, rounds=1)
    np.testing.assert_allclose(dyn.model, 2 * prox.model - start(), rtol=0, atol=2e-6)


def test_fedavgm_without_momentum_equals_fedavg() -> None:
    assert np.array_equal(done("fedavgm", aggregator__momentum=0, aggregator__lr=1.0).model, done("fedavg").model)


def test_fedcat_of_all_devices_merging_each_round_equals_fedavg() -> None:
    check_same(done("fedcat-gc", arranger__sets=6), done("fedavg"))


def test_ring_of_one_site_is_one_tour() -> None:
    whole = {"site-a": tuple(f"dev-{n}" for n in range(6))}
    ended = run(job(strategy="chain", **PLAIN, rounds=None), whole)
    (plan,) = ended.fleet.ledger.plans
    np.testing.assert_allclose(ended.model, tour(start(), plan.tours[0].hops, 1)[0], rtol=0, atol=2e-5)


def test_two_ring_trips_are_two_tours_in_the_same_order() -> None:
    ended = done("chain", rounds=None, schedule__trips=2)
    first, second = ended.fleet.ledger.plans
    assert [each.hops for each in first.tours] == [each.hops for each in second.tours]
    w = start()
    for number, plan in enumerate((first, second), 1):
        for each in plan.tours:
            w = tour(w, each.hops, number)[0]
    np.testing.assert_allclose(ended.model, w, rtol=0, atol=3e-5)


@pytest.mark.parametrize(
    ("strategy", "still", "turned"),
    [
        ("fedprox", {}, {"objective__mu": 1.0}),
        ("feddyn", {}, {"objective__a": 1.0}),
        ("dfedsam", {}, {"objective__rho": 0.2}),
        ("dfedavgm", {}, {"training__momentum": 0.5}),
        ("scaffold", {}, {"aggregator__lr": 0.5}),
        ("scaffold", {}, {"aggregator__weighting": "samples"}),
        ("fedavgm", {}, {"aggregator__momentum": 0.5}),
        ("fedavgm", {}, {"aggregator__lr": 0.5}),
        ("fedadam", {}, {"aggregator__beta1": 0.5}),
        ("fedadam", {}, {"aggregator__beta2": 0.5}),
        ("fedadam", {}, {"aggregator__tau": 0.1}),
        ("fedyogi", {}, {"aggregator__beta2": 0.5}),
        ("fedadagrad", {}, {"aggregator__lr": 0.03}),
        ("ida", {}, {"aggregator__epsilon": 1.0}),
        ("ida", {}, {"aggregator__weighting": "uniform"}),
        ("hierfavg", {}, {"schedule__edge_merges": 3}),
        ("hierfavg", {}, {"arranger__fraction": 0.5}),
        ("hierfavg", {}, {"aggregator__name": "uniform-mean"}),
        ("fedavg", {}, {"arranger__fraction": 0.5}),
        ("clusamp", {"arranger__sets": 3}, {"arranger__sets": 4}),
        ("visit", {"estimator__epochs": 1}, {"schedule__order": "shuffled"}),
        ("visit", {"estimator__epochs": 1}, {"schedule__rearrange_every": 0}),
        ("visit", {"estimator__epochs": 1}, {"estimator__epochs": 4}),
        ("visit", {"estimator__epochs": 1}, {"aggregator__name": "yogi"}),
        ("hiercluster", {"estimator__epochs": 1}, {"arranger__size": 2}),
        ("fedseq", SEQ, {"schedule__fraction": 1.0}),
        ("fedseq", SEQ, {"schedule__order": "arranged"}),
        ("fedseq", SEQ, {"schedule__passes": 2}),
        ("fedseq", SEQ, {"arranger__grouping": "random"}),
        ("fedseq", SEQ, {"objective__name": "dyn"}),
        ("fedseq-inter", SEQ, {"schedule__merge_every": 2}),
        ("fedseq-inter", SEQ, {"schedule__rotate": True}),
        ("fedgsp", {"schedule__beta": 1, "schedule__alpha": 1.0}, {"schedule__growth": "linear"}),
        ("fedgsp", {"schedule__beta": 2}, {"schedule__kappa": 1.0}),
        ("fedgsp", {"schedule__beta": 2}, {"schedule__alpha": 0.0}),
        ("fedcat", {"arranger__sets": 3}, {"schedule__rotate": False}),
        ("fedcat", {"arranger__sets": 3}, {"schedule__merge_every": 1}),
        ("fedcat", {"arranger__sets": 3}, {"arranger__grouped": False}),
        ("chain", {"rounds": None}, {"schedule__trips": 2}),
        ("chain", {"rounds": None}, {"arranger__order": "name"}),
        ("fedelmy", ELMY, {"objective__alpha": 0.6}),
        ("fedelmy", ELMY, {"objective__beta": 0.0}),
        ("fedelmy", ELMY, {"objective__models": 1}),
        ("fedelmy", ELMY, {"objective__warmup": 0}),
        ("fedelmy", ELMY, {"objective__validation": 0.3}),
        ("fedelmy-parallel", ELMY, {"objective__start": "received"}),
    ],
    ids=str,
)
def test_every_parameter_changes_the_model(strategy: str, still: dict[str, Any], turned: dict[str, Any]) -> None:
    plain = done(strategy, **still)
    assert not np.array_equal(plain.model, done(strategy, **(still | turned)).model)
