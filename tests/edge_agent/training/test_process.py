"""The training process: that it trains, that it can die, and that it leaves nothing behind."""

from __future__ import annotations

import gc
import os
import signal
import subprocess
import sys
import threading
from pathlib import Path
from queue import SimpleQueue
from typing import TYPE_CHECKING, Any

import msgspec
import pytest

from edge_agent.training.messages import Train, Trained, Warm, Warmed, WorkOrder
from edge_agent.training.process import TrainingProcess
from edge_agent.training.trainer import Trainer
from sojourn.data.source import DataSettings
from sojourn.node.machine import WorkDone, WorkEvent, WorkFailed, WorkProgress
from sojourn.processes import Child, filtered_environment, framed
from sojourn.store.blobs import FolderBlobs
from tests.edge_agent.training.kits import visit_for, write_data
from tests.processes import has_ended
from tests.waiting import LIMIT, wait_until

if TYPE_CHECKING:
    from collections.abc import Iterator

    from edge_agent.limits import Limits

ENDLESS = 1_000_000
NEVER_IDLE = 3600.0


class Office:
    """A training process, its folder, and all of its reports."""

    def __init__(self, folder: Path, idle_seconds: float = NEVER_IDLE, limits: Limits | None = None) -> None:
        write_data(folder / "data.npz")
        self.data = DataSettings(path=str(folder / "data.npz"))
        self.blobs = FolderBlobs(folder / "blobs")
        self.workers = TrainingProcess(folder / "blobs", self.data, idle_seconds=idle_seconds, limits=limits)
        self.received: SimpleQueue[WorkEvent] = SimpleQueue()

    def train(self, key: str, **task: Any) -> None:
        self.workers.start(key, visit_for(self.blobs, **task), self.received.put)

    def warm(self, key: str = "warm") -> None:
        visit = visit_for(self.blobs).visit
        self.workers.start(key, Warm(visit.kit, visit.task), self.received.put)

    def outcome(self) -> WorkDone | WorkFailed:
        while True:
            event = self.received.get(timeout=LIMIT)
            if not isinstance(event, WorkProgress):
                return event

    def pid(self) -> int:
        child = self.workers._child
        assert child is not None
        return child.process.pid

    def begin_endless(self, key: str) -> int:
        self.train(key, epochs=ENDLESS)
        event = self.received.get(timeout=LIMIT)
        assert event == WorkProgress(key, 0, ENDLESS * 7)
        return self.pid()


@pytest.fixture
def office(tmp_path: Path) -> Iterator[Office]:
    office = Office(tmp_path)
    yield office
    office.workers.close()


def gone(pid: int) -> bool:
    try:
        os.kill(pid, 0)
    except ProcessLookupError:
        return True
    return False


def open_files() -> set[str]:
    return {path.name for path in Path("/proc/self/fd").iterdir()}


def test_child_process_trains_like_the_inline_trainer(office: Office) -> None:
    office.warm()
    assert office.outcome() == WorkDone("warm", Warmed(50))
    office.train("visit", epochs=2, momentum=0.9)
    outcome = office.outcome()
    assert isinstance(outcome, WorkDone)
    assert outcome.key == "visit"
    here = Trainer(office.blobs, office.data).perform(visit_for(office.blobs, epochs=2, momentum=0.9))
    assert isinstance(here, Trained)
    assert outcome.outcome.vectors == here.vectors
    assert office.blobs.has(here.vectors["model"].digest)


def test_sigkill_during_visit_is_reported_and_next_visit_trains(office: Office) -> None:
    pid = office.begin_endless("first")
    os.kill(pid, signal.SIGKILL)
    outcome = office.outcome()
    assert isinstance(outcome, WorkFailed)
    assert (outcome.key, outcome.reason) == ("first", "memory")
    assert gone(pid)
    office.train("second")
    assert isinstance(office.outcome(), WorkDone)
    assert office.pid() != pid


def test_death_by_other_signal_is_a_failure_naming_the_signal(office: Office) -> None:
    os.kill(office.begin_endless("visit"), signal.SIGTERM)
    outcome = office.outcome()
    assert isinstance(outcome, WorkFailed)
    assert outcome.reason == "failed"
    assert f"signal {int(signal.SIGTERM)}" in outcome.detail


def test_last_stderr_output_is_reported(office: Office) -> None:
    office.workers._setup = msgspec.structs.replace(office.workers._setup, blobs="/dev/null/blobs")
    office.train("visit")
    outcome = office.outcome()
    assert isinstance(outcome, WorkFailed)
    assert outcome.reason == "failed"
    assert "exit code 1" in outcome.detail
    assert "/dev/null/blobs" in outcome.detail


def test_stop_kills_training_silently_and_queue_continues(office: Office) -> None:
    pid = office.begin_endless("first")
    office.train("second")
    office.train("third")
    office.workers.stop("third")
    office.workers.stop("first")
    office.train("fourth")  # visits are trained in order: the others would be reported first
    outcomes = [office.outcome() for _ in range(2)]
    assert [(type(outcome), outcome.key) for outcome in outcomes] == [(WorkDone, "second"), (WorkDone, "fourth")]
    wait_until(lambda: gone(pid), "the end of the first training process")


def test_stopping_other_work_leaves_training_running(office: Office) -> None:
    pid = office.begin_endless("visit")
    office.workers.stop("another")
    office.warm()
    office.workers.stop("warm")
    assert isinstance(office.received.get(timeout=LIMIT), WorkProgress)
    assert office.pid() == pid


