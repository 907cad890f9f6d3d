"""A coordinator restored from a backup while its job runs continues it, whenever the backup was made."""

from __future__ import annotations

import copy
import time
from typing import TYPE_CHECKING, TypeVar

import numpy as np
import pytest

from coordinator.admin.backup import back_up, restore
from coordinator.machine.coordinator import Coordinator
from coordinator.records import ENDED
from fleet_sim.world.memory_fleet import CLOUD
from sojourn.node.replay import replay
from sojourn.store.journal import FolderStore, MemoryStore
from tests.fleet_sim.machines import machine_of
from tests.fleet_sim.small_fleet import TWO_SITES, SmallFleet
from tests.fleet_sim.test_damage import JOBS, Written, records_of, store_of, undisturbed
from tests.there import there

if TYPE_CHECKING:
    from pathlib import Path


class BackedUpFleet(SmallFleet):
    """A fleet whose coordinator is backed up and restored; store and backup are in memory."""

    def __init__(self) -> None:
        super().__init__(TWO_SITES)
        self.kept: MemoryStore | None = None
        self.boot()

    def boot(self) -> None:
        self.kill(CLOUD)
        self.start(CLOUD)
        self.written = Written(self, CLOUD)

    def until(self, records: int) -> None:
        """Run until the coordinator has written N records since its start, or the job is over."""
        jobs = machine_of(self, CLOUD, Coordinator).state.jobs
        self.world.run(lambda: self.written.count >= records or jobs["job"].status in ENDED, self.world.now + 5000)

    def back_up(self) -> None:
        self.kept = copy.deepcopy(store_of(self, CLOUD))

    def restore(self) -> None:
        """Replace the lost coordinator by its backup, with new numbers, as `coordinator.admin.backup` does."""
        store, machine = copy.deepcopy(there(self.kept)), Coordinator(CLOUD)
        replay(machine, store, 0)
        now = int(time.time())  # read once: the two numbers are one, also at the end of a second
        machine.reserve_newer_attempts(now)
        store.snapshot(machine.snapshot())
        store._boots = now
        self.stores[CLOUD] = store
        self.boot()


class FolderFleet(BackedUpFleet):
    """The same with a store on disk, and the commands of an operator."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder
        super().__init__()

    def boot(self) -> None:
        self.kill(CLOUD)
        self.stores[CLOUD] = FolderStore(self.folder / "store")
        super().boot()

    def back_up(self) -> None:
        back_up(self.folder / "store", self.folder / "backup.tar")

    def restore(self) -> None:
        self.stores[CLOUD].close()
        restore(self.folder / "backup.tar", self.folder / "store", force=True)
        self.boot()


F = TypeVar("F", bound=BackedUpFleet)


def check(fleet: BackedUpFleet, strategy: str) -> None:
    """Check that the job ended like the undisturbed one."""
    assert fleet.run("job", 5000).status == "done", fleet.job("job").detail
    assert len(fleet.job("job").history) == 2
    assert np.array_equal(fleet.model(), undisturbed(strategy).model)


def restored(fleet: F, strategy: str, made: int, lost: int) -> F:
    """Run a job with a backup after N records, and a restore after M more."""
    fleet.submit(JOBS[strategy])
    fleet.until(made)
    fleet.back_up()
    fleet.until(made + lost)
    fleet.restore()
    return fleet


@pytest.mark.parametrize("strategy", JOBS)
def test_job_resumes_from_a_backup_taken_at_any_time(strategy: str, tmp_path: Path) -> None:
    last = records_of(CLOUD, JOBS[strategy])
    for made in range(2, last):
        for lost in {made * 5 % (last - made + 1), (last - made) * (made % 2)}:  # some; all or nothing, in turns
            check(restored(BackedUpFleet(), strategy, made, lost), strategy)


def test_backup_on_disk_can_be_restored_twice(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Requests after the second restore are distinct from those after the first."""
    fleet = restored(FolderFleet(tmp_path), "visit", 9, 3)
    fleet.until(4)
    later = time.time() + 60
    monkeypatch.setattr(time, "time", lambda: later)
    fleet.restore()
    check(fleet, "visit")
    fleet.stores[CLOUD].close()
