"""What compiling is at: from the process in which it happens to the operator's screen."""

from __future__ import annotations

import io
import queue
import threading
from pathlib import Path
from types import SimpleNamespace

import pytest
from rich.console import Console

from coordinator.console.compiling_lines import CompilingLines, compiling, waiting
from coordinator.machine import steps
from coordinator.machine import work as work_module
from coordinator.machine.steps import Steps
from coordinator.machine.work import CoordinatorWorker
from coordinator.rounds.preparing import PrepareJob
from sojourn.errors import JobError
from sojourn.node.machine import DidNot, Doing, Send
from sojourn.node.workers import ThreadWorkers
from sojourn.protocol.messages import Inspect, Jobs, Submit
from sojourn.store.memory_blobs import MemoryBlobs
from tests.coordinator.machine.cloud_bench import OPERATOR, Bench, text
from tests.coordinator.machine.compiling_process import says
from tests.waiting import LIMIT


def test_a_step_is_told_when_it_begins_and_every_while(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(steps, "EVERY", 0.001)
    told: list[str] = []
    twice = threading.Event()

    def tell(line: str) -> None:
        told.append(line.rpartition(",")[0])
        if told.count("second") > 2:
            twice.set()

    with Steps(tell) as step:
        step("first")
        step("second")
        assert twice.wait(LIMIT)
    count = len(told)
    assert told[0] == "first"
    assert set(told[told.index("second") :]) == {"second"}
    assert len(told) == count  # nothing more is told


def test_the_compiling_process_tells_its_steps_before_its_outcome(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    frames = (work_module._Step("loading torch"), work_module._Step("checking"), work_module._Failure("no such layer"))
    says(tmp_path, monkeypatch, *frames)
    # However long the process takes to start: no second passes, and no step is told again.
    monkeypatch.setattr(steps, "time", SimpleNamespace(monotonic=lambda: 0.0))
    monkeypatch.setattr(steps, "EVERY", LIMIT)
    heard: queue.SimpleQueue[object] = queue.SimpleQueue()
    workers = ThreadWorkers(CoordinatorWorker(MemoryBlobs(), tmp_path), tells=True)
    workers.start("prepare job", PrepareJob("job", text()), heard.put)
    events = [heard.get(timeout=LIMIT) for _ in range(3)]
    assert events == [
        Doing("prepare job", 0, 0, "loading torch, 0 s"),
        Doing("prepare job", 0, 0, "checking, 0 s"),
        DidNot("prepare job", "JobError", "no such layer"),
    ]


def test_a_compiling_process_that_dies_is_told(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    says(tmp_path, monkeypatch, work_module._Step("loading torch"), exit_code=3)
    with pytest.raises(JobError, match="exit code 3"):
        CoordinatorWorker(MemoryBlobs(), tmp_path)(PrepareJob("job", text()))


def test_a_compiling_process_that_never_ends_is_ended(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    says(tmp_path, monkeypatch)
    (tmp_path / "python").write_text("#!/bin/sh\nexec sleep 600\n")
    monkeypatch.setattr(work_module, "PATIENCE", 0.05)
    with pytest.raises(JobError, match="took longer"):
        CoordinatorWorker(MemoryBlobs(), tmp_path)(PrepareJob("job", text()))


def detail(bench: Bench) -> str:
    (sent,) = bench.hear(OPERATOR, Inspect("i", "job"))
    assert isinstance(sent, Send)
    assert isinstance(sent.message, Jobs)
    return sent.message.jobs[0].detail


def test_an_operator_sees_what_compiling_is_at() -> None:
    bench = Bench()
    bench.hear(OPERATOR, Submit("t", text()))
    assert detail(bench) == ""
    bench.tell(Doing("prepare job", 0, 0, "checking the gradient (3 of 6), 12 s"))
    assert detail(bench) == "checking the gradient (3 of 6), 12 s"
    bench.tell(Doing("prepare another", 0, 0, "of a job that was stopped"))
    assert detail(bench) == "checking the gradient (3 of 6), 12 s"
    bench.compile()
    assert "gradient" not in detail(bench)


def test_a_step_that_is_over_is_not_told_after_the_next_one(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(steps, "EVERY", 0.001)
    told: list[str] = []
    telling, go_on = threading.Event(), threading.Event()

    def tell(line: str) -> None:
        if threading.current_thread().name == "steps" and not telling.is_set():  # the thread that tells it again
            telling.set()
            go_on.wait(LIMIT)
        told.append(line.rpartition(",")[0])

    with Steps(tell) as step:
        step("first")
        assert telling.wait(LIMIT)
        next_step = threading.Thread(target=step, args=("second",))
        next_step.start()
        go_on.set()
        next_step.join(LIMIT)
    assert told[: told.index("second")] == ["first"] * told.index("second")
    assert "first" not in told[told.index("second") :]


@pytest.mark.parametrize("terminal", [True, False])
def test_waiting_is_shown_in_a_terminal_alone(terminal: bool) -> None:
    shown = io.StringIO()
    with waiting(Console(file=shown, width=80, force_terminal=terminal), "making a release of job [1]"):
        pass
    assert ("making a release of job [1]" in shown.getvalue()) is terminal


def test_steps_change_one_line_in_a_terminal() -> None:
    shown = io.StringIO()
    with compiling(Console(file=shown, width=80, force_terminal=True)) as tell:
        tell("checking the gradient (3 of 6), 12 s")
    assert "compiling: checking the gradient (3 of 6), 12 s" in shown.getvalue()


def test_lines_are_printed_for_long_steps_only_and_once_each() -> None:
    console = Console(file=io.StringIO(), width=80)
    tell = CompilingLines(console)
    for line in ("reading the data, 0 s", "loading torch, 1 s", "checking, 2 s", "checking, 3 s", "ending, 4 s"):
        tell(line)
    assert console.file.getvalue() == "compiling: checking, 2 s\ncompiling: ending, 4 s\n"  # type: ignore[attr-defined]
