"""Effects of skipped visits, empty tours, late slots and vanished devices on weights, slots, counts and controls."""

from __future__ import annotations

from functools import partial
from typing import TYPE_CHECKING, Any

import numpy as np
import pytest

from coordinator.machine.coordinator import Coordinator
from edge_agent.agent import Agent
from fleet_sim.world.memory_fleet import CLOUD
from sojourn.links.memory import Faults
from sojourn.model import vectors
from tests.fleet_sim.machines import machine_of
from tests.fleet_sim.small_fleet import SmallFleet, job, kit_of_jobs
from tests.fleet_sim.written_out import PLAIN, SITES, N, scaffold_round, size, start, tour, train, weighted

if TYPE_CHECKING:
    from collections.abc import Iterator

    from coordinator.records import RoundPlanned

Refusal = tuple[str, str] | None
HALVES = [("scaffold", "control", "control"), ("feddyn", "drift", "h")]
"""What the server and what the devices keep."""


def hot_in(fleet: list[SmallFleet], device: str, rounds: tuple[int, ...]) -> Any:
    """Declines of a device's owner in some rounds."""

    def objection() -> Refusal:
        return ("hot", "81 degrees") if len(fleet[0].job("job").history) + 1 in rounds else None

    return objection


def led(strategy: str, hot: dict[str, tuple[int, ...]], status: str = "done", **changes: Any) -> SmallFleet:
    """Run a job in which these devices decline in these rounds, and that ends in this state."""
    fleet: list[SmallFleet] = []
    objections = {device: hot_in(fleet, device, rounds) for device, rounds in hot.items()}
    fleet.append(SmallFleet(SITES, objections=objections))
    fleet[0].submit(job(**{"strategy": strategy, **PLAIN, "rounds": 3, **changes}))
    state = fleet[0].run("job")
    assert state.status == status, state.detail
    return fleet[0]


def rounds_of(fleet: SmallFleet) -> Iterator[tuple[int, RoundPlanned]]:
    return enumerate(fleet.ledger.plans, 1)


def check_close(fleet: SmallFleet, expected: np.ndarray) -> None:
    np.testing.assert_allclose(fleet.model(), expected, rtol=0, atol=2e-5)


def kept_vector(fleet: SmallFleet, name: str) -> np.ndarray:
    return vectors.load(fleet.stores[CLOUD].blobs, fleet.job("job").vectors[name], kit_of_jobs().model)


def test_skipped_visit_removes_its_samples_from_tour_weight() -> None:
    fleet = led(
        "fedseq", {"dev-5": (2,)}, estimator__epochs=1, arranger__sets=2, arranger__size=3, schedule__fraction=1.0
    )
    w = start()
    for number, plan in rounds_of(fleet):
        went = [tuple(d for d in t.hops if (d, number) != ("dev-5", 2)) for t in plan.tours]
        w = weighted([tour(w, hops, number) for hops in went])
    check_close(fleet, w)
    assert [report.visits for report in fleet.job("job").history] == [6, 5, 6]


def test_failed_tour_keeps_its_slot_and_weight() -> None:
    fleet = led("fedcat", {"dev-0": (1, 2), "dev-4": (2,)}, arranger__sets=3, rounds=4)
    lost = {("dev-0", 1), ("dev-0", 2), ("dev-4", 2)}
    w, missed = start(), 0
    held: list[tuple[np.ndarray, float]] = []
    for number, plan in rounds_of(fleet):
        held = [(w, 0.0)] * 3 if (number - 1) % 3 == 0 else held
        for i, t in enumerate(plan.tours):
            if (t.hops[0], number) in lost:
                missed += 1
                continue
            model, more = tour(held[i][0], t.hops, number)
            held[i] = model, held[i][1] + more
        if number in (3, 4):
            w = weighted(held)
    assert missed > 0
    check_close(fleet, w)


