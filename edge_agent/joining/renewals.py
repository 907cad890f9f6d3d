"""Keeps the certificate of a device that joined with a token good: looks at the door now and then.

The device's own clock has no say: the door says when the certificate is due, and when to ask again. Time is counted
with a clock that goes on while the device sleeps.
"""

from __future__ import annotations

import logging
import random
import subprocess
import sys
import threading
import time
from typing import TYPE_CHECKING

import msgspec

from edge_agent.joining.looked import HOUR, Looked

if TYPE_CHECKING:
    from pathlib import Path

log = logging.getLogger("sojourn")
_SECONDS = 120.0
"""For one look; the door may be far."""
_NAP = 30.0
"""How often the clock is looked at."""


class Renewals:
    """Looks at the door at the start, and again when the door said."""

    def __init__(self, folder: Path, *, first: float = 2.0) -> None:
        self._folder = folder
        self._first = first
        self._closing = threading.Event()
        self._said = ""
        self._thread = threading.Thread(target=self._run, name="renewals", daemon=True)
        self._thread.start()

    def close(self) -> None:
        """Look no more."""
        self._closing.set()

    def _run(self) -> None:
        pause = self._first * random.uniform(0.5, 1.0)
        while not self._slept(pause):
            looked = look_outside(self._folder)
            if looked.text and looked.text != self._said:
                log.log(logging.WARNING if looked.warn else logging.INFO, "%s", looked.text)
            self._said = looked.text
            pause = looked.again * random.uniform(0.9, 1.0)  # so that a fleet does not come at once

    def _slept(self, seconds: float) -> bool:
        """Wait for so long; True if there is nothing more to wait for."""
        until = _now() + seconds
        while (left := until - _now()) > 0:
            if self._closing.wait(min(left, _NAP)):
                return True
        return self._closing.is_set()


def look_outside(folder: Path) -> Looked:
    """One look at the door, by a process of its own."""
    command = [sys.executable, "-P", "-m", "edge_agent.joining.renewing", str(folder)]
    try:
        done = subprocess.run(command, check=True, capture_output=True, timeout=_SECONDS)
        return msgspec.json.decode(done.stdout, type=Looked)
    except (OSError, subprocess.SubprocessError, msgspec.MsgspecError) as error:
        return Looked(HOUR, f"the certificate could not be looked after: {error}", warn=True)


def _now() -> float:
    return time.clock_gettime(time.CLOCK_BOOTTIME) if hasattr(time, "CLOCK_BOOTTIME") else time.monotonic()
