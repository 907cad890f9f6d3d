"""The steps of compiling, from its process to the operator's screen."""

from __future__ import annotations

import io
import queue
import threading
from pathlib import Path
from types import SimpleNamespace

import pytest
from rich.console import Console

from coordinator.console.compile_progress import CompilingLines, compiling, waiting
from coordinator.machine import work
from coordinator.machine import work as work_module
from coordinator.machine.work import CoordinatorWorker, Steps
from coordinator.rounds.preparing import PrepareJob
from sojourn.errors import JobError
from sojourn.node.machine import Send, WorkFailed, WorkProgress
from sojourn.node.workers import ThreadWorkers
from sojourn.protocol.operator_messages import Inspect, Jobs, Submit
from sojourn.store.memory_blobs import MemoryBlobs
from tests.coordinator.machine.cloud_bench import OPERATOR, Bench, text
from tests.coordinator.machine.compiling_process import send_frames
from tests.waiting import LIMIT


def test_step_is_reported_at_start_and_periodically(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(work, "REPORT_INTERVAL", 0.001)
    steps: list[str] = []
    twice = threading.Event()

    def notify(line: str) -> None:
        steps.append(line.rpartition(",")[0])
        if steps.count("second") > 2:
            twice.set()

    with Steps(notify) as step:
        step("first")
        step("second")
        assert twice.wait(LIMIT)
    count = len(steps)
    assert steps[0] == "first"
    assert set(steps[steps.index("second") :]) == {"second"}
    assert len(steps) == count  # nothing more is reported


def test_compile_process_reports_steps_before_outcome(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    frames = (work_module._Step("loading torch"), work_module._Step("checking"), work_module._Failure("no such layer"))
    send_frames(tmp_path, monkeypatch, *frames)
    # However long the process takes to start: no second passes, and no step is reported again.
    monkeypatch.setattr(work, "time", SimpleNamespace(monotonic=lambda: 0.0))
    monkeypatch.setattr(work, "REPORT_INTERVAL", LIMIT)
    received: queue.SimpleQueue[object] = queue.SimpleQueue()
    workers = ThreadWorkers(CoordinatorWorker(MemoryBlobs(), tmp_path), reports=True)
    workers.start("prepare job", PrepareJob("job", text()), received.put)
    events = [received.get(timeout=LIMIT) for _ in range(3)]
    assert events == [
        WorkProgress("prepare job", 0, 0, "loading torch, 0 s"),
        WorkProgress("prepare job", 0, 0, "checking, 0 s"),
        WorkFailed("prepare job", "failed", "no such layer"),
    ]


def test_compile_process_crash_is_reported(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    send_frames(tmp_path, monkeypatch, work_module._Step("loading torch"), exit_code=3)
    with pytest.raises(JobError, match="exit code 3"):
        CoordinatorWorker(MemoryBlobs(), tmp_path)(PrepareJob("job", text()))


def test_hanging_compile_process_is_killed(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    send_frames(tmp_path, monkeypatch)
    (tmp_path / "python").write_text("#!/bin/sh\nexec sleep 600\n")
    monkeypatch.setattr(work_module, "COMPILE_TIMEOUT", 0.05)
    with pytest.raises(JobError, match="exceeded its time limit"):
        CoordinatorWorker(MemoryBlobs(), tmp_path)(PrepareJob("job", text()))


def detail(bench: Bench) -> str:
    (sent,) = bench.receive(OPERATOR, Inspect("i", "job"))
    assert isinstance(sent, Send)
    assert isinstance(sent.message, Jobs)
    return sent.message.jobs[0].detail


def test_operator_sees_the_compile_step() -> None:
    bench = Bench()
    bench.receive(OPERATOR, Submit("t", text()))
    assert detail(bench) == ""
    bench.handle(WorkProgress("prepare job", 0, 0, "checking the gradient (3 of 6), 12 s"))
    assert detail(bench) == "checking the gradient (3 of 6), 12 s"
    bench.handle(WorkProgress("prepare another", 0, 0, "of a job that was stopped"))
    assert detail(bench) == "checking the gradient (3 of 6), 12 s"
    bench.compile()
    assert "gradient" not in detail(bench)


def test_finished_step_is_not_reported_after_next_one(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(work, "REPORT_INTERVAL", 0.001)
    steps: list[str] = []
    reporting, proceed = threading.Event(), threading.Event()

    def notify(line: str) -> None:
        if threading.current_thread().name == "steps" and not reporting.is_set():  # the thread that repeats it
            reporting.set()
            proceed.wait(LIMIT)
        steps.append(line.rpartition(",")[0])

    with Steps(notify) as step:
        step("first")
        assert reporting.wait(LIMIT)
        next_step = threading.Thread(target=step, args=("second",))
        next_step.start()
        proceed.set()
        next_step.join(LIMIT)
    assert steps[: steps.index("second")] == ["first"] * steps.index("second")
    assert "first" not in steps[steps.index("second") :]


@pytest.mark.parametrize("terminal", [True, False])
def test_wait_message_is_shown_only_in_a_terminal(terminal: bool) -> None:
    shown = io.StringIO()
    with waiting(Console(file=shown, width=80, force_terminal=terminal), "making a release of job [1]"):
        pass
    assert ("making a release of job [1]" in shown.getvalue()) is terminal


def test_steps_update_one_line_in_a_terminal() -> None:
    shown = io.StringIO()
    with compiling(Console(file=shown, width=80, force_terminal=True)) as notify:
        notify("checking the gradient (3 of 6), 12 s")
    assert "compiling: checking the gradient (3 of 6), 12 s" in shown.getvalue()


def test_only_long_steps_are_printed_and_once_each() -> None:
    console = Console(file=io.StringIO(), width=80)
    notify = CompilingLines(console)
    for line in ("reading the data, 0 s", "loading torch, 1 s", "checking, 2 s", "checking, 3 s", "ending, 4 s"):
        notify(line)
    assert console.file.getvalue() == "compiling: checking, 2 s\ncompiling: ending, 4 s\n"  # type: ignore[attr-defined]
