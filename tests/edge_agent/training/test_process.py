"""The training process: that it trains, that it can die, and that nothing of it stays behind."""

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

from edge_agent.training.child import environment
from edge_agent.training.frames import Advance, Frames, WorkOrder, framed
from edge_agent.training.process import TrainingProcess
from edge_agent.training.trainer import Trainer
from edge_agent.training.work import Train, Trained, Warm, Warmed
from sojourn.data.source import DataSettings
from sojourn.node.machine import Did, DidNot, Doing
from sojourn.store.blobs import FolderBlobs
from tests.edge_agent.training.kits import visit_for, write_data
from tests.processes import has_ended
from tests.waiting import LIMIT, wait_until

if TYPE_CHECKING:
    from collections.abc import Iterator

    from edge_agent.limits.rules import Limits

ENDLESS = 1_000_000
NEVER_IDLE = 3600.0


class Office:
    """A training process, its folder, and all that it reports."""

    def __init__(self, folder: Path, idle_seconds: float = NEVER_IDLE, limits: Limits | None = None) -> None:
        write_data(folder / "data.npz")
        self.data = DataSettings(path=str(folder / "data.npz"))
        self.blobs = FolderBlobs(folder / "blobs")
        self.workers = TrainingProcess(folder / "blobs", self.data, idle_seconds=idle_seconds, limits=limits)
        self.heard: SimpleQueue[Did | Doing | DidNot] = SimpleQueue()

    def train(self, key: str, **task: Any) -> None:
        self.workers.start(key, visit_for(self.blobs, **task), self.heard.put)

    def warm(self, key: str = "warm") -> None:
        visit = visit_for(self.blobs).visit
        self.workers.start(key, Warm(visit.kit, visit.task), self.heard.put)

    def outcome(self) -> Did | DidNot:
        while True:
            event = self.heard.get(timeout=LIMIT)
            if not isinstance(event, Doing):
                return event

    def pid(self) -> int:
        child = self.workers._child
        assert child is not None
        return child.process.pid

    def begin_endless(self, key: str) -> int:
        self.train(key, epochs=ENDLESS)
        event = self.heard.get(timeout=LIMIT)
        assert event == Doing(key, 0, ENDLESS * 7)
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


def test_the_child_trains_what_the_inline_trainer_trains(office: Office) -> None:
    office.warm()
    assert office.outcome() == Did("warm", Warmed(50))
    office.train("visit", epochs=2, momentum=0.9)
    outcome = office.outcome()
    assert isinstance(outcome, Did)
    assert outcome.key == "visit"
    here = Trainer(office.blobs, office.data).perform(visit_for(office.blobs, epochs=2, momentum=0.9))
    assert isinstance(here, Trained)
    assert outcome.outcome.vectors == here.vectors
    assert office.blobs.has(here.vectors["model"].digest)


def test_kill_9_in_the_middle_of_a_visit_is_reported_and_the_next_visit_trains(office: Office) -> None:
    pid = office.begin_endless("first")
    os.kill(pid, signal.SIGKILL)
    outcome = office.outcome()
    assert isinstance(outcome, DidNot)
    assert (outcome.key, outcome.reason) == ("first", "memory")
    assert gone(pid)
    office.train("second")
    assert isinstance(office.outcome(), Did)
    assert office.pid() != pid


def test_another_death_is_a_failure_with_its_signal(office: Office) -> None:
    os.kill(office.begin_endless("visit"), signal.SIGTERM)
    outcome = office.outcome()
    assert isinstance(outcome, DidNot)
    assert outcome.reason == "failed"
    assert f"signal {int(signal.SIGTERM)}" in outcome.detail


def test_last_words_are_told(office: Office) -> None:
    office.workers._setup = msgspec.structs.replace(office.workers._setup, blobs="/dev/null/blobs")
    office.train("visit")
    outcome = office.outcome()
    assert isinstance(outcome, DidNot)
    assert outcome.reason == "failed"
    assert "exit code 1" in outcome.detail
    assert "/dev/null/blobs" in outcome.detail


def test_stop_kills_training_without_a_word_and_what_waits_goes_on(office: Office) -> None:
    pid = office.begin_endless("first")
    office.train("second")
    office.train("third")
    office.workers.stop("third")
    office.workers.stop("first")
    office.train("fourth")  # visits go in the order in which they came: the others would be heard of before it
    outcomes = [office.outcome() for _ in range(2)]
    assert [(type(outcome), outcome.key) for outcome in outcomes] == [(Did, "second"), (Did, "fourth")]
    wait_until(lambda: gone(pid), "the end of the first training process")


