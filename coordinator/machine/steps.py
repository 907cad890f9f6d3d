"""What a long piece of work is at, and for how long: told at each of its steps, and every second in between."""

from __future__ import annotations

import threading
import time
from typing import TYPE_CHECKING, Self

if TYPE_CHECKING:
    from collections.abc import Callable
    from types import TracebackType

EVERY = 1.0
"""Seconds between two times that the same step is told."""


class Steps:
    """Tells texts such as "checking the gradient (3 of 6), 12 s". The seconds are those of the whole work."""

    def __init__(self, tell: Callable[[str], None]) -> None:
        """Tell it to `tell`, from this thread and from another one, until the context is left."""
        self._tell = tell
        self._began = time.monotonic()
        self._step = ""
        self._telling = threading.Lock()
        """Held while a step is told: a step that is over is not told after the one that follows it."""
        self._over = threading.Event()
        self._ticking: threading.Thread | None = None

    def __enter__(self) -> Self:
        return self

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None, at: TracebackType | None) -> None:
        """Nothing is told any more."""
        self._over.set()
        if self._ticking:
            self._ticking.join()

    def __call__(self, step: str) -> None:
        """The work is at this step now."""
        with self._telling:
            self._step = step
            self._say()
        if self._ticking is None:
            self._ticking = threading.Thread(target=self._tick, name="steps", daemon=True)
            self._ticking.start()

    def _tick(self) -> None:
        while not self._over.wait(EVERY):
            with self._telling:
                self._say()

    def _say(self) -> None:
        self._tell(f"{self._step}, {time.monotonic() - self._began:.0f} s")
