"""Whatever becomes of a store or of the process that writes it, the job goes on, and each round is written once."""

from __future__ import annotations

import os
import signal
import sqlite3
import subprocess
import sys
from contextlib import closing
from typing import Any

from coordinator.tracking import writer
from coordinator.tracking.event_files import EVENTS, EventFiles
from coordinator.tracking.mlflow_store import MlflowRuns
from coordinator.tracking.settings import TrackingSettings
from coordinator.tracking.tracker import Tracker
from coordinator.tracking.writer import WAITING, SinkQueue
from tests.coordinator.tracking.stores import ID, begun, ended, history_in, rounds, runs_in, scalars_in
from tests.there import there
from tests.waiting import LIMIT, wait_until


def told(queue: SinkQueue, *frames) -> None:
    for frame in frames:
        queue.put(frame)
    queue.write(at_once=True)


def tell(tracker: Tracker, *frames: Any) -> None:
    for frame in frames:
        tracker.tell(frame)


def test_what_cannot_be_written_waits_and_is_said_once(tmp_path) -> None:
    place, said = tmp_path / "tb", list[str]()
    place.write_text("no folder")
    queue = SinkQueue(EventFiles(str(place)), said.append)
    queue.open()
    told(queue, begun(), *rounds(1, 2))
    told(queue, *rounds(3))
    assert queue.waits == 4
    assert len(said) in (1, 2)  # the folder, and then a run's folder in it
    assert "TensorBoard cannot be written" in said[0]
    assert "the job goes on" in said[0]
    place.unlink()
    told(queue, *rounds(4), ended())
    assert queue.waits == 0
    assert scalars_in(place / f"digits-{ID[:8]}") == [(1, 0.1), (2, 0.2), (3, 0.3), (4, 0.4)]


def test_what_has_just_failed_is_not_tried_with_every_round(tmp_path, monkeypatch) -> None:
    monkeypatch.setattr(writer, "PAUSE", LIMIT)
    place = tmp_path / "tb"
    place.write_text("no folder")
    queue = SinkQueue(EventFiles(str(place)), lambda _text: None)
    told(queue, begun(), *rounds(1))
    place.unlink()
    queue.put(*rounds(2))
    queue.write()
    assert queue.waits == 3
    queue.write(at_once=True)
    assert queue.waits == 0


def test_a_disk_without_room_leaves_no_round_out_and_none_twice(tmp_path) -> None:
    """A bound on files, since a test has no disk of its own: each ends in the middle of a record."""
    done = subprocess.run(
        [sys.executable, "-c", SMALL_FILES, str(tmp_path)], capture_output=True, text=True, check=False
    )
    assert done.returncode == 0, done.stderr
    assert "File too large" in done.stdout
    (folder,) = tmp_path.iterdir()
    assert len(list(folder.glob(EVENTS))) > 1
    assert [step for step, _ in scalars_in(folder)] == list(range(1, 21))


SMALL_FILES = """
import resource, sys, threading
from coordinator.tracking.event_files import EVENTS, EventFiles
from coordinator.tracking.writer import SinkQueue
from tests.coordinator.tracking.stores import begun, ended, rounds
threading.excepthook = lambda _error: None
queue = SinkQueue(EventFiles(sys.argv[1]), print)
queue.put(begun())
queue.write(at_once=True)
resource.setrlimit(resource.RLIMIT_FSIZE, (600, resource.RLIM_INFINITY))
for step in range(1, 20):
    queue.put(*rounds(step))
    queue.write(at_once=True)
resource.setrlimit(resource.RLIMIT_FSIZE, (resource.RLIM_INFINITY, resource.RLIM_INFINITY))
for frame in (*rounds(20), ended()):
    queue.put(frame)
queue.write(at_once=True)
assert not queue.waits
"""


def test_what_waits_is_bounded(tmp_path) -> None:
    (tmp_path / "tb").write_text("no folder")
    queue = SinkQueue(EventFiles(str(tmp_path / "tb")), lambda _text: None)
    queue.put(begun())
    (each,) = rounds(1)
    for _ in range(WAITING + 10):
        queue.put(each)
    assert queue.waits == WAITING


def test_one_run_that_cannot_be_written_keeps_no_other_waiting(tmp_path) -> None:
    other = ID[::-1]
    (tmp_path / f"digits-{ID[:8]}").write_text("no folder")
    queue = SinkQueue(EventFiles(str(tmp_path)), lambda _text: None)
    told(queue, begun(), begun(other), *rounds(1), *rounds(1, run=other))
    assert queue.waits == 2
    assert scalars_in(tmp_path / f"digits-{other[:8]}") == [(1, 0.1)]


def test_a_database_that_cannot_be_written_for_a_while(database) -> None:
    """Locked it would be the same error; MLflow waits twenty seconds for it."""
    said = list[str]()
    queue = SinkQueue(MlflowRuns(f"sqlite:///{database}", "sojourn"), said.append)
    told(queue, begun(), *rounds(1))
    with closing(sqlite3.connect(database)) as other:
        other.execute("alter table metrics rename to hidden")
        told(queue, *rounds(2))
        other.execute("alter table hidden rename to metrics")
    assert len(said) == 1
    assert said[0].startswith("MLflow cannot be written: MlflowException")
    assert said[0].endswith("no such table: metrics; it is tried again, and the job goes on")
    told(queue, *rounds(3), ended())
    assert said[-1] == "MLflow is written again"
    (run,) = runs_in(database)
    assert history_in(database, run) == [(1, 0.1), (2, 0.2), (3, 0.3)]
    assert run.info.status == "FINISHED"


def test_a_process_that_is_killed_has_a_successor_and_no_round_is_written_twice(tmp_path, caplog) -> None:
    started = Tracker(TrackingSettings(tensorboard=str(tmp_path)))
    folder = tmp_path / f"digits-{ID[:8]}"
    tell(started, begun(), *rounds(1, 2))
    wait_until(lambda: folder.exists() and _written(folder) == 2, "two rounds in the run's folder")
    victim = there(started._process)
    os.kill(victim.pid, signal.SIGKILL)
    victim.wait()
    tell(started, *rounds(3, 4), ended())
    started.close(LIMIT)
    assert scalars_in(folder) == [(1, 0.1), (2, 0.2), (3, 0.3), (4, 0.4)]
    assert "exit code -9; it is started again" in caplog.text


def test_a_broken_store_is_left_as_it_is(tmp_path) -> None:
    broken, said = tmp_path / "mlflow.db", list[str]()
    broken.write_bytes(b"this is no database" * 1000)
    queue = SinkQueue(MlflowRuns(f"sqlite:///{broken}", "sojourn"), said.append)
    told(queue, begun(), *rounds(1, 2), ended())
    assert "file is not a database" in said[0]
    assert queue.waits == 4
    assert broken.read_bytes() == b"this is no database" * 1000


def test_a_process_that_cannot_be_started_is_a_warning(tmp_path, caplog, monkeypatch) -> None:
    monkeypatch.setattr(sys, "executable", str(tmp_path / "nothing"))
    started = Tracker(TrackingSettings(tensorboard=str(tmp_path)))
    started.tell(begun())
    started.close(LIMIT)
    assert "its process cannot be started" in caplog.text


def _written(folder) -> int:
    try:
        return len(scalars_in(folder))
    except KeyError:  # not one yet
        return 0
