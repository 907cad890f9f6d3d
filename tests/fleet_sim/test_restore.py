"""A coordinator restored from a backup while its job runs goes on with it, whenever the backup was made."""

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
    """A fleet whose coordinator is backed up and restored; its store is in memory, and so is the backup."""

    def __init__(self) -> None:
        super().__init__(TWO_SITES)
        self.kept: MemoryStore | None = None
        self.boot()

    def boot(self) -> None:
        self.kill(CLOUD)
        self.start(CLOUD)
        self.written = Written(self, CLOUD)

    def until(self, records: int) -> None:
        """Let things happen until the coordinator has written so many records since its start, or the job is over."""
        jobs = machine_of(self, CLOUD, Coordinator).state.jobs
        self.world.run(lambda: self.written.count >= records or jobs["job"].status in ENDED, self.world.now + 5000)

    def back_up(self) -> None:
        self.kept = copy.deepcopy(store_of(self, CLOUD))

    def restore(self) -> None:
        """The coordinator is lost, and its backup takes its place, numbered anew as by `coordinator.admin.backup`."""
        store, machine = copy.deepcopy(there(self.kept)), Coordinator(CLOUD)
        replay(machine, store, 0)
        now = int(time.time())  # read once: the two numbers are one, also at the end of a second
        machine.mend(now)
        store.snapshot(machine.snapshot())
        store._boots = now
        self.stores[CLOUD] = store
        self.boot()


class FolderFleet(BackedUpFleet):
    """The same with a store on a disk, and the commands of an operator."""

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
    """The job ended as the undisturbed one did."""
    assert fleet.run("job", 5000).status == "done", fleet.job("job").detail
    assert len(fleet.job("job").history) == 2
    assert np.array_equal(fleet.model(), undisturbed(strategy).model)


def restored(fleet: F, strategy: str, made: int, lost: int) -> F:
    """A backup is made after so many records, and so many more are lost."""
    fleet.submit(JOBS[strategy])
    fleet.until(made)
    fleet.back_up()
    fleet.until(made + lost)
    fleet.restore()
    return fleet


@pytest.mark.parametrize("strategy", JOBS)
def test_a_job_goes_on_from_a_backup_of_any_moment(strategy: str, tmp_path: Path) -> None:
    last = records_of(CLOUD, JOBS[strategy])
    for made in range(2, last):
        for lost in {made * 5 % (last - made + 1), (last - made) * (made % 2)}:  # some; all or nothing, in turns
            check(restored(BackedUpFleet(), strategy, made, lost), strategy)


def test_a_backup_on_the_disk_may_be_restored_twice(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """What was asked for after the first time is not taken for what is asked for after the second."""
    fleet = restored(FolderFleet(tmp_path), "visit", 9, 3)
    fleet.until(4)
    later = time.time() + 60
    monkeypatch.setattr(time, "time", lambda: later)
    fleet.restore()
    check(fleet, "visit")
    fleet.stores[CLOUD].close()
