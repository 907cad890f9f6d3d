"""The roles of a fleet as processes of this machine, each with a log of its own."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import time
from contextlib import suppress
from typing import TYPE_CHECKING, Self

from sojourn.brokers.run import die_with_parent
from sojourn.errors import MachineError

if TYPE_CHECKING:
    from pathlib import Path
    from types import TracebackType

GRACE = 8.0
"""Seconds for a process to end by itself after it was asked to."""
LAST_LINES = 12


class Processes:
    """Processes that end with the `with` block, whatever happens in it."""

    def __init__(self, logs: Path) -> None:
        self._logs = logs
        self._running: dict[str, subprocess.Popen[bytes]] = {}
        self._interrupted = self._starting = False

    def __len__(self) -> int:
        return len(self._running)

    def start(self, name: str, *arguments: str) -> None:
        """Start `sojourn` with these arguments."""
        self._starting = True
        try:
            with self._log(name).open("wb") as output:
                self._running[name] = subprocess.Popen(
                    [sys.executable, "-P", "-m", "sojourn.cli", *arguments],
                    stdin=subprocess.DEVNULL,
                    stdout=output,
                    stderr=subprocess.STDOUT,
                    # Ctrl-C is for us: we end them in good order.
                    start_new_session=True,
                    preexec_fn=die_with_parent(),  # noqa: PLW1509  # one system call, in a library that is loaded already
                )
        finally:
            self._starting = False
        self._stop_if_interrupted()

    def interrupt(self, _number: int, _frame: object) -> None:
        """The handler of signals: Python prints and swallows what is raised in the middle of a fork, so that waits."""
        self._interrupted = True
        if not self._starting:
            raise KeyboardInterrupt

    def check(self) -> None:
        """Make sure that all of them still run, and that nobody wants them to end."""
        self._stop_if_interrupted()
        for name, process in self._running.items():
            if (code := process.poll()) is not None:
                log = self._log(name)
                raise MachineError(f"{name} ended with code {code}; the end of {log}:\n{_last_lines(log)}")

    def _stop_if_interrupted(self) -> None:
        if self._interrupted:
            raise KeyboardInterrupt

    def stop(self) -> None:
        """End them, all at the same time, those that were started last first."""
        for process in reversed(self._running.values()):
            process.terminate()
        deadline = time.monotonic() + GRACE
        for process in self._running.values():
            try:
                process.wait(max(0.0, deadline - time.monotonic()))
            except subprocess.TimeoutExpired:
                process.kill()
                process.wait()
            # What it started and left behind, like a model being compiled, is in its group.
            with suppress(ProcessLookupError):
                os.killpg(process.pid, signal.SIGKILL)
        self._running.clear()

    def _log(self, name: str) -> Path:
        return self._logs / f"{name}.log"

    def __enter__(self) -> Self:
        return self

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None, at: TracebackType | None) -> None:
        self.stop()


def _last_lines(log: Path) -> str:
    text = log.read_text(encoding="utf-8", errors="replace")
    return "\n".join(f"  {line}" for line in text.splitlines()[-LAST_LINES:])
