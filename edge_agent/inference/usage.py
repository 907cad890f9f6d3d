"""What programs tell the agent of their predictions: small datagrams on a Unix socket, and never a byte on the disk.

A report holds what came since the one before it. Times are counted in bins that grow by a twentieth, so that
percentiles are right within 2.5 %.
"""

from __future__ import annotations

import os
import socket
from collections import Counter
from contextlib import contextmanager
from dataclasses import dataclass, field
from math import log
from typing import TYPE_CHECKING, Annotated

import msgspec

from edge_agent.releases.folder import FOLDER
from sojourn.protocol.limits import Name, Number
from sojourn.protocol.release import CLASSES, Pace, Version

if TYPE_CHECKING:
    from collections.abc import Iterator
    from pathlib import Path

SOCKET = "usage.sock"
LARGEST = 32 << 10
"""Bytes of a datagram; one with all classes and all bins, however much they count, has less."""
BINS = 400
_GROWTH = 1.05
_LOG_GROWTH = log(_GROWTH)
_LONGEST_PATH = 100
"""A Unix socket's path may have 108 bytes on Linux, 104 elsewhere."""

Bin = Annotated[int, msgspec.Meta(ge=0, lt=BINS)]
ClassNumber = Annotated[int, msgspec.Meta(ge=0, le=CLASSES)]
"""The last one is for all classes that are not counted one by one."""
Words = Annotated[str, msgspec.Meta(max_length=500)]


class UsageReport(msgspec.Struct, frozen=True, array_like=True):
    """What one program did with one version since its last report."""

    line: Name
    version: Version
    predictions: Number = 0
    times: Annotated[dict[Bin, Number], msgspec.Meta(max_length=BINS)] = {}
    classes: Annotated[dict[ClassNumber, Number], msgspec.Meta(max_length=CLASSES + 1)] = {}
    errors: Number = 0
    words: Words = ""
    """What a person should know of the last error."""
    failure: Words = ""
    """Why the version could not be loaded."""


@dataclass
class UsageTally:
    """Sums of reports on one version."""

    predictions: int = 0
    times: Counter[int] = field(default_factory=Counter)
    classes: Counter[int] = field(default_factory=Counter)
    errors: int = 0

    def add(self, report: UsageReport) -> None:
        """Count a report in."""
        self.predictions += report.predictions
        self.times.update(report.times)
        self.classes.update(report.classes)
        self.errors += report.errors

    def pace(self) -> Pace | None:
        """Median and 95th percentile of the times, in microseconds."""
        return Pace(percentile(self.times, 0.5), percentile(self.times, 0.95)) if self.times.total() else None


def bin_of(microseconds: float) -> int:
    """The bin that counts a time."""
    return min(BINS - 1, int(log(microseconds) / _LOG_GROWTH)) if microseconds > 1 else 0


def percentile(times: Counter[int], share: float) -> float:
    """The time in microseconds that this share of all does not exceed: the middle of its bin."""
    wanted, seen, last = share * times.total(), 0, 0
    for last in sorted(times):
        seen += times[last]
        if seen >= wanted:
            break
    return float(_GROWTH ** (last + 0.5))


class UsageSender:
    """A program's end of the socket: a report is sent at once or not at all, so that no prediction waits for it."""

    def __init__(self, store: Path) -> None:
        self._folder = store / FOLDER
        self._socket = socket.socket(socket.AF_UNIX, socket.SOCK_DGRAM)
        self._socket.setblocking(False)

    def tell(self, report: UsageReport) -> bool:
        """Send a report; False when nobody listens, or is too slow to."""
        try:
            with address_of(self._folder) as address:
                self._socket.sendto(msgspec.msgpack.encode(report), address)
        except OSError:
            return False
        return True

    def close(self) -> None:
        """Let go of the socket."""
        self._socket.close()


@contextmanager
def address_of(folder: Path) -> Iterator[str]:
    """The socket's address, however long the path of its folder is."""
    path = str(folder / SOCKET)
    if len(os.fsencode(path)) <= _LONGEST_PATH:
        yield path
        return
    handle = os.open(folder, os.O_RDONLY | os.O_DIRECTORY)
    try:
        yield f"/proc/self/fd/{handle}/{SOCKET}"
    finally:
        os.close(handle)