def test_queued_training_runs_before_warm_up(office: Office) -> None:
    with office.workers._lock:  # nothing starts until all are queued; the first visit may be done
        office.train("first")
        pid = office.pid()
        office.warm("warm")
        office.train("second")
    assert [office.outcome().key for _ in range(3)] == ["first", "second", "warm"]
    assert office.pid() == pid


def test_missing_data_fails_with_reason_data(tmp_path: Path, office: Office) -> None:
    (tmp_path / "data.npz").unlink()
    office.train("visit")
    outcome = office.outcome()
    assert isinstance(outcome, WorkFailed)
    assert outcome.reason == "data"
    assert "does not exist" in outcome.detail


def test_idle_child_ends_and_restarts_on_demand(tmp_path: Path) -> None:
    gc.collect()  # files of earlier tests must not be closed during this test
    before = open_files()
    office = Office(tmp_path, idle_seconds=0.0)
    office.warm()
    assert isinstance(office.outcome(), WorkDone)
    wait_until(lambda: office.workers._child is None and not office.workers._readers, "the end of the idle process")
    office.train("visit")
    assert isinstance(office.outcome(), WorkDone)
    office.workers.close()
    assert not office.workers._readers
    assert open_files() <= before


def test_close_ends_training_and_leaks_nothing(tmp_path: Path) -> None:
    gc.collect()  # as above
    threads, before = set(threading.enumerate()), open_files()
    office = Office(tmp_path)
    pid = office.begin_endless("visit")
    office.workers.close()
    assert gone(pid)
    assert set(threading.enumerate()) <= threads  # some of earlier tests may have ended
    assert open_files() <= before
    office.train("late")
    assert office.workers._child is None


def test_child_that_cannot_start_is_reported(office: Office, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(sys, "executable", "/nowhere/python")
    office.train("visit")
    outcome = office.outcome()
    assert isinstance(outcome, WorkFailed)
    assert "cannot be started" in outcome.detail


PARENT = """
import sys
from pathlib import Path
from queue import SimpleQueue
import msgspec
from sojourn.data.source import DataSettings
from edge_agent.training.process import TrainingProcess
from edge_agent.training.messages import Train

folder = Path(sys.argv[1])
workers = TrainingProcess(folder / "blobs", DataSettings(path=str(folder / "data.npz")))
events = SimpleQueue()
workers.start("visit", msgspec.msgpack.decode((folder / "work").read_bytes(), type=Train), events.put)
events.get()
print(workers._child.process.pid, flush=True)
sys.stdin.read()
"""


def test_child_dies_with_its_parent_during_a_visit(tmp_path: Path) -> None:
    office = Office(tmp_path)
    work = visit_for(office.blobs, epochs=ENDLESS)
    (tmp_path / "work").write_bytes(msgspec.msgpack.encode(work))
    with subprocess.Popen(
        [sys.executable, "-c", PARENT, str(tmp_path)],
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        env=os.environ | {"PYTHONPATH": str(Path.cwd())},
    ) as parent:
        assert parent.stdout is not None
        pid = int(parent.stdout.readline())
        assert not gone(pid)
        parent.kill()
    wait_until(lambda: has_ended(pid), "the end of the training process")


def test_inline_blobs_do_not_go_through_the_pipe(office: Office, monkeypatch: pytest.MonkeyPatch) -> None:
    sent: list[Any] = []
    monkeypatch.setattr(Child, "send", lambda _, message: sent.append(message))
    visit = visit_for(office.blobs).visit
    heavy = msgspec.structs.replace(visit.vectors["model"], inline=bytes(1 << 20))
    work = Train(msgspec.structs.replace(visit, vectors={"model": heavy}), {})
    office.workers.start("visit", work, office.received.put)
    assert [message.key for message in sent if isinstance(message, WorkOrder)] == ["visit"]
    assert max(len(framed(message)) for message in sent) < 4096


def test_child_imports_project_packages_but_no_bare_modules(tmp_path: Path) -> None:
    program = "import importlib.util, edge_agent; assert importlib.util.find_spec('offer_check') is None"
    bare = [sys.executable, "-S", "-P", "-c", program]  # without installed packages
    subprocess.run(bare, env=filtered_environment(), cwd=tmp_path, check=True)


def test_a_worker_inherits_variables_that_select_kernels(monkeypatch: pytest.MonkeyPatch) -> None:
    chosen = {"OPENBLAS_CORETYPE": "Haswell", "BLIS_ARCH_TYPE": "haswell", "NPY_DISABLE_CPU_FEATURES": "X86_V4"}
    for name, value in {**chosen, "OPENBLAS_NUM_THREADS": "8"}.items():
        monkeypatch.setenv(name, value)
    assert filtered_environment().items() >= {**chosen, "OPENBLAS_NUM_THREADS": "1"}.items()


def test_a_worker_multiplies_matrices_to_the_agents_bits(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    # OpenBLAS has kernels without fused multiply-add for this x86 CPU; it ignores the name on other architectures.
    monkeypatch.setenv("OPENBLAS_CORETYPE", "Prescott")
    program = """
import numpy as np
draw = np.random.default_rng(0)
a, b = (draw.random((rows, 42), dtype=np.float32) for rows in (32, 16))
print((a @ b.T).tobytes().hex())
"""
    agent, worker = (
        subprocess.run([sys.executable, "-c", program], env=each, cwd=tmp_path, capture_output=True, check=True).stdout
        for each in (dict(os.environ), filtered_environment())
    )
    assert worker == agent
