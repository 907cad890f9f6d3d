"""Workers that perform the work of machines (`StartWork`), outside of the network loop."""

from __future__ import annotations

import logging
import threading
from collections.abc import Callable
from functools import partial
from typing import Any, Protocol

from sojourn.errors import DiskFull, SojournError
from sojourn.node.machine import WorkDone, WorkEvent, WorkFailed, WorkProgress

log = logging.getLogger(__name__)


class Workers(Protocol):
    """Performs work and reports the outcome, from any thread."""

    def start(self, key: str, work: Any, report: Callable[[WorkEvent], None]) -> None:
        """Start a piece of work and return at once."""

    def stop(self, key: str) -> None:
        """Cancel a piece of work."""

    def close(self) -> None:
        """End all work."""


def attempt(key: str, work: Any, perform: Callable[[Any], Any]) -> WorkDone | WorkFailed:
    """Perform work in the caller's thread; a failure is returned and never crashes the node."""
    try:
        return WorkDone(key, perform(work))
    except SojournError as error:
        return WorkFailed(key, "disk" if isinstance(error, DiskFull) else "failed", str(error))
    except Exception as error:  # a failure must not end the node; the traceback is in the log
        log.exception("%s failed (%s)", type(work).__name__, key)
        return WorkFailed(key, "failed", f"{type(error).__name__}: {error}")


class InlineWorkers:
    """Performs work at once, in the caller: for simulation and for tests."""

    def __init__(self, perform: Callable[[Any], Any]) -> None:
        self._perform = perform

    def start(self, key: str, work: Any, report: Callable[[WorkEvent], None]) -> None:
        """Perform the work at once, and report its outcome."""
        report(attempt(key, work, self._perform))

    def stop(self, key: str) -> None:
        """Do nothing: the work has ended before `start` returned."""

    def close(self) -> None:
        """Do nothing."""


class ThreadWorkers:
    """Performs each piece of work on a separate thread: numpy and onnxruntime release the interpreter lock.

    reports: `perform` also takes a function `notify`, to which it reports its progress as text.
    """

    def __init__(self, perform: Callable[..., Any], *, reports: bool = False) -> None:
        self._perform = perform
        self._reports = reports
        self._wanted: set[str] = set()

    def start(self, key: str, work: Any, report: Callable[[WorkEvent], None]) -> None:
        """Start a new thread."""
        self._wanted.add(key)

        def notify(text: str) -> None:
            if key in self._wanted:
                report(WorkProgress(key, 0, 0, text))

        def run() -> None:
            outcome = attempt(key, work, partial(self._perform, notify=notify) if self._reports else self._perform)
            if key in self._wanted:
                self._wanted.discard(key)
                report(outcome)

        threading.Thread(target=run, name=f"work {key}", daemon=True).start()

    def stop(self, key: str) -> None:
        """Drop the outcome: a thread cannot be stopped."""
        self._wanted.discard(key)

    def close(self) -> None:
        """Drop all outcomes: threads are daemons, which end with the process."""
        self._wanted.clear()
