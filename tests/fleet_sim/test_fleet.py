"""Whole jobs over in-memory brokers: the same bits despite link faults, limiting cases, and effects of settings."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest

from edge_agent.training.trainer import prepare
from fleet_sim.world.memory_fleet import CLOUD
from sojourn.links.memory import Faults
from sojourn.model.exemplars import Exemplars
from sojourn.model.graphs import Graphs
from sojourn.model.vectors import weighted_mean
from sojourn.node import node as node_module
from sojourn.node.machine import Received
from sojourn.protocol.envelope import unpack_blob
from sojourn.protocol.operator_messages import Stop
from sojourn.protocol.topics import Address
from sojourn.protocol.wire import Epoch
from sojourn.randomness import batches, derive
from tests.fleet_sim.small_fleet import (
    TWO_SITES,
    SmallFleet,
    fedavg,
    initial_model,
    kit_of_jobs,
    run,
    shards,
    visit,
)
from tests.there import there

ONE_SITE = {"site-a": ("dev-0", "dev-1", "dev-2", "dev-3")}
ALL: dict[str, Any] = {"fleet__devices": 4}


def chain(devices: list[str], seed: int, round_number: int = 1) -> tuple[np.ndarray, int]:
    """Return the model after these devices: SGD written out, with the same randomness."""
    w, kit, seen = initial_model(), kit_of_jobs(), 0
    seed = derive(seed, "train", round_number)
    for device in devices:
        ready = prepare(kit, shards(6)[device], 1)
        for index in batches(derive(seed, device, 0), len(ready.samples), 16, 1):
            x, y = ready.samples.batch(index, kit.input.dtype)
            _, gradient = ready.graphs.loss_and_gradient(w, x, y, [])
            w = w - np.float32(0.2) * gradient
        seen += len(ready.samples)
    return w, seen


@pytest.mark.parametrize("strategy", [fedavg, visit])
@pytest.mark.parametrize("inline", [16 << 10, 0])
def test_loss_repeats_and_reordering_do_not_change_a_bit(strategy, inline, monkeypatch) -> None:
    monkeypatch.setattr(node_module, "INLINE", inline)
    clean = run(strategy(**ALL))
    assert clean.state.status == "done"
    assert len(clean.state.history) == 2
    for seed in range(4):
        rough = run(strategy(**ALL), faults=Faults(loss=0.2, repeat=0.2, delay=0.01, spread=0.4, seed=seed))
        assert rough.state.status == "done"
        assert np.array_equal(rough.model, clean.model)
        assert rough.state.history[-1].accuracy == clean.state.history[-1].accuracy
        assert all(report.visits == 4 for report in rough.state.history)


def test_very_bad_link_only_takes_longer() -> None:
    patient = visit(tours__lease=900, tours__site_lease=900, **ALL)
    clean = run(patient)
    rough = run(patient, faults=Faults(loss=0.5, repeat=0.5, delay=0.05, spread=3.0, seed=1))
    assert np.array_equal(rough.model, clean.model)
    assert rough.fleet.world.now > clean.fleet.world.now


def test_broker_layout_does_not_change_the_model() -> None:
    apart, together = run(fedavg(**ALL)), run(fedavg(**ALL), one_broker=True)
    one = run(fedavg(**ALL), ONE_SITE)
    assert np.array_equal(apart.model, together.model)
    assert np.array_equal(apart.model, one.model)


def test_training_changes_the_model_and_learns() -> None:
    done = run(fedavg(rounds=6, training__epochs=2, **ALL))
    assert not np.array_equal(done.model, initial_model())
    assert done.state.history[-1].accuracy > 0.4
    assert done.state.detail == "6 rounds are done"


def test_fedavg_equals_the_weighted_mean_of_visits() -> None:
    done = run(fedavg(rounds=1, **ALL))
    ends = [chain([device], seed=0) for device in ONE_SITE["site-a"]]
    expected = weighted_mean([w for w, _ in ends], [samples for _, samples in ends])
    np.testing.assert_allclose(done.model, expected, rtol=0, atol=1e-6)
    assert [samples for _, samples in ends] == [30, 40, 50, 60]


def test_visit_with_sets_of_one_equals_fedavg() -> None:
    sets: dict[str, Any] = {"arranger__sets": 4, "arranger__size": 1}
    single, plain = run(visit(rounds=3, **sets, **ALL)), run(fedavg(rounds=3, **ALL))
    np.testing.assert_allclose(single.model, plain.model, rtol=0, atol=1e-6)
    with_sum = run(visit(rounds=1, **sets, **ALL))
    assert with_sum.state.history[0].tours == 4


def test_visit_with_one_set_of_all_equals_a_chain() -> None:
    fleet = SmallFleet(ONE_SITE)
    fleet.submit(visit(rounds=1, arranger__sets=1, arranger__size=4, seed=3, **ALL))
    order: list[str] = []

    def arranged() -> bool:
        order[:] = [device for tour in fleet.job("job").arranged for device in tour.devices]
        return bool(order)

    fleet.world.run(arranged)
    assert sorted(order) == sorted(ONE_SITE["site-a"])
    fleet.run("job")
    np.testing.assert_allclose(fleet.model(), chain(order, seed=3)[0], rtol=0, atol=1e-6)


def test_signature_is_equal_on_device_and_server() -> None:
    server = run(visit(estimator__where="server", **ALL))
    device = run(visit(estimator__where="device", **ALL))
    assert server.state.signatures == device.state.signatures
    assert len(server.state.signatures) == 4
    assert all(0 <= value <= 1 for mark in server.state.signatures.values() for value in mark)
    assert np.array_equal(server.model, device.model)


BASE = {"rounds": 2, **ALL}


@pytest.mark.parametrize(
    "change",
    [
        {"aggregator__name": "uniform-mean"},
        {"schedule__order": "shuffled", "arranger__sets": 1, "arranger__size": 4},
        {"schedule__passes": 2},
        {"arranger__size": 1},
        {"seed": 1},
        {"training__epochs": 2},
        {"training__lr": 0.1},
        {"training__batch": 8},
        {"training__momentum": 0.5},
        {"training__weight_decay": 0.01},
        {"encoding": "float16"},
        {"encoding": "int8"},
        {"rounds": 3},
    ],
    ids="-".join,
)
def test_every_parameter_changes_the_model(change) -> None:
    still = {key: value for key, value in change.items() if key.startswith("arranger__s")} if len(change) > 1 else {}
    plain = run(visit(**{**BASE, **still}), ONE_SITE)
    turned = run(visit(**{**BASE, **change}), ONE_SITE)
    assert turned.state.status == "done"
    assert not np.array_equal(plain.model, turned.model)


def test_same_job_twice_gives_the_same_model() -> None:
    assert np.array_equal(run(visit(**ALL)).model, run(visit(**ALL)).model)


def test_compressed_models_stay_close() -> None:
    exact = run(fedavg(rounds=3, **ALL))
    moved = np.linalg.norm(exact.model - initial_model())
    errors = {}
    for encoding in ("float16", "int8"):
        done = run(fedavg(rounds=3, encoding=encoding, **ALL))
        errors[encoding] = np.linalg.norm(done.model - exact.model) / moved
        assert done.state.vectors["model"].encoding == "float32"
        assert done.state.wire_vectors["model"].encoding == encoding
        assert done.fleet.traffic < exact.fleet.traffic
    assert 0 < errors["float16"] < 0.01
    assert errors["float16"] < errors["int8"] < 0.2


def test_compressed_jobs_give_the_same_bits_over_bad_links() -> None:
    for encoding in ("float16", "int8"):
        text = visit(encoding=encoding, **ALL)
        rough = run(text, faults=Faults(loss=0.2, repeat=0.2, spread=0.3, seed=5))
        assert np.array_equal(run(text).model, rough.model)


def test_target_accuracy_stops_the_job_early() -> None:
    done = run(fedavg(rounds=50, target=0.3, **ALL))
    assert done.state.status == "done"
    assert done.state.detail.startswith("the target accuracy 30.00% was reached in round ")
    assert len(done.state.history) < 50
    assert done.state.history[-1].accuracy >= 0.3 > done.state.history[-2].accuracy


def test_arrangement_is_kept_until_the_scheduled_rearrangement() -> None:
    def arrangements(every: int) -> list[tuple[tuple[str, ...], ...]]:
        fleet = SmallFleet(ONE_SITE)
        fleet.submit(visit(rounds=4, schedule__rearrange_every=every, **ALL))
        seen: dict[int, tuple[tuple[str, ...], ...]] = {}

        def look() -> bool:
            job = fleet.job("job")
            if job.phase == "train" and job.tours:
                seen[job.round] = tuple(tour.hops for tour in job.tours)
            return job.status == "done"

        fleet.world.run(look)
        return [seen[number] for number in sorted(seen)]

    kept, fresh = arrangements(2), arrangements(1)
    assert kept[0] == kept[1]
    assert kept[2] == kept[3]
    assert len(set(fresh)) > 2


def test_jobs_run_one_after_another() -> None:
    fleet = SmallFleet(TWO_SITES)
    fleet.submit(fedavg("first", **ALL))
    fleet.submit(visit("second", **ALL))
    assert fleet.job("second").status == "queued"
    first = fleet.run("first")
    assert first.status == "done"
    assert fleet.job("second").status in ("compiling", "waiting")
    assert not fleet.job("second").tours
    assert fleet.run("second").status == "done"
    alone = run(fedavg("job", **ALL))
    assert np.array_equal(fleet.model("first"), alone.model)
    assert np.array_equal(fleet.model("second"), run(visit("job", **ALL)).model)


def test_stopped_job_keeps_its_model_and_the_next_starts() -> None:
    fleet = SmallFleet(TWO_SITES)
    fleet.submit(fedavg("first", rounds=100, **ALL))
    fleet.submit(fedavg("second", **ALL))
    fleet.world.run(lambda: len(fleet.job("first").history) == 2)
    stop = Received(Address("cloud", "operator"), Epoch(0, bytes(8)), Stop("t", "first"))
    fleet.nodes[CLOUD].node.inject(stop, fleet.world.now)
    assert fleet.job("first").status == "stopped"
    assert fleet.job("first").detail == "stopped by an operator"
    assert np.array_equal(fleet.model("first"), run(fedavg("job", **ALL)).model)
    assert fleet.run("second").status == "done"
    assert all(report.lost == 0 for report in fleet.job("second").history)
    assert len(fleet.job("first").history) == 2


def test_stopping_a_queued_job_does_not_disturb_the_first() -> None:
    fleet = SmallFleet(TWO_SITES)
    fleet.submit(fedavg("job", **ALL))
    fleet.submit(fedavg("second", **ALL))
    fleet.world.run(lambda: len(fleet.job("job").history) == 1)
    stop = Received(Address("cloud", "operator"), Epoch(0, bytes(8)), Stop("t", "second"))
    fleet.nodes[CLOUD].node.inject(stop, fleet.world.now)
    assert fleet.job("second").status == "stopped"
    assert fleet.run("job").status == "done"
    assert np.array_equal(fleet.model(), run(fedavg("job", **ALL)).model)


ALL_BUT_ONE = (
    "4 devices are needed to begin; 3 are online (dev-0, dev-1, dev-2). With fleet.devices = 3 it can begin with "
    "these (sojourn job continue job --devices 3)"
)


def test_job_waits_for_devices() -> None:
    fleet = SmallFleet(TWO_SITES)
    fleet.kill("dev-3")
    fleet.submit(fedavg(**ALL))
    fleet.world.run(lambda: False, 60.0)
    job = fleet.job("job")
    assert (job.status, job.detail) == (
        "waiting",
        ALL_BUT_ONE,
    )
    fleet.start("dev-3")
    assert fleet.run("job").status == "done"
    assert np.array_equal(fleet.model(), run(fedavg(**ALL)).model)


def test_job_waits_for_a_site_to_return_with_its_devices() -> None:
    fleet = SmallFleet(TWO_SITES)
    fleet.world.run(lambda: False, 5.0)
    fleet.kill("site-a")
    fleet.world.run(lambda: False, 10.0)
    fleet.submit(fedavg(**ALL))
    fleet.world.run(lambda: False, 60.0)
    assert fleet.job("job").detail.startswith(
        "4 devices are needed to begin; 2 are online (dev-2, dev-3); offline: dev-0 (since 1970-01-01 00:00 UTC)"
    )
    fleet.start("site-a")
    assert fleet.run("job", 100).status == "done"


def test_timeout_fails_a_job_with_the_reason() -> None:
    done = run(fedavg(fleet__devices=5, fleet__timeout=30))
    assert done.state.status == "failed"
    assert done.state.detail.startswith(
        "waited 30 s for devices (fleet.timeout): 5 devices are needed to begin; 4 are online (dev-0, "
    )
    assert 30 <= done.fleet.world.now < 40


def test_device_that_joins_later_takes_part() -> None:
    fleet = SmallFleet(TWO_SITES)
    fleet.kill("dev-3")
    fleet.submit(visit(rounds=3, arranger__sets=1, fleet__devices=3, arranger__size=4))
    fleet.world.run(lambda: len(fleet.job("job").history) == 1)
    assert fleet.job("job").history[0].visits == 3 - 1  # one site's set
    fleet.start("dev-3")
    assert fleet.run("job").status == "done"
    assert set(fleet.job("job").signatures) == set(ONE_SITE["site-a"])


def test_round_reports_contain_counts_and_metrics() -> None:
    done = run(visit(**ALL))
    first, second = done.state.history
    assert (first.round, second.round) == (1, 2)
    assert (first.tours, first.visits, first.lost, first.failures) == (2, 4, 0, ())
    assert first.traffic > 0
    assert first.seconds > 0
    assert set(first.quality) == {"vts", "intra_cs", "inter_cs"}
    assert first.accuracy == pytest.approx(_accuracy_of_one_round())


def _accuracy_of_one_round() -> float:
    done = run(visit(rounds=1, **ALL))
    graphs = Graphs(kit_of_jobs(), 1)
    test = unpack_blob(done.fleet.stores[CLOUD].blobs.read(there(done.state.test).digest), Exemplars)
    x, y = test.arrays()
    return float((graphs.logits(done.model, x).argmax(axis=1) == y).mean())
