"""Service notifications for systemd: readiness, status and watchdog.

It implements sd_notify(3): datagrams to the Unix socket in NOTIFY_SOCKET; a leading `@` means an abstract socket.
"""

from __future__ import annotations

import os
import socket
import time
from collections.abc import Mapping
from contextlib import suppress

_MAX_STATUS = 300


class Notifier:
    """Notifies the service manager, if there is one, without waiting for it."""

    def __init__(self, address: str | None = None, watchdog: float | None = None) -> None:
        """`watchdog` is the watchdog timeout in seconds."""
        self._address = "\0" + address[1:] if address and address.startswith("@") else address
        self._socket = socket.socket(socket.AF_UNIX, socket.SOCK_DGRAM) if address else None
        self.interval = watchdog / 2 if watchdog and address else None
        """The seconds between two watchdog signals."""
        self._next_signal = 0.0
        self._status = ""
        if self._socket is not None:
            self._socket.setblocking(False)

    @classmethod
    def from_environment(cls, environment: Mapping[str, str] = os.environ) -> Notifier:
        """Create a notifier from systemd's environment variables."""
        address, microseconds = environment.get("NOTIFY_SOCKET"), environment.get("WATCHDOG_USEC", "")
        meant = environment.get("WATCHDOG_PID") in (None, str(os.getpid()))
        watchdog = int(microseconds) / 1e6 if meant and microseconds.isdecimal() else None
        return cls(address or None, watchdog or None)

    def ready(self) -> None:
        """Notify that the service is ready."""
        self._report("READY=1")

    def stopping(self) -> None:
        """Notify that the service is shutting down, which may take a while."""
        self._report("STOPPING=1")

    def status(self, text: str) -> None:
        """Set the line for `systemctl status`, if it has changed."""
        line = " ".join(text.split())[:_MAX_STATUS]
        if line != self._status:
            self._status = line
            self._report(f"STATUS={line}")

    def alive(self, now: float) -> None:
        """Send a watchdog signal if it is due; call this only from the watched loop."""
        if self.interval is not None and now >= self._next_signal:
            self._next_signal = now + self.interval
            self._report("WATCHDOG=1")

    def nap(self, seconds: float) -> None:
        """Sleep, with watchdog signals meanwhile."""
        until = time.monotonic() + seconds
        while (left := until - time.monotonic()) > 0:
            self.alive(time.monotonic())
            time.sleep(left if self.interval is None else min(left, self.interval / 2))

    def close(self) -> None:
        """Close the socket."""
        if self._socket is not None:
            self._socket.close()
            self._socket = None

    def _report(self, words: str) -> None:
        if self._socket is not None and self._address is not None:
            with suppress(OSError):  # the manager is restarting, or its queue is full: it will get the next message
                self._socket.sendto(words.encode(), self._address)
