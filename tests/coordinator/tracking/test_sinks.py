"""Runs as MLflow and TensorBoard read them back."""

from __future__ import annotations

import fcntl
import socket
import threading

import pytest

from coordinator.tracking import event_files
from coordinator.tracking.event_files import EVENTS, EventFiles
from coordinator.tracking.frames import RoundTracked, RunBegun
from coordinator.tracking.mlflow_store import MlflowRuns
from coordinator.tracking.runs import params_of, safe_key
from tests.coordinator.tracking.stores import ID, begun, ended, history_in, rounds, runs_in, scalars_in
from tests.waiting import LIMIT


@pytest.fixture(autouse=True)
def nobody_is_called(monkeypatch):
    """Neither MLflow nor TensorBoard tells anybody that it is used, nor asks for anything.

    A thread that was here before, such as a link of another test's that looks for its broker, is none of theirs.
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


def test_a_run_of_mlflow_from_beginning_to_end(database) -> None:
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


def test_a_run_of_mlflow_that_goes_on_has_each_round_once(database) -> None:
    first = mlflow(database)
    first.begin(begun())
    first.rounds(rounds(1, 2))
    again = mlflow(database)  # a coordinator was started again, and tells all that it knows
    again.begin(begun(rounds="20"))
    again.rounds(rounds(1, 2, 3))
    again.end(ended(outcome="stopped"))
    (run,) = runs_in(database)
    assert (run.info.status, run.data.tags["rounds"]) == ("KILLED", "20")
    assert history_in(database, run) == [(1, 0.1), (2, 0.2), (3, 0.3)]
    other = mlflow(database)  # a job of the same name, after the first was removed
    other.begin(begun(ID[::-1]))
    assert len(runs_in(database)) == 2
    other.begin(begun())  # the first one is continued
    other.rounds(rounds(4))
    run = next(it for it in runs_in(database) if it.data.tags["sojourn.id"] == ID)
    assert (run.info.status, history_in(database, run)[-1]) == ("RUNNING", (4, 0.4))


def test_many_rounds_at_once(database) -> None:
    sink = mlflow(database)
    sink.begin(begun())
    sink.rounds(rounds(*range(1, 1001)))  # more than MLflow takes in one call
    (run,) = runs_in(database)
    assert len(history_in(database, run)) == 1000


def test_event_files_from_beginning_to_end(tmp_path) -> None:
    sink = EventFiles(str(tmp_path))
    sink.open()
    sink.begin(begun())
    sink.rounds(rounds(1, 2))
    sink.end(ended())
    (folder,) = tmp_path.iterdir()
    assert folder.name == f"digits-{ID[:8]}"
    assert scalars_in(folder) == [(1, 0.1), (2, 0.2)]


def test_event_files_that_go_on_have_each_round_once(tmp_path) -> None:
    first = EventFiles(str(tmp_path))
    first.begin(begun())
    first.rounds(rounds(1, 2, 3))
    first.end(ended())
    (folder,) = tmp_path.iterdir()
    (file,) = folder.glob(EVENTS)
    file.write_bytes(file.read_bytes()[:-5])  # the power was cut: the third round is half written
    assert scalars_in(folder) == [(1, 0.1), (2, 0.2)]
    again = EventFiles(str(tmp_path))
    again.begin(begun())
    again.rounds(rounds(1, 2, 3, 4))
    assert len(list(folder.glob(EVENTS))) == 2
    assert scalars_in(folder) == [(1, 0.1), (2, 0.2), (3, 0.3), (4, 0.4)]


def test_a_writer_waits_until_another_one_of_the_same_run_has_gone(tmp_path, monkeypatch) -> None:
    monkeypatch.setattr(event_files, "PATIENCE", LIMIT)
    lock_file, waits = fcntl.flock, threading.Event()

    def lock_or_tell(file, how) -> None:
        try:
            lock_file(file, how)
        except BlockingIOError:
            waits.set()
            raise

    monkeypatch.setattr(fcntl, "flock", lock_or_tell)
    first, again = EventFiles(str(tmp_path)), EventFiles(str(tmp_path))
    first.begin(begun())
    begins = threading.Thread(target=again.begin, args=(begun(),))
    begins.start()
    assert waits.wait(LIMIT)
    first.rounds(rounds(1, 2))  # what was in the pipe when its coordinator was killed
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


def test_names_that_nobody_should_give_are_taken_as_safe_ones(database, tmp_path) -> None:
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
