"""The roles of a fleet as local processes, each with its own log."""

from __future__ import annotations

import subprocess
import sys
import time
from pathlib import Path
from types import TracebackType
from typing import Self

from sojourn.errors import MachineError
from sojourn.processes import last_lines, start_program, wait_or_kill

GRACE = 8.0
"""Seconds for a process to end after it was asked to."""


class Processes:
    """Processes that are stopped at the end of the `with` block, also after an error."""

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
            command = [sys.executable, "-P", "-m", "sojourn.cli", *arguments]
            self._running[name] = start_program(command, self._log(name))
        finally:
            self._starting = False
        self._stop_if_interrupted()

    def interrupt(self, _number: int, _frame: object) -> None:
        """Handle a signal after a running fork: Python prints and ignores exceptions raised during a fork."""
        self._interrupted = True
        if not self._starting:
            raise KeyboardInterrupt

    def check(self) -> None:
        """Raise an error if a process has ended, or if the user has interrupted the demo."""
        self._stop_if_interrupted()
        for name, process in self._running.items():
            if (code := process.poll()) is not None:
                log = self._log(name)
                raise MachineError(f"{name} exited with code {code}; the end of {log}:\n{last_lines(log)}")

    def _stop_if_interrupted(self) -> None:
        if self._interrupted:
            raise KeyboardInterrupt

    def stop(self) -> None:
        """Stop all processes in parallel, in reverse order of their start."""
        for process in reversed(self._running.values()):
            process.terminate()
        deadline = time.monotonic() + GRACE
        for process in self._running.values():
            wait_or_kill(process, max(0.0, deadline - time.monotonic()))
        self._running.clear()

    def _log(self, name: str) -> Path:
        return self._logs / f"{name}.log"

    def __enter__(self) -> Self:
        return self

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None, at: TracebackType | None) -> None:
        self.stop()
