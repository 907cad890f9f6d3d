"""Tests of runs, read back with MLflow and TensorBoard."""

from __future__ import annotations

import fcntl
import socket
import threading

import pytest

from coordinator.tracking import run_stores
from coordinator.tracking.run_stores import EVENTS, EventFiles, MlflowRuns
from coordinator.tracking.runs import RoundTracked, RunBegun, params_of, safe_key
from tests.coordinator.tracking.stores import ID, begun, ended, history_in, rounds, runs_in, scalars_in
from tests.waiting import LIMIT


@pytest.fixture(autouse=True)
def no_network(monkeypatch):
    """Check that neither MLflow nor TensorBoard connects to the network.

    Threads that existed before, such as a link of another test that connects to its broker, are ignored.
    """
    called: list[object] = []
    others = set(threading.enumerate()) - {threading.current_thread()}
    connect, look_up = socket.socket.connect, socket.getaddrinfo

    def connected(one, address):
        return connect(one, address) if threading.current_thread() in others else called.append(address)

    def looked_up(*asked, **how):
        return look_up(*asked, **how) if threading.current_thread() in others else called.append(asked)

    monkeypatch.setattr(socket.socket, "connect", connected)
    monkeypatch.setattr(socket, "getaddrinfo", looked_up)
    yield
    assert called == []


def mlflow(database) -> MlflowRuns:
    return MlflowRuns(f"sqlite:///{database}", "sojourn")


def test_mlflow_records_a_run_from_start_to_end(database) -> None:
    sink = mlflow(database)
    sink.begin(begun())
    sink.rounds(rounds(1, 2))
    sink.rounds(rounds(3))
    (run,) = runs_in(database)
    assert (run.info.run_name, run.info.status, run.info.start_time) == ("digits", "RUNNING", 1_000_000)
    sink.end(ended())
    (run,) = runs_in(database)
    assert (run.info.status, run.info.end_time) == ("FINISHED", 2_000_000)
    assert run.data.params == {"training.lr": "0.05"}
    assert {"strategy": "visit", "outcome": "done", "sojourn.id": ID}.items() <= run.data.tags.items()
    assert history_in(database, run) == [(1, 0.1), (2, 0.2), (3, 0.3)]


def test_resumed_mlflow_run_has_each_round_once(database) -> None:
    first = mlflow(database)
    first.begin(begun())
    first.rounds(rounds(1, 2))
    again = mlflow(database)  # a restarted coordinator, which reports everything again
    again.begin(begun(rounds="20"))
    again.rounds(rounds(1, 2, 3))
    again.end(ended(outcome="stopped"))
    (run,) = runs_in(database)
    assert (run.info.status, run.data.tags["rounds"]) == ("KILLED", "20")
    assert history_in(database, run) == [(1, 0.1), (2, 0.2), (3, 0.3)]
    other = mlflow(database)  # a job with the same name, after the first one was removed
    other.begin(begun(ID[::-1]))
    assert len(runs_in(database)) == 2
    other.begin(begun())  # the first one is continued
    other.rounds(rounds(4))
    run = next(it for it in runs_in(database) if it.data.tags["sojourn.id"] == ID)
    assert (run.info.status, history_in(database, run)[-1]) == ("RUNNING", (4, 0.4))


def test_mlflow_accepts_many_rounds_at_once(database) -> None:
    sink = mlflow(database)
    sink.begin(begun())
    sink.rounds(rounds(*range(1, 1001)))  # more than one MLflow call accepts
    (run,) = runs_in(database)
    assert len(history_in(database, run)) == 1000


def test_event_files_record_a_run_from_start_to_end(tmp_path) -> None:
    sink = EventFiles(str(tmp_path))
    sink.open()
    sink.begin(begun())
    sink.rounds(rounds(1, 2))
    sink.end(ended())
    (folder,) = tmp_path.iterdir()
    assert folder.name == f"digits-{ID[:8]}"
    assert scalars_in(folder) == [(1, 0.1), (2, 0.2)]


def test_resumed_event_files_have_each_round_once(tmp_path) -> None:
    first = EventFiles(str(tmp_path))
    first.begin(begun())
    first.rounds(rounds(1, 2, 3))
    first.end(ended())
    (folder,) = tmp_path.iterdir()
    (file,) = folder.glob(EVENTS)
    file.write_bytes(file.read_bytes()[:-5])  # a power failure: the third round is cut off
    assert scalars_in(folder) == [(1, 0.1), (2, 0.2)]
    again = EventFiles(str(tmp_path))
    again.begin(begun())
    again.rounds(rounds(1, 2, 3, 4))
    assert len(list(folder.glob(EVENTS))) == 2
    assert scalars_in(folder) == [(1, 0.1), (2, 0.2), (3, 0.3), (4, 0.4)]


def test_writer_waits_for_previous_writer_of_the_run(tmp_path, monkeypatch) -> None:
    monkeypatch.setattr(run_stores, "LOCK_TIMEOUT", LIMIT)
    lock_file, waits = fcntl.flock, threading.Event()

    def lock_or_signal(file, how) -> None:
        try:
            lock_file(file, how)
        except BlockingIOError:
            waits.set()
            raise

    monkeypatch.setattr(fcntl, "flock", lock_or_signal)
    first, again = EventFiles(str(tmp_path)), EventFiles(str(tmp_path))
    first.begin(begun())
    begins = threading.Thread(target=again.begin, args=(begun(),))
    begins.start()
    assert waits.wait(LIMIT)
    first.rounds(rounds(1, 2))  # frames in the pipe when the coordinator was killed
    first.end(ended())
    begins.join(LIMIT)
    again.rounds(rounds(1, 2, 3))
    (folder,) = tmp_path.iterdir()
    assert scalars_in(folder) == [(1, 0.1), (2, 0.2), (3, 0.3)]


HOSTILE = (
    "../../etc/passwd",
    "<script>alert(1)</script>",
    "a\nb\x00",
    "/",
    "",
    "..",
    "x" * 5000,
    "\u202eright",
    "a//b/../c",
)


def test_hostile_names_are_stored_as_safe_ones(database, tmp_path) -> None:
    names = [safe_key(text) for text in HOSTILE]
    run = RunBegun(ID, "digits", 1000.0, params_of({text: text for text in HOSTILE}), {})
    each = RoundTracked(ID, 1, 1001.0, {"visits": 1.0, **dict.fromkeys(names, 0.5)})
    sinks = (mlflow(database), EventFiles(str(tmp_path / "tb")))
    for sink in sinks:
        sink.begin(run)
        sink.rounds([each])
        sink.end(ended())
    (found,) = runs_in(database)
    assert found.data.metrics == each.metrics
    assert found.data.params == run.params
    (folder,) = (tmp_path / "tb").iterdir()
    assert all(scalars_in(folder, name) == [(1, 0.5)] for name in names)
    assert not (tmp_path / "etc").exists()
