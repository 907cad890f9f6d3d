"""A blob that a journal references is deleted by hand: every role continues without it, or reports what is missing."""

from __future__ import annotations

from typing import TYPE_CHECKING

import numpy as np
import pytest

from coordinator.records import ENDED
from fleet_sim.world.memory_fleet import CLOUD
from sojourn.store.memory_blobs import MemoryBlobs
from tests.fleet_sim.small_fleet import TWO_SITES, SmallFleet
from tests.fleet_sim.test_damage import JOBS, PLACES, Written, records_of, undisturbed
from tests.fleet_sim.test_kills import wait

if TYPE_CHECKING:
    from collections.abc import Iterator


def at(strategy: str, name: str, moment: int) -> SmallFleet:
    """Return a fleet in which a node was killed after N records."""
    fleet = SmallFleet(TWO_SITES)
    written = Written(fleet, name)
    fleet.submit(JOBS[strategy])
    fleet.world.run(lambda: written.count >= moment)
    fleet.kill(name)
    wait(fleet, 1.0)
    return fleet


def held(fleet: SmallFleet, name: str) -> list[bytes]:
    blobs = fleet.stores[name].blobs
    assert isinstance(blobs, MemoryBlobs)
    return sorted(blobs._blobs)


def robbed(strategy: str, name: str) -> Iterator[SmallFleet]:
    """Yield the fleet at some moments of a job, without each of the node's blobs, and without all."""
    last = records_of(name, JOBS[strategy])
    for moment in range(2, last, max(1, last // 3)):
        fleet = at(strategy, name, moment)
        count = 0 if fleet.job("job").status in ENDED else len(held(fleet, name))
        for which in (*range(count), None) if count else ():
            fleet = at(strategy, name, moment)
            for digest in held(fleet, name) if which is None else [held(fleet, name)[which]]:
                fleet.stores[name].blobs.sweep(set(held(fleet, name)) - {digest})
            fleet.start(name)
            fleet.run("job", 5000)
            yield fleet


@pytest.mark.parametrize(("name", "strategy"), [place for place in PLACES if place[0] != CLOUD])
def test_devices_and_edge_servers_continue_without_a_blob(name: str, strategy: str) -> None:
    for fleet in robbed(strategy, name):
        state = fleet.job("job")
        assert state.status == "done", state.detail
        assert np.array_equal(fleet.model(), undisturbed(strategy).model) or any(it.lost for it in state.history)


@pytest.mark.parametrize("strategy", JOBS)
def test_coordinator_continues_or_names_the_missing_blob(strategy: str, caplog: pytest.LogCaptureFixture) -> None:
    outcomes = set()
    for fleet in robbed(strategy, CLOUD):
        state = fleet.job("job")
        outcomes.add(state.status)
        if state.status == "done":
            assert np.array_equal(fleet.model(), undisturbed(strategy).model)
        else:
            assert state.status == "refused"
            assert "is missing from the disk: restore a backup" in state.detail
    assert outcomes == {"done", "refused"}
    assert not any(record.exc_info for record in caplog.records)


def test_job_that_has_not_started_is_compiled_again(caplog: pytest.LogCaptureFixture) -> None:
    fleet = at("visit", CLOUD, 4)
    fleet.stores[CLOUD].blobs.sweep(set())
    fleet.start(CLOUD)
    assert fleet.run("job", 5000).status == "done"
    assert "it is compiled again" in caplog.text
