"""What systemd wants to hear of a service: that it is ready, how it is, that it is alive. Silent where nobody listens.

The protocol of sd_notify(3): datagrams to the Unix socket that NOTIFY_SOCKET names; a leading `@` is an abstract one.
"""

from __future__ import annotations

import os
import socket
import time
from contextlib import suppress
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from collections.abc import Mapping

_LONGEST_STATUS = 300


class Notifier:
    """Speaks to the service manager, if there is one; what it does not take is lost, and nobody waits."""

    def __init__(self, address: str | None = None, watchdog: float | None = None) -> None:
        """`watchdog` is after how many silent seconds the service is taken for hung."""
        self._address = "\0" + address[1:] if address and address.startswith("@") else address
        self._socket = socket.socket(socket.AF_UNIX, socket.SOCK_DGRAM) if address else None
        self.pulse = watchdog / 2 if watchdog and address else None
        """How many seconds may pass between two signs of life."""
        self._next_pulse = 0.0
        self._status = ""
        if self._socket is not None:
            self._socket.setblocking(False)

    @classmethod
    def from_environment(cls, environment: Mapping[str, str] = os.environ) -> Notifier:
        """As systemd tells the services that it starts."""
        address, microseconds = environment.get("NOTIFY_SOCKET"), environment.get("WATCHDOG_USEC", "")
        meant = environment.get("WATCHDOG_PID") in (None, str(os.getpid()))
        watchdog = int(microseconds) / 1e6 if meant and microseconds.isdecimal() else None
        return cls(address or None, watchdog or None)

    def ready(self) -> None:
        """Tell systemd that the service runs."""
        self._say("READY=1")

    def stopping(self) -> None:
        """The service ends in good order; that may take a while."""
        self._say("STOPPING=1")

    def status(self, text: str) -> None:
        """One line for `systemctl status`, said when it changes."""
        line = " ".join(text.split())[:_LONGEST_STATUS]
        if line != self._status:
            self._status = line
            self._say(f"STATUS={line}")

    def alive(self, now: float) -> None:
        """A sign of life, not more often than it is due. Only for the loop that must not hang."""
        if self.pulse is not None and now >= self._next_pulse:
            self._next_pulse = now + self.pulse
            self._say("WATCHDOG=1")

    def nap(self, seconds: float) -> None:
        """Wait on purpose: that is no hang."""
        until = time.monotonic() + seconds
        while (left := until - time.monotonic()) > 0:
            self.alive(time.monotonic())
            time.sleep(left if self.pulse is None else min(left, self.pulse / 2))

    def close(self) -> None:
        """Let go of the socket."""
        if self._socket is not None:
            self._socket.close()
            self._socket = None

    def _say(self, words: str) -> None:
        if self._socket is not None and self._address is not None:
            with suppress(OSError):  # the manager restarts, or its queue is full: it will hear the next
                self._socket.sendto(words.encode(), self._address)
