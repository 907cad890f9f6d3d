"""Wait for a durable state: the one way in which a test waits for another process, thread, broker or browser."""

from __future__ import annotations

import time
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from collections.abc import Callable

LIMIT = 240.0
"""Seconds until a test gives up: far more than a stalled machine needs, and free when the test passes."""
WHOLE = 3 * LIMIT
"""The same for a command that compiles, trains and ends: its steps take their time one after the other."""
_PAUSE = 0.02


def wait_until(condition: Callable[[], object], what: str, details: Callable[[], object] | None = None) -> None:
    """Return when the condition holds; after `LIMIT` seconds fail with `what` was expected and the details.

    The condition must be a state that stays once it is reached (a record, a file, a count that only grows, the end of
    a process), never one that may have passed before the first look.
    """
    deadline = time.monotonic() + LIMIT
    while not condition():
        if time.monotonic() > deadline:
            shown = f"\n{details()}" if details else ""
            raise AssertionError(f"waited {LIMIT:.0f} s without success for {what}{shown}")
        time.sleep(_PAUSE)
