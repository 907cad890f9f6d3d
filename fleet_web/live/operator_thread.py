"""One connection to a coordinator, on a thread of its own: questions of all pages go through it one after another."""

from __future__ import annotations

import asyncio
import logging
import queue
import threading
from typing import TYPE_CHECKING, Any, NamedTuple, TypeVar

if TYPE_CHECKING:
    from collections.abc import Callable

    from coordinator.console.operator import Operator

_T = TypeVar("_T")
log = logging.getLogger(__name__)


class _Asked(NamedTuple):
    question: Callable[[Operator], Any]
    answer: asyncio.Future[Any]
    loop: asyncio.AbstractEventLoop


class OperatorThread:
    """Asks, and between two questions does what `idle` does: it returns soon, or when `waits` says that one waits."""

    def __init__(self, operator: Operator, idle: Callable[[Operator], None]) -> None:
        self._operator = operator
        self._idle = idle
        self._asked: queue.SimpleQueue[_Asked] = queue.SimpleQueue()
        self._over = threading.Event()
        self._thread = threading.Thread(target=self._run, name="operator", daemon=True)

    def start(self) -> None:
        """Begin."""
        self._thread.start()

    def stop(self) -> None:
        """End after the question that is under way."""
        self._over.set()
        self._operator.interrupt()
        self._thread.join(timeout=1.0)

    def waits(self) -> bool:
        """Whether somebody waits for an answer, or for the end."""
        return self._over.is_set() or not self._asked.empty()

    async def ask(self, question: Callable[[Operator], _T]) -> _T:
        """What the operator's connection answers; its errors are raised here."""
        loop = asyncio.get_running_loop()
        asked = _Asked(question, loop.create_future(), loop)
        self._asked.put(asked)
        self._operator.interrupt()
        found: _T = await asked.answer
        return found

    def _run(self) -> None:
        while not self._over.is_set():
            while not self._asked.empty() and not self._over.is_set():
                _answer(self._asked.get(), self._operator)
            if not self._over.is_set():
                self._idle(self._operator)


def _answer(asked: _Asked, operator: Operator) -> None:
    if asked.answer.cancelled():
        return
    try:
        found, error = asked.question(operator), None
    except Exception as caught:  # noqa: BLE001  # it is raised again where it was asked
        found, error = None, caught

    def settle() -> None:
        if asked.answer.done():
            return
        if error is None:
            asked.answer.set_result(found)
        else:
            asked.answer.set_exception(error)

    asked.loop.call_soon_threadsafe(settle)