def test_declining_device_does_not_block_its_fedcat_group() -> None:
    fleet = led("fedcat", {"dev-0": tuple(range(1, 20))}, arranger__sets=3, rounds=9)
    picked = [t.hops[0] for _, plan in rounds_of(fleet) for t in plan.tours]
    assert 0 < picked.count("dev-0") < 9
    counts = fleet.job("job").memo
    assert sum(sum(memo[1:]) for memo in counts.values()) == len(picked)


def test_lost_visit_changes_no_control_variate() -> None:
    fleet = led("scaffold", {"dev-1": (1, 3), "dev-2": (2,)})
    lost = {("dev-1", 1), ("dev-1", 3), ("dev-2", 2)}
    w, c = start(), np.zeros_like(start())
    mine: dict[str, np.ndarray] = {}
    for number, plan in rounds_of(fleet):
        there = [t.hops[0] for t in plan.tours if (t.hops[0], number) not in lost]
        w, c = scaffold_round(w, c, mine, number, there)
    check_close(fleet, w)
    np.testing.assert_allclose(kept_vector(fleet, "control"), c, rtol=0, atol=1e-5)
    np.testing.assert_allclose(c, sum(mine.values()) / N, rtol=0, atol=1e-12)


@pytest.mark.parametrize("strategy", ["scaffold", "feddyn", "fedadam", "fedavgm"])
def test_round_without_results_changes_nothing_on_the_server(strategy: str) -> None:
    all_fail: dict[str, tuple[int, ...]] = {f"dev-{n}": (2,) for n in range(6)}
    fleet = led(strategy, all_fail, "failed", rounds=2, fleet__timeout=300.0)
    short = led(strategy, {}, rounds=1)
    assert len(fleet.job("job").history) == 1
    assert fleet.job("job").vectors.keys() == short.job("job").vectors.keys()
    for name in short.job("job").vectors:
        assert np.array_equal(kept_vector(fleet, name), kept_vector(short, name))


def test_failed_leg_passes_on_the_received_model() -> None:
    fleet = led("chain", {"dev-0": (1,), "dev-1": (1,), "dev-2": (1,)}, rounds=None)
    ((_, plan),) = rounds_of(fleet)
    assert {t.site for t in plan.tours} == {"site-a", "site-b"}
    check_close(fleet, tour(start(), next(t.hops for t in plan.tours if t.site == "site-b"), 1)[0])


def test_wave_skips_a_declining_device_and_asks_again_next() -> None:
    fleet = led("hierfavg", {"dev-0": (1,)}, rounds=2, schedule__edge_merges=2)
    w = start()
    for number, plan in rounds_of(fleet):
        edges = []
        for t in plan.tours:
            here, edge = [k for k in t.hops if (k, number) != ("dev-0", 1)], w
            for wave in range(2):
                edge = weighted([(train(edge, k, number, repeat=wave)[0], size(k)) for k in here])
            edges.append((edge, sum(size(k) for k in here)))
        w = weighted(edges)
    check_close(fleet, w)


def vanish(strategy: str, device: str, **changes: Any) -> SmallFleet:
    """Run a job in which a device leaves permanently after the first round."""
    fleet = SmallFleet(SITES)
    plain = {**PLAIN, "rounds": 3, "fleet__devices": 5, "tours__lease": 30}
    fleet.submit(job(**{"strategy": strategy, **plain, **changes}))
    fleet.world.run(lambda: len(fleet.job("job").history) == 1)
    fleet.kill(device)
    assert fleet.run("job").status == "done", fleet.job("job").detail
    return fleet