def test_stop_of_other_work_disturbs_nothing(office: Office) -> None:
    pid = office.begin_endless("visit")
    office.workers.stop("another")
    office.warm()
    office.workers.stop("warm")
    assert isinstance(office.heard.get(timeout=LIMIT), Doing)
    assert office.pid() == pid


def test_warming_waits_for_training_and_training_goes_first(office: Office) -> None:
    with office.workers._lock:  # the first visit may be done already, but nothing else begins until all are queued
        office.train("first")
        pid = office.pid()
        office.warm("warm")
        office.train("second")
    assert [office.outcome().key for _ in range(3)] == ["first", "second", "warm"]
    assert office.pid() == pid


def test_failures_have_their_word(tmp_path: Path, office: Office) -> None:
    (tmp_path / "data.npz").unlink()
    office.train("visit")
    outcome = office.outcome()
    assert isinstance(outcome, DidNot)
    assert outcome.reason == "data"
    assert "does not exist" in outcome.detail


def test_an_idle_child_ends_and_comes_back(tmp_path: Path) -> None:
    gc.collect()  # files of earlier tests must not be closed meanwhile
    before = open_files()
    office = Office(tmp_path, idle_seconds=0.0)
    office.warm()
    assert isinstance(office.outcome(), Did)
    wait_until(lambda: office.workers._child is None and not office.workers._minders, "the end of the idle process")
    office.train("visit")
    assert isinstance(office.outcome(), Did)
    office.workers.close()
    assert not office.workers._minders
    assert open_files() <= before


def test_close_ends_training_and_leaves_nothing(tmp_path: Path) -> None:
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


def test_a_child_that_cannot_start_is_reported(office: Office, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(sys, "executable", "/nowhere/python")
    office.train("visit")
    outcome = office.outcome()
    assert isinstance(outcome, DidNot)
    assert "cannot be started" in outcome.detail


PARENT = """
import sys
from pathlib import Path
from queue import SimpleQueue
import msgspec
from sojourn.data.source import DataSettings
from edge_agent.training.process import TrainingProcess
from edge_agent.training.work import Train

folder = Path(sys.argv[1])
workers = TrainingProcess(folder / "blobs", DataSettings(path=str(folder / "data.npz")))
heard = SimpleQueue()
workers.start("visit", msgspec.msgpack.decode((folder / "work").read_bytes(), type=Train), heard.put)
heard.get()
print(workers._child.process.pid, flush=True)
sys.stdin.read()
"""


def test_the_child_dies_with_its_parent_in_the_middle_of_a_visit(tmp_path: Path) -> None:
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


def test_prints_do_not_get_between_the_frames() -> None:
    program = (
        "import os; from edge_agent.training.worker import _own_pipes; source, sink = _own_pipes();"
        "print('noise', flush=True); os.system('echo noise'); os.write(sink, os.read(source, 9))"
    )
    done = subprocess.run([sys.executable, "-c", program], input=b"frame", capture_output=True, check=True)
    assert done.stdout == b"frame"
    assert done.stderr.count(b"noise") == 2


def test_frames_may_come_in_any_pieces() -> None:
    sent = [Advance("a", 1, 2), Advance("b" * 500, 3, 4)]
    stream, frames = b"".join(framed(frame) for frame in sent), Frames()
    assert [frame for at in range(len(stream)) for frame in frames.feed(stream[at : at + 1])] == sent
    assert list(Frames().feed(stream)) == sent


def test_blobs_that_ride_along_do_not_go_through_the_pipe(office: Office, monkeypatch: pytest.MonkeyPatch) -> None:
    sent: list[bytes] = []
    monkeypatch.setattr("edge_agent.training.child.write_all", lambda _, data: sent.append(data))
    visit = visit_for(office.blobs).visit
    heavy = msgspec.structs.replace(visit.vectors["model"], inline=bytes(1 << 20))
    work = Train(msgspec.structs.replace(visit, vectors={"model": heavy}), {})
    office.workers.start("visit", work, office.heard.put)
    orders = [frame for data in sent for frame in Frames().feed(data) if isinstance(frame, WorkOrder)]
    assert [order.key for order in orders] == ["visit"]
    assert max(map(len, sent)) < 4096


def test_a_process_of_ours_finds_our_packages_and_none_of_our_modules_by_a_bare_name(tmp_path: Path) -> None:
    program = "import importlib.util, edge_agent; assert importlib.util.find_spec('offer_check') is None"
    bare = [sys.executable, "-S", "-P", "-c", program]  # without what is installed
    subprocess.run(bare, env=environment(), cwd=tmp_path, check=True)
