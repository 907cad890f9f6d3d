"""Estimators in whole jobs: consistent on server and device, requested and refused; custom parts."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest

from coordinator.rounds.estimation import rows_of
from edge_agent.agent import Agent
from edge_agent.training.trainer import prepare
from fleet_sim.world.memory_fleet import CLOUD
from sojourn.model import vectors
from sojourn.parts import ClassifierEstimator, ConfidenceEstimator, UpdateEstimator
from tests.fleet_sim.machines import machine_of
from tests.fleet_sim.small_fleet import Run, SmallFleet, initial_model, job, kit_of_jobs, run, shards
from tests.fleet_sim.written_out import PLAIN, SITES

DEVICES = [f"dev-{number}" for number in range(6)]
SETS: dict[str, Any] = {"arranger__sets": 2, "arranger__size": 2, "rounds": 1, **PLAIN}


def known(done: Run, estimator: Any) -> np.ndarray:
    found = rows_of(estimator, done.state, DEVICES, done.fleet.stores[CLOUD].blobs)
    assert found is not None
    return found


@pytest.mark.parametrize("normalise", ["sum", "softmax"])
def test_confidence_is_a_distribution_equal_on_server_and_device(normalise: Any) -> None:
    ask = {"estimator__name": "confidence", "estimator__epochs": 1, "estimator__normalise": normalise, **SETS}
    server, device = (
        run(job(strategy="visit", estimator__where=where, **ask), SITES) for where in ("server", "device")
    )
    rows = known(server, ConfidenceEstimator(normalise=normalise))
    assert np.array_equal(rows, known(device, ConfidenceEstimator(normalise=normalise)))
    np.testing.assert_allclose(rows.sum(axis=1), 1, rtol=1e-12)
    assert np.array_equal(server.model, device.model)


def test_sum_and_softmax_normalisation_differ() -> None:
    ask = {"estimator__name": "confidence", "estimator__epochs": 1, **SETS}
    done = run(job(strategy="visit", **ask), SITES)
    by_sum, by_softmax = (known(done, ConfidenceEstimator(normalise=each)) for each in ("sum", "softmax"))
    assert np.abs(by_sum - by_softmax).max() > 0.05


@pytest.mark.parametrize("layers", ["all", "last-two", "last"])
def test_classifier_is_equal_on_server_and_device(layers: Any) -> None:
    ask = {"estimator__name": "classifier", "estimator__epochs": 1, "estimator__layers": layers, **SETS}
    server, device = (
        run(job(strategy="hiercluster", estimator__where=where, **ask), SITES) for where in ("server", "device")
    )
    raw = [
        np.frombuffer(done.fleet.stores[CLOUD].blobs.read(done.state.weights["dev-2"].digest), "<f4")
        for done in (server, device)
    ]
    assert np.array_equal(raw[0], raw[1])
    rows = known(server, ClassifierEstimator(layers=layers))
    assert np.array_equal(rows, known(device, ClassifierEstimator(layers=layers)))
    assert rows.shape[0] == 6
    assert 1 <= rows.shape[1] <= 5
    assert np.array_equal(server.model, device.model)


def test_fewer_layers_give_fewer_numbers() -> None:
    sizes = []
    for layers in ("all", "last-two", "last"):
        ask = {"estimator__name": "classifier", "estimator__epochs": 1, "estimator__layers": layers, **SETS}
        done = run(job(strategy="hiercluster", **ask), SITES)
        sizes.append(done.state.weights["dev-0"].size // 4)
    assert sizes == [64 * 8 + 8 * 10, 64 * 8 + 8 * 10, 8 * 10]


def test_class_counts_match_device_data_without_training() -> None:
    done = run(job(strategy="fedgsp", schedule__beta=2, rounds=1, **PLAIN), SITES)
    for device in DEVICES:
        y = prepare(kit_of_jobs(), shards(6)[device], 1).samples.y
        assert done.state.signatures[device] == tuple(np.bincount(y, minlength=10).astype(float))
    assert done.state.samples == {device: int(sum(done.state.signatures[device])) for device in DEVICES}
    assert {"vts", "balance", "covered", "cpd"} <= done.state.history[0].quality.keys()


def test_unshared_class_counts_refuse_the_job_before_training() -> None:
    fleet = SmallFleet(SITES, shy=("dev-1", "dev-4"))
    fleet.submit(job(strategy="fedgsp", schedule__beta=2, rounds=1, **PLAIN))
    state = fleet.run("job")
    assert state.status == "refused"
    for words in ("class counts", "2 devices", "dev-1, dev-4", 'shares = ["class-counts"]', "leave-out", "signature"):
        assert words in state.detail
    assert not fleet.ledger.begun


def test_waiting_job_names_devices_that_share_no_class_counts() -> None:
    fleet = SmallFleet(SITES, shy=("dev-1", "dev-4"))
    fleet.submit(job(strategy="fedgsp", estimator__unwilling="leave-out", schedule__beta=2, rounds=1, **PLAIN))
    fleet.run("job", 200)
    assert "their agent.toml: dev-1, dev-4" in fleet.job("job").detail


def test_unwilling_devices_can_be_skipped_or_use_signatures() -> None:
    for way, expected in (({"estimator__unwilling": "leave-out"}, 4), ({"estimator__name": "signature"}, 6)):
        fleet = SmallFleet(SITES, shy=("dev-1", "dev-4"))
        plain = {**PLAIN, "fleet__devices": 4}
        fleet.submit(job(strategy="fedgsp", schedule__beta=2, schedule__kappa=1.0, rounds=1, **plain, **way))
        state = fleet.run("job")
        assert state.status == "done", state.detail
        assert len({device for tour in fleet.ledger.plans[0].tours for device in tour.hops}) == expected


def test_updates_are_those_of_the_last_visit() -> None:
    done = run(job(strategy="clusamp", arranger__sets=3, rounds=1, **PLAIN), SITES)
    visited = {tour.hops[0] for tour in done.fleet.ledger.plans[0].tours}
    rows = known(done, UpdateEstimator(epochs=0))
    for number, device in enumerate(DEVICES):
        assert bool(rows[number].any()) == (device in visited)
    # With uniform weights, the draws' updates lead from the first model to the next.
    drawn = [DEVICES.index(tour.hops[0]) for tour in done.fleet.ledger.plans[0].tours]
    np.testing.assert_allclose(done.model, initial_model() + rows[drawn].mean(axis=0), rtol=0, atol=1e-6)


def test_sizes_estimator_requests_only_sample_counts() -> None:
    done = run(
        job(
            strategy="fedseq",
            estimator__name="sizes",
            arranger__grouping="random",
            schedule__fraction=1.0,
            arranger__min_samples=100,
            rounds=1,
            **PLAIN,
        ),
        SITES,
        one_broker=True,
    )
    assert done.state.samples == {device: 30 + 10 * number for number, device in enumerate(DEVICES)}
    assert done.state.signatures == {}
    assert all(sum(done.state.samples[d] for d in each.devices) >= 100 for each in done.state.arranged)


OWN = "tests.fleet_sim.custom_parts"


def test_custom_parts_combine_and_each_changes_the_result() -> None:
    objective = f"{OWN}:Shrink"
    parts = {
        "objective__name": objective,
        "arranger__name": f"{OWN}:OddAndEven",
        "schedule__name": f"{OWN}:Alternate",
        "aggregator__name": f"{OWN}:HalfwayAggregator",
    }
    text = {"strategy": "fedavg", **PLAIN, "rounds": 4}
    whole = run(job(**text, **parts), SITES, also=(objective,))
    assert whole.state.status == "done", whole.state.detail
    store = whole.fleet.stores[CLOUD].blobs
    assert set(vectors.load(store, whole.state.vectors["merges"], kit_of_jobs().model)) == {2.0}
    agent = machine_of(whole.fleet, "dev-2", Agent)
    assert set(agent.state.memory["job"].vectors) == {"visits"}
    for part in parts:
        fewer = {name: value for name, value in parts.items() if name != part}
        other = run(job(**text, **fewer), SITES, also=(objective,))
        assert other.state.status == "done", (part, other.state.detail)
        assert not np.array_equal(other.model, whole.model)


def test_custom_objective_needs_devices_that_offer_it() -> None:
    fleet = SmallFleet(SITES)
    fleet.submit(job(strategy="fedavg", objective__name=f"{OWN}:Shrink", rounds=1, **PLAIN))
    fleet.run("job", 200)
    assert fleet.job("job").status == "waiting"
    assert (
        "6 devices are needed to begin; none is online; skipped, they do not offer what the job requires (objective "
        in fleet.job("job").detail
    )


def test_custom_estimator_distinguishes_devices() -> None:
    ask = {"estimator__name": f"{OWN}:FirstAnswers", "estimator__epochs": 1, "estimator__answers": 4, **SETS}
    done = run(job(strategy="hiercluster", **ask), SITES)
    assert done.state.status == "done", done.state.detail
    assert {len(row) for row in done.state.signatures.values()} == {40}
    assert len(set(done.state.signatures.values())) == 6
