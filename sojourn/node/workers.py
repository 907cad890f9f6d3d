"""Who performs the work that machines ask for (`Do`), away from the network loop."""

from __future__ import annotations

import logging
import threading
from functools import partial
from typing import TYPE_CHECKING, Any, Protocol

from sojourn.errors import SojournError
from sojourn.node.machine import Did, DidNot, Doing

if TYPE_CHECKING:
    from collections.abc import Callable

log = logging.getLogger(__name__)


class Workers(Protocol):
    """Performs work and reports how it went, from any thread."""

    def start(self, key: str, work: Any, report: Callable[[Did | Doing | DidNot], None]) -> None:
        """Begin a piece of work and return at once."""

    def stop(self, key: str) -> None:
        """End a piece of work that is no longer wanted."""

    def close(self) -> None:
        """End all work."""


def attempt(key: str, work: Any, perform: Callable[[Any], Any]) -> Did | DidNot:
    """Perform work here and now; a failure is a report, never a crash of the node."""
    try:
        return Did(key, perform(work))
    except SojournError as error:
        return DidNot(key, type(error).__name__, str(error))
    except Exception as error:  # a node outlives its work; the traceback is in the log
        log.exception("%s failed (%s)", type(work).__name__, key)
        return DidNot(key, "Fault", f"{type(error).__name__}: {error}")


class InlineWorkers:
    """Performs work at once, in the caller: for simulation and for tests."""

    def __init__(self, perform: Callable[[Any], Any]) -> None:
        self._perform = perform

    def start(self, key: str, work: Any, report: Callable[[Did | Doing | DidNot], None]) -> None:
        """Do the work at once, and report its end."""
        report(attempt(key, work, self._perform))

    def stop(self, key: str) -> None:
        """Do nothing: work here is over as soon as it began."""

    def close(self) -> None:
        """There is nothing to end."""


class ThreadWorkers:
    """Performs each piece of work on a thread of its own: numpy and onnxruntime let go of the interpreter.

    tells: `perform` takes a function `tell` too, to which it says in words what it is at.
    """

    def __init__(self, perform: Callable[..., Any], *, tells: bool = False) -> None:
        self._perform = perform
        self._tells = tells
        self._wanted: set[str] = set()

    def start(self, key: str, work: Any, report: Callable[[Did | Doing | DidNot], None]) -> None:
        """Begin on a new thread."""
        self._wanted.add(key)

        def tell(text: str) -> None:
            if key in self._wanted:
                report(Doing(key, 0, 0, text))

        def run() -> None:
            outcome = attempt(key, work, partial(self._perform, tell=tell) if self._tells else self._perform)
            if key in self._wanted:
                self._wanted.discard(key)
                report(outcome)

        threading.Thread(target=run, name=f"work {key}", daemon=True).start()

    def stop(self, key: str) -> None:
        """A thread cannot be stopped; its outcome is dropped."""
        self._wanted.discard(key)

    def close(self) -> None:
        """Threads are daemons: they end with the process."""
        self._wanted.clear()
