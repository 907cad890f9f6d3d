"""Tests that a job continues if a store or the writer process fails, and that each round is written once."""

from __future__ import annotations

import os
import signal
import sqlite3
import subprocess
import sys
from contextlib import closing
from typing import Any

from coordinator.tracking import writer
from coordinator.tracking.run_stores import EVENTS, EventFiles, MlflowRuns, TrackingSettings
from coordinator.tracking.tracker import Tracker
from coordinator.tracking.writer import MAX_QUEUED, SinkQueue
from tests.coordinator.tracking.stores import ID, begun, ended, history_in, rounds, runs_in, scalars_in
from tests.there import there
from tests.waiting import LIMIT, wait_until


def write_frames(queue: SinkQueue, *frames) -> None:
    for frame in frames:
        queue.put(frame)
    queue.write(at_once=True)


def put_frames(tracker: Tracker, *frames: Any) -> None:
    for frame in frames:
        tracker.put(frame)


def test_failed_writes_are_queued_and_logged_once(tmp_path) -> None:
    place, warnings = tmp_path / "tb", list[str]()
    place.write_text("no folder")
    queue = SinkQueue(EventFiles(str(place)), warnings.append)
    queue.open()
    write_frames(queue, begun(), *rounds(1, 2))
    write_frames(queue, *rounds(3))
    assert queue.waits == 4
    assert len(warnings) in (1, 2)  # the folder, and then a run's folder in it
    assert "TensorBoard cannot be written" in warnings[0]
    assert "the job continues" in warnings[0]
    place.unlink()
    write_frames(queue, *rounds(4), ended())
    assert queue.waits == 0
    assert scalars_in(place / f"digits-{ID[:8]}") == [(1, 0.1), (2, 0.2), (3, 0.3), (4, 0.4)]


def test_failed_write_is_not_retried_with_every_round(tmp_path, monkeypatch) -> None:
    monkeypatch.setattr(writer, "PAUSE", LIMIT)
    place = tmp_path / "tb"
    place.write_text("no folder")
    queue = SinkQueue(EventFiles(str(place)), lambda _text: None)
    write_frames(queue, begun(), *rounds(1))
    place.unlink()
    queue.put(*rounds(2))
    queue.write()
    assert queue.waits == 3
    queue.write(at_once=True)
    assert queue.waits == 0


def test_full_disk_neither_skips_nor_repeats_rounds(tmp_path) -> None:
    """Limit the size of files, because a test has no separate disk: each file ends in the middle of a record."""
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
from coordinator.tracking.run_stores import EVENTS, EventFiles
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


def test_write_queue_is_limited(tmp_path) -> None:
    (tmp_path / "tb").write_text("no folder")
    queue = SinkQueue(EventFiles(str(tmp_path / "tb")), lambda _text: None)
    queue.put(begun())
    (each,) = rounds(1)
    for _ in range(MAX_QUEUED + 10):
        queue.put(each)
    assert queue.waits == MAX_QUEUED


def test_failing_run_does_not_block_others(tmp_path) -> None:
    other = ID[::-1]
    (tmp_path / f"digits-{ID[:8]}").write_text("no folder")
    queue = SinkQueue(EventFiles(str(tmp_path)), lambda _text: None)
    write_frames(queue, begun(), begun(other), *rounds(1), *rounds(1, run=other))
    assert queue.waits == 2
    assert scalars_in(tmp_path / f"digits-{other[:8]}") == [(1, 0.1)]


def test_temporary_database_failure_is_retried(database) -> None:
    """A locked store gives the same error, but MLflow waits twenty seconds for it."""
    warnings = list[str]()
    queue = SinkQueue(MlflowRuns(f"sqlite:///{database}", "sojourn"), warnings.append)
    write_frames(queue, begun(), *rounds(1))
    with closing(sqlite3.connect(database)) as other:
        other.execute("alter table metrics rename to hidden")
        write_frames(queue, *rounds(2))
        other.execute("alter table hidden rename to metrics")
    assert len(warnings) == 1
    assert warnings[0].startswith("MLflow cannot be written: MlflowException")
    assert warnings[0].endswith("no such table: metrics; retrying; the job continues")
    write_frames(queue, *rounds(3), ended())
    assert warnings[-1] == "MLflow is available again"
    (run,) = runs_in(database)
    assert history_in(database, run) == [(1, 0.1), (2, 0.2), (3, 0.3)]
    assert run.info.status == "FINISHED"


def test_killed_writer_is_replaced_without_duplicate_rounds(tmp_path, caplog) -> None:
    started = Tracker(TrackingSettings(tensorboard=str(tmp_path)))
    folder = tmp_path / f"digits-{ID[:8]}"
    put_frames(started, begun(), *rounds(1, 2))
    wait_until(lambda: folder.exists() and _written(folder) == 2, "two rounds in the run's folder")
    victim = there(started._child)
    os.kill(victim.pid, signal.SIGKILL)
    wait_until(lambda: not victim.is_open, "its end")
    put_frames(started, *rounds(3, 4), ended())
    started.close(LIMIT)
    assert scalars_in(folder) == [(1, 0.1), (2, 0.2), (3, 0.3), (4, 0.4)]
    assert "was ended by signal 9, most likely out of memory; restarting it" in caplog.text


def test_broken_store_is_not_changed(tmp_path) -> None:
    broken, warnings = tmp_path / "mlflow.db", list[str]()
    broken.write_bytes(b"this is no database" * 1000)
    queue = SinkQueue(MlflowRuns(f"sqlite:///{broken}", "sojourn"), warnings.append)
    write_frames(queue, begun(), *rounds(1, 2), ended())
    assert "file is not a database" in warnings[0]
    assert queue.waits == 4
    assert broken.read_bytes() == b"this is no database" * 1000


def test_failed_writer_start_logs_a_warning(tmp_path, caplog, monkeypatch) -> None:
    monkeypatch.setattr(sys, "executable", str(tmp_path / "nothing"))
    started = Tracker(TrackingSettings(tensorboard=str(tmp_path)))
    started.put(begun())
    started.close(LIMIT)
    assert "the process cannot be started" in caplog.text


def _written(folder) -> int:
    try:
        return len(scalars_in(folder))
    except KeyError:  # there is none yet
        return 0
