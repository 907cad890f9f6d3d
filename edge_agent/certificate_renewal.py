"""Keeps the certificate of a device that joined with a token valid, with checks in a separate process."""

from __future__ import annotations

import logging
import random
import threading
import time
from pathlib import Path

import msgspec

from sojourn.errors import MachineError
from sojourn.processes import ask

DAY, HOUR, MINUTE = 86_400.0, 3_600.0, 60.0


class RenewalStatus(msgspec.Struct, frozen=True):
    """The result of one check at the door: seconds until the next check, and a log line (a warning if `warn`)."""

    again: float
    text: str = ""
    warn: bool = False


# The device's own clock is not used: the door's reply contains whether the certificate is due and when to check again.
# Pauses are measured with a clock that continues while the device is suspended.

log = logging.getLogger("sojourn")
_CHECK_TIMEOUT = 120.0
"""Seconds that one check may take; the connection to the door may be slow."""
_CLOCK_INTERVAL = 30.0
"""Seconds between two readings of the clock during a pause."""


class Renewals:
    """Checks the certificate at the door at the start, and then at the times that the door requests."""

    def __init__(self, folder: Path, *, first: float = 2.0) -> None:
        self._folder = folder
        self._first = first
        self._closing = threading.Event()
        self._logged = ""
        self._thread = threading.Thread(target=self._run, name="renewals", daemon=True)
        self._thread.start()

    def close(self) -> None:
        """Stop checking."""
        self._closing.set()

    def _run(self) -> None:
        pause = self._first * random.uniform(0.5, 1.0)
        while not self._wait(pause):
            status = check_renewal(self._folder)
            if status.text and status.text != self._logged:
                log.log(logging.WARNING if status.warn else logging.INFO, "%s", status.text)
            self._logged = status.text
            pause = status.again * random.uniform(0.9, 1.0)  # spreads the requests of a fleet

    def _wait(self, seconds: float) -> bool:
        """Wait for this many seconds; return True if `close` was called."""
        until = _now() + seconds
        while (left := until - _now()) > 0:
            if self._closing.wait(min(left, _CLOCK_INTERVAL)):
                return True
        return self._closing.is_set()


def check_renewal(folder: Path) -> RenewalStatus:
    """Check the certificate at the door in a separate process."""
    try:
        return ask("edge_agent.joining", str(folder), msgspec.msgpack.Decoder(RenewalStatus), _CHECK_TIMEOUT)
    except MachineError as error:
        return RenewalStatus(HOUR, f"the certificate could not be checked: {error}", warn=True)


def _now() -> float:
    return time.clock_gettime(time.CLOCK_BOOTTIME) if hasattr(time, "CLOCK_BOOTTIME") else time.monotonic()
