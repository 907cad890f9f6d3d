"""Limits on a real training process: slowed or ended with a reason, with unchanged results."""

from __future__ import annotations

import os
import time
from pathlib import Path
from typing import TYPE_CHECKING

import numpy as np
import pytest

from edge_agent.limits import Limits, LimitSettings
from edge_agent.training.messages import Trained
from edge_agent.training.process import TrainingProcess
from edge_agent.training.trainer import Trainer
from edge_agent.training.worker import pacing_of
from sojourn.data.source import DataSettings
from sojourn.node.machine import WorkDone, WorkFailed
from tests.edge_agent.limits.fake_root import FakeRoot
from tests.edge_agent.training.kits import CLASSES, visit_for
from tests.edge_agent.training.test_process import NEVER_IDLE, Office, gone
from tests.there import there
from tests.waiting import wait_until

if TYPE_CHECKING:
    from collections.abc import Iterator

    from edge_agent.limits import Refusal


class Owner:
    """Creates training processes with limits, on a machine with a settable temperature."""

    def __init__(self, folder: Path) -> None:
        self.folder, self.root = folder, FakeRoot(folder)
        self.offices: list[Office] = []

    def office(self, **limits) -> Office:
        settings = LimitSettings(root=str(self.root.path), **limits)
        self.offices.append(Office(self.folder, limits=Limits(settings, self.folder)))
        return self.offices[-1]


@pytest.fixture
def owner(tmp_path: Path) -> Iterator[Owner]:
    owner = Owner(tmp_path)
    yield owner
    for office in owner.offices:
        office.workers.close()


def cores_used(pid: int, seconds: float) -> float:
    """Return the average number of cores that a process uses during this many seconds of processor time.

    It is never more than it really is: a busy machine, which stalls that process or this one, only makes it less.
    """

    def spent() -> float:
        fields = Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()
        return (int(fields[11]) + int(fields[12])) / os.sysconf("SC_CLK_TCK")

    began, before = time.monotonic(), spent()
    wait_until(lambda: spent() >= before + seconds, f"{seconds} s of a processor")
    return seconds / (time.monotonic() - began)


def test_heat_slows_then_ends_training_until_cooled(owner, caplog) -> None:
    caplog.set_level("INFO")
    owner.root.heat(40)
    office = owner.office(throttle_at=70, stop_at=80)
    pid = office.begin_endless("visit")
    owner.root.heat(79)
    wait_until(lambda: "training slowed" in caplog.text, "the log of the slower pace", lambda: caplog.text)
    # A fifth of the time on one thread, from when the process has received it.
    wait_until(lambda: cores_used(pid, 0.2) < 0.35, "a slower training process")
    owner.root.heat(85)
    outcome = office.outcome()
    assert outcome == WorkFailed("visit", "hot", "85 °C; training resumes below 70 °C")
    wait_until(lambda: gone(pid), "the end of the training process")
    office.train("early")
    assert office.outcome() == WorkFailed("early", "hot", "85 °C; training resumes below 70 °C")
    owner.root.heat(60)
    office.train("late")
    assert isinstance(office.outcome(), WorkDone)


def test_slowed_training_gives_the_same_bits(owner) -> None:
    owner.root.heat(78)
    office = owner.office(throttle_at=70, stop_at=80, cpu_share=0.3)
    office.train("visit", epochs=10, momentum=0.9)
    slow = office.outcome()
    assert isinstance(slow, WorkDone)
    plain = Trainer(office.blobs, office.data).perform(visit_for(office.blobs, epochs=10, momentum=0.9))
    assert isinstance(plain, Trained)
    assert slow.outcome.vectors == plain.vectors
    assert slow.outcome.metrics["loss"] == plain.metrics["loss"]


def test_training_process_keeps_its_core_share(owner) -> None:
    office = owner.office(cpu_share=0.1)
    assert pacing_of(office.workers._setup).cores == 0.1 * (os.cpu_count() or 1)
    pid = office.begin_endless("visit")
    # It may briefly use more, after the machine gave it less.
    wait_until(lambda: cores_used(pid, 0.3) / (os.cpu_count() or 1) < 0.15, "a training process that keeps to it")


def test_exceeding_the_memory_limit_ends_the_visit(owner) -> None:
    office = owner.office(memory=20)  # Python and onnxruntime already use more
    office.train("visit")
    outcome = office.outcome()
    assert isinstance(outcome, WorkFailed)
    assert (outcome.key, outcome.reason) == ("visit", "memory")
    assert "the limit is 20 MB" in outcome.detail
    assert office.workers._child is None


def test_data_too_large_for_memory_fails_before_loading(tmp_path, owner) -> None:
    office = owner.office()
    large = np.zeros((300_000, 1, 8, 8), np.float64)
    np.savez_compressed(tmp_path / "large.npz", x=large, y=np.array(CLASSES)[np.arange(len(large)) % 3])
    settings = DataSettings(path=str(tmp_path / "large.npz"))
    office.workers.close()
    limits = Limits(LimitSettings(memory=120), tmp_path)
    workers = TrainingProcess(tmp_path / "blobs", settings, idle_seconds=NEVER_IDLE, limits=limits)
    try:
        workers.start("visit", visit_for(office.blobs), office.received.put)
        outcome = office.outcome()
        assert isinstance(outcome, WorkFailed)
        assert outcome.reason == "memory"
        pid = there(workers._child).process.pid  # the child itself reported it, and continues
        workers.start("warm", visit_for(office.blobs), office.received.put)
        assert office.outcome().key == "warm"
        assert there(workers._child).process.pid == pid
    finally:
        workers.close()


def test_visit_within_its_memory_limit_trains(owner) -> None:
    office = owner.office(memory=400, free_memory=1, free_disk=1)
    owner.root.memory(50)
    office.train("visit")
    assert isinstance(office.outcome(), WorkDone)


class Meddler(Limits):
    """Exceeded limits, with the work cancelled during the check."""

    def __init__(self) -> None:
        super().__init__(LimitSettings(stop_at=80), Path())
        self.office: Office | None = None

    def judge(self, worker: int | None = None) -> tuple[float, Refusal | None]:
        del worker
        if self.office is None:
            return 1.0, None
        office, self.office = self.office, None
        office.workers.stop("visit")
        return 1.0, ("hot", "")


def test_work_stopped_during_a_limit_check_is_not_reported(tmp_path) -> None:
    meddler = Meddler()
    office = Office(tmp_path, limits=meddler)
    try:
        meddler.office = office
        office.train("visit", epochs=1_000_000)
        wait_until(lambda: meddler.office is None, "a look at the limits")
        office.train("next")
        assert office.outcome().key == "next"
    finally:
        office.workers.close()
