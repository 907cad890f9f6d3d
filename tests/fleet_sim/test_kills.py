"""Kill -9 of any process at any moment: the same bits, no finished visit trained again, no result counted twice."""

from __future__ import annotations

from functools import cache
from itertools import cycle
from typing import TYPE_CHECKING

import numpy as np
import pytest

from sojourn.node import node as node_module
from sojourn.store.memory_blobs import MemoryBlobs
from tests.fleet_sim.small_fleet import TWO_SITES, Run, SmallFleet, fedavg, run, visit

if TYPE_CHECKING:
    from collections.abc import Sequence

    from fleet_sim.world.memory_fleet import MemoryFleet

JOB = visit(fleet__devices=4)
NODES = ("dev-0", "dev-2", "site-a", "site-b", "cloud")


@cache
def undisturbed(text: str = JOB) -> Run:
    return run(text)


def after(fleet: MemoryFleet, events: int) -> None:
    """Run this many events."""
    left = iter(range(events))
    fleet.world.run(lambda: next(left, None) is None)


def wait(fleet: MemoryFleet, seconds: float) -> None:
    """Advance time."""
    passed: list[bool] = []
    fleet.world.later(seconds, lambda: passed.append(True))
    fleet.world.run(lambda: bool(passed))


def killed(names: Sequence[str], events: int, pause: float, text: str = JOB) -> SmallFleet:
    """Run a job during which these nodes were killed after N events, and restarted after a pause."""
    fleet = SmallFleet(TWO_SITES)
    fleet.submit(text)
    after(fleet, events)
    for name in names:
        fleet.kill(name)
    wait(fleet, pause)
    for name in names:
        fleet.start(name)
    fleet.run("job", 5000)
    return fleet


def check(fleet: SmallFleet, text: str = JOB) -> None:
    """Check that the job ended like the undisturbed one, and that nothing was done twice."""
    expected = undisturbed(text)
    assert fleet.job("job").status == "done", fleet.job("job").detail
    assert np.array_equal(fleet.model(), expected.model)
    assert set(fleet.ledger.finished.values()) == {1}
    assert set(fleet.ledger.kept.values()) == {1}
    assert fleet.ledger.kept.keys() == expected.fleet.ledger.kept.keys()
    assert fleet.ledger.finished.keys() == expected.fleet.ledger.finished.keys()
    resumed = [(it.round, it.visits, it.tours, it.lost, it.accuracy) for it in fleet.job("job").history]
    assert resumed == [(it.round, it.visits, it.tours, it.lost, it.accuracy) for it in expected.state.history]


def events_of(text: str = JOB) -> int:
    """Return the number of events in an undisturbed run."""
    return undisturbed(text).fleet.world._count


@pytest.mark.parametrize("name", NODES)
def test_node_killed_at_any_time_gives_the_same_bits(name) -> None:
    for moment, pause in zip(range(1 + NODES.index(name), events_of(), 17), cycle([0.03, 4.0]), strict=False):
        check(killed([name], moment, pause))


@pytest.mark.parametrize("name", NODES)
def test_node_killed_during_blob_transfer_gives_the_same_bits(name, monkeypatch) -> None:
    monkeypatch.setattr(node_module, "INLINE", 0)
    undisturbed.cache_clear()
    for moment in range(2 + NODES.index(name), events_of(), 37):
        check(killed([name], moment, 1.0))
    undisturbed.cache_clear()


@pytest.mark.parametrize("names", [("site-a", "cloud"), ("dev-0", "site-a"), ("dev-0", "dev-1", "dev-2"), NODES])
def test_several_nodes_killed_at_once_give_the_same_bits(names) -> None:
    for moment in range(5, events_of(), 31):
        check(killed(names, moment, 2.0))


@pytest.mark.parametrize("text", [fedavg(fleet__devices=4), visit(fleet__devices=4, encoding="int8")])
def test_other_jobs_survive_kills(text) -> None:
    for name in ("dev-0", "site-a", "cloud"):
        for moment in range(7, events_of(text), 41):
            check(killed([name], moment, 1.0, text), text)


def test_repeatedly_killed_nodes_give_the_same_bits() -> None:
    fleet = SmallFleet(TWO_SITES)
    fleet.submit(JOB)
    for turn in range(60):
        after(fleet, 7)
        name = NODES[turn % len(NODES)]
        fleet.kill(name)
        wait(fleet, 0.3)
        fleet.start(name)
    fleet.run("job", 5000)
    check(fleet)


def test_only_the_interrupted_visit_is_trained_again() -> None:
    fleet = SmallFleet(TWO_SITES)
    fleet.submit(JOB)
    fleet.world.run(lambda: any(device == "dev-0" for device, _ in fleet.ledger.begun))
    fleet.kill("dev-0")
    fleet.start("dev-0")
    fleet.run("job")
    begun = [count for (device, _), count in fleet.ledger.begun.items() if device == "dev-0"]
    assert sorted(begun) == [1] * (len(begun) - 1) + [2]
    check(fleet)


def test_result_waits_for_an_offline_edge_server() -> None:
    fleet = SmallFleet(TWO_SITES)
    fleet.submit(JOB)
    fleet.world.run(lambda: any(device == "dev-0" for device, _ in fleet.ledger.begun))
    fleet.kill("site-a")
    fleet.world.run(lambda: any(device == "dev-0" for device, _ in fleet.ledger.finished))
    fleet.kill("dev-0")
    wait(fleet, 30)
    fleet.start("dev-0")
    wait(fleet, 30)
    fleet.start("site-a")
    fleet.run("job")
    assert all(count == 1 for (device, _), count in fleet.ledger.begun.items() if device == "dev-0")
    check(fleet)


def test_frequent_snapshots_change_nothing(monkeypatch) -> None:
    monkeypatch.setattr(node_module, "RECORDS_PER_SNAPSHOT", 1)
    for name in ("dev-0", "site-a", "cloud"):
        for moment in range(3, events_of(), 41):
            check(killed([name], moment, 1.0))


def test_unreferenced_blobs_are_swept(monkeypatch) -> None:
    monkeypatch.setattr(node_module, "SECONDS_PER_SWEEP", 0.1)
    fleet = SmallFleet(TWO_SITES)
    fleet.submit(visit(fleet__devices=4, rounds=6))
    assert fleet.run("job").status == "done"
    wait(fleet, 60)
    for name, node in fleet.nodes.items():
        node.node.tick(fleet.world.now)
        blobs = fleet.stores[name].blobs
        assert isinstance(blobs, MemoryBlobs)
        held = set(blobs._blobs)
        assert held <= set(node.node.machine.live()), name
        assert len(held) <= 8, name