@pytest.mark.parametrize(
    ("strategy", "changes"),
    [
        ("feddyn", {}),
        ("scaffold", {}),
        ("fedseq-inter", {"estimator__epochs": 1, "arranger__sets": 2, "arranger__size": 3}),
        ("fedcat", {"arranger__sets": 3}),
        ("fedgsp", {"schedule__beta": 2}),
        ("clusamp", {"arranger__sets": 3}),
        ("hierfavg", {}),
        ("fedelmy-few-shot", {"schedule__trips": 3, "rounds": None, "objective__models": 1, "objective__warmup": 0}),
    ],
)
def test_permanently_lost_device_does_not_stop_the_job(strategy: str, changes: dict[str, Any]) -> None:
    fleet = vanish(strategy, "dev-1", **changes)
    assert np.isfinite(fleet.model()).all()
    assert all("dev-1" not in t.hops for t in fleet.ledger.plans[-1].tours)
    assert len(fleet.job("job").history) == 3


def is_planned(fleet: SmallFleet) -> bool:
    return bool(fleet.ledger.plans)


def first_round_is_over(fleet: SmallFleet) -> bool:
    return len(fleet.job("job").history) == 1 and not fleet.job("job").tours


@pytest.mark.parametrize("strategy", ["feddyn", "scaffold", "metafed"])
def test_memory_survives_a_restart_and_its_loss_is_reported(strategy: str) -> None:
    phases = {"rounds": None, "schedule__trips": 1, "objective__warmup": 2, "objective__threshold": -0.5}
    text = job(**{"strategy": strategy, **PLAIN, **(phases if strategy == "metafed" else {"rounds": 3})})
    plain, restarted, robbed = (SmallFleet(SITES) for _ in range(3))
    for fleet in (plain, restarted, robbed):
        fleet.submit(text)
        fleet.world.run(partial(first_round_is_over, fleet))
        if fleet is not plain:
            fleet.kill("dev-3")
            if fleet is robbed:
                del fleet.stores["dev-3"]
            fleet.start("dev-3")
        assert fleet.run("job").status == "done"
    assert np.array_equal(restarted.model(), plain.model())
    assert [report.failures for report in restarted.job("job").history] == [(), (), ()]
    assert not np.array_equal(robbed.model(), plain.model())
    lines = [line for report in robbed.job("job").history for line in report.failures]
    assert any("dev-3: lost its memory of this job (it has 0 of 1 visits)" in line for line in lines)
    machine = robbed.nodes["dev-3"].node.machine
    assert isinstance(machine, Agent)
    assert list(machine.state.memory) == ["job"]


def remembered(fleet: SmallFleet, name: str) -> dict[str, np.ndarray]:
    """Return each device's memory of the job."""
    found = {}
    for device in (device for devices in SITES.values() for device in devices):
        memory = machine_of(fleet, device, Agent).state.memory.get("job")
        if memory:
            found[device] = vectors.load(fleet.stores[device].blobs, memory.vectors[name], kit_of_jobs().model)
    return found


@pytest.mark.parametrize(("strategy", "server", "device"), HALVES)
@pytest.mark.parametrize("late", ["joins", "rests"])
def test_server_state_stays_the_mean_of_device_states(strategy: str, server: str, device: str, late: str) -> None:
    fleet = SmallFleet(SITES)
    changes = {"fleet__devices": 5, "rounds": 5, "tours__lease": 30}
    if late == "joins":
        fleet.kill("dev-5")
    fleet.submit(job(**{"strategy": strategy, **PLAIN, **changes}))
    fleet.world.run(partial(first_round_is_over, fleet))
    fleet.start("dev-5") if late == "joins" else fleet.kill("dev-5")
    fleet.world.run(lambda: len(fleet.job("job").history) == 3 and not fleet.job("job").tours)
    if late == "rests":
        fleet.start("dev-5")
    assert fleet.run("job").status == "done"
    halves = remembered(fleet, device)
    assert len(halves) == 6
    mean = sum(half.astype(np.float64) for half in halves.values()) / 6
    np.testing.assert_allclose(kept_vector(fleet, server), mean, rtol=0, atol=1e-5 * np.abs(mean).max())


