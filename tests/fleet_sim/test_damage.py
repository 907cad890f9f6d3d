"""A damaged record in any role's journal during a job: the node starts, and the job continues."""

from __future__ import annotations

import logging
from functools import cache
from typing import TYPE_CHECKING

import numpy as np
import pytest

from coordinator.machine.coordinator import Coordinator
from fleet_sim.world.memory_fleet import CLOUD
from sojourn.node import node as node_module
from sojourn.store.journal import MemoryStore
from tests.fleet_sim.machines import machine_of
from tests.fleet_sim.small_fleet import TWO_SITES, Run, SmallFleet, fedavg, job, run, visit
from tests.fleet_sim.test_kills import wait

if TYPE_CHECKING:
    from collections.abc import Callable

JOBS = {
    "visit": visit(fleet__devices=4),
    "fedavg": fedavg(fleet__devices=4),
    "hierfavg": job(strategy="hierfavg", schedule__edge_merges=2, fleet__devices=4),
}
NODES = ("dev-0", "dev-2", "site-a", CLOUD)
PLACES = [(name, strategy) for name in NODES for strategy in JOBS if name != "dev-2" or strategy == "visit"]
"""Differences of a second device from the first: in VISIT, it comes later in its tour."""


@cache
def undisturbed(name: str) -> Run:
    return run(JOBS[name])


def flipped(data: bytes, at: int) -> bytes:
    at %= len(data)
    return data[:at] + bytes([data[at] ^ 0x10]) + data[at + 1 :]


def cut_short(data: bytes, at: int) -> bytes:
    return data[: at % len(data)]


def store_of(fleet: SmallFleet, name: str) -> MemoryStore:
    store = fleet.stores[name]
    assert isinstance(store, MemoryStore)
    return store


def has_job(fleet: SmallFleet) -> bool:
    return "job" in machine_of(fleet, CLOUD, Coordinator).state.jobs


class Written:
    """Counts the records that a node has written, over all restarts."""

    def __init__(self, fleet: SmallFleet, name: str) -> None:
        self.count = 0
        fleet.nodes[name].node.on_record(self._one_more)

    def _one_more(self, _record: object) -> None:
        self.count += 1


def records_of(name: str, text: str) -> int:
    """Return how many records a node writes in an undisturbed run."""
    fleet = SmallFleet(TWO_SITES)
    written = Written(fleet, name)
    fleet.submit(text)
    fleet.run("job")
    return written.count


def damaged(text: str, name: str, moment: int, which: int, harm: Callable[[bytes, int], bytes]) -> SmallFleet:
    """Run a job during which a node was killed after N records, and one of them was damaged before its restart."""
    fleet = SmallFleet(TWO_SITES)
    written = Written(fleet, name)
    fleet.submit(text)
    fleet.world.run(lambda: written.count >= moment)
    fleet.kill(name)
    wait(fleet, 1.0)
    records = store_of(fleet, name)._records
    records[which] = records[which]._replace(data=harm(records[which].data, 7 * moment + 3 * which))
    fleet.start(name)
    if has_job(fleet):
        fleet.run("job", 5000)
    return fleet


def check(fleet: SmallFleet, name: str, strategy: str) -> None:
    """Check that the job finished undisturbed, or was lost with its submission record."""
    aside = store_of(fleet, name).quarantined()
    assert aside
    if not has_job(fleet):
        assert name == CLOUD
        fleet.submit(JOBS[strategy])
        fleet.run("job", 5000)
    assert fleet.job("job").status == "done", fleet.job("job").detail
    assert len(fleet.job("job").history) == 2
    assert np.array_equal(fleet.model(), undisturbed(strategy).model)


@pytest.mark.parametrize(("name", "strategy"), PLACES)
def test_job_finishes_after_damage_to_any_record(name: str, strategy: str) -> None:
    """Every record is damaged once: while it is the newest, or when others have followed it."""
    text = JOBS[strategy]
    last = records_of(name, text)
    for which in range(last - 1):
        moment = which + 1 if which % 2 else which + 1 + (3 * which) % (last - which - 1)
        check(damaged(text, name, moment, which, cut_short if which % 3 else flipped), name, strategy)


@pytest.mark.parametrize("moment", range(4, 16))
def test_coordinator_continues_after_earlier_models_are_swept(moment: int, monkeypatch: pytest.MonkeyPatch) -> None:
    """Rounds closed since then count, and the last one is repeated."""
    monkeypatch.setattr(node_module, "SECONDS_PER_SWEEP", 0.1)
    for which in range(1 + moment % 2, moment, 2):
        fleet = damaged(JOBS["fedavg"], CLOUD, moment, which, flipped)
        check(fleet, CLOUD, "fedavg")


def test_log_names_the_lost_record_and_the_remedy(caplog: pytest.LogCaptureFixture) -> None:
    damaged(JOBS["visit"], CLOUD, 9, 0, flipped)
    words = [record.getMessage() for record in caplog.records if record.levelno == logging.ERROR]
    for part in (
        "set aside record 1 (job-submitted/1): wrong checksum; content: A job was queued",
        "its job 'job' is missing: submit that again",
        "set aside 1 more",
        "sojourn coordinator restore FILE --force",
    ):
        assert any(part in it for it in words), part


@pytest.mark.parametrize("name", NODES)
def test_damaged_snapshot_loses_only_its_content(name: str) -> None:
    """In memory there is one generation: the node starts empty, and its peers send its state again."""
    fleet = SmallFleet(TWO_SITES)
    written = Written(fleet, name)
    fleet.submit(JOBS["fedavg"])
    fleet.world.run(lambda: written.count >= 6)
    fleet.kill(name)
    store = store_of(fleet, name)
    store.snapshot(fleet.nodes[name].node.machine.snapshot())
    assert store._snapshot is not None
    store._snapshot = store._snapshot._replace(data=flipped(store._snapshot.data, 10))
    fleet.start(name)
    if name != CLOUD:
        fleet.run("job", 5000)
    check(fleet, name, "fedavg")