@pytest.mark.parametrize("encoding", ["float16", "int8"])
@pytest.mark.parametrize(("strategy", "server", "device"), HALVES)
def test_compressed_models_keep_server_and_devices_consistent(
    strategy: str, server: str, device: str, encoding: str
) -> None:
    fleet = led(strategy, {}, encoding=encoding, rounds=4)
    mean = sum(half.astype(np.float64) for half in remembered(fleet, device).values()) / 6
    np.testing.assert_allclose(kept_vector(fleet, server), mean, rtol=0, atol=1e-4 * np.abs(mean).max())


def test_late_device_is_estimated_from_the_first_model_and_joins() -> None:
    text = {"strategy": "visit", **PLAIN, "estimator__epochs": 1, "arranger__size": 3, "rounds": 3, "fleet__devices": 5}
    early, late = SmallFleet(SITES), SmallFleet(SITES)
    late.kill("dev-5")
    for fleet in (early, late):
        fleet.submit(job(**text))
    late.world.run(lambda: len(late.job("job").history) == 1)
    late.start("dev-5")
    assert early.run("job").status == late.run("job").status == "done"
    assert late.job("job").signatures["dev-5"] == early.job("job").signatures["dev-5"]
    assert any("dev-5" in t.hops for t in late.ledger.plans[-1].tours)


def test_device_arriving_after_the_sets_is_named_and_skipped() -> None:
    fleet = SmallFleet(SITES)
    fleet.kill("dev-5")
    text = {"strategy": "fedseq", **PLAIN, "estimator__epochs": 1, "arranger__max_devices": 2, "rounds": 3}
    fleet.submit(job(**{**text, "fleet__devices": 5}))
    fleet.world.run(lambda: len(fleet.job("job").history) == 1)
    fleet.start("dev-5")
    state = fleet.run("job")
    assert "dev-5" not in state.signatures
    skipped = "skipped, they connected after the sets"
    left_out = [line for line in state.history[-1].failures if line.startswith(skipped)]
    assert [line.rpartition(": ")[2] for line in left_out] == ["dev-5"]


def test_spare_device_sends_its_own_update() -> None:
    fleet = led(
        "clusamp",
        {"dev-0": (1,), "dev-1": (1,), "dev-2": (1,)},
        arranger__sets=3,
        rounds=1,
        tours__on_lost_visit="swap",
        tours__spares=3,
    )
    state = fleet.job("job")
    assert set(state.weights) == set(state.visits)
    assert not {"dev-0", "dev-1", "dev-2"} & set(state.weights)


def test_failed_estimation_is_retried_later() -> None:
    fleet: list[SmallFleet] = []
    hot = {f"dev-{n}": lambda: ("hot", "81 degrees") if fleet[0].world.now < 50 else None for n in range(6)}
    fleet.append(SmallFleet(SITES, objections=hot))
    fleet[0].submit(job(**{"strategy": "visit", **PLAIN, "estimator__epochs": 1, "arranger__size": 2, "rounds": 1}))
    fleet[0].world.run(lambda: fleet[0].world.now > 40)
    assert fleet[0].job("job").detail == (
        "every device declines for now: no device could be estimated: 6 devices (dev-0, dev-1, dev-2, dev-3, "
        "dev-4, dev-5): declined, hot: 81 degrees. The next attempt starts in 60 s, or when another device connects"
    )
    assert fleet[0].run("job").status == "done"


def test_no_arrangement_before_every_site_reported_its_devices() -> None:
    for seed in range(6):
        fleet = SmallFleet(SITES, Faults(loss=0.3, delay=0.05, spread=1.0, seed=seed))
        fleet.submit(job(**{"strategy": "chain", **PLAIN, "rounds": None, "fleet__devices": 1}))
        fleet.world.run(partial(is_planned, fleet))
        born = set(machine_of(fleet, CLOUD, Coordinator).sites._epochs)
        assert {t.site for t in fleet.ledger.plans[0].tours} == born
