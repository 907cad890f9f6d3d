"""Usage reports of local programs: datagrams on a Unix socket, the error token, and limits on counted errors."""

from __future__ import annotations

import hmac
import os
import socket
from collections import Counter
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from math import log
from pathlib import Path
from typing import Annotated

import msgspec

from edge_agent.releases.folder import FOLDER
from sojourn.errors import ConfigError
from sojourn.protocol.limits import Name, Number
from sojourn.protocol.release import CLASSES, Pace, Version

MIN_TOKEN_LENGTH = 16
"""Minimum characters of a token; shorter ones can be guessed."""
_MAX_TOKEN_BYTES = 4096
WINDOW = 60.0
MAX_PER_PROGRAM, MAX_PER_USER = 10, 30
"""Maximum number of errors that count in a window of 60 seconds."""
_MAX_PROGRAMS = 256
"""Maximum number of programs per window; the errors of further programs do not count."""


class ErrorToken:
    """The token that a program sends to the endpoint to report errors; if empty, error reports are refused."""

    def __init__(self, token: str = "") -> None:
        self._token = token

    @classmethod
    def read(cls, file: str | None) -> ErrorToken:
        """Read the token from a file, which must not be readable by all users."""
        if file is None:
            return cls()
        path = Path(file).expanduser()
        try:
            mode, text = path.stat().st_mode, path.read_bytes()[:_MAX_TOKEN_BYTES].decode().strip()
        except OSError as error:
            raise ConfigError(f"the error token {path} cannot be read: {error.strerror}") from error
        except UnicodeDecodeError:
            raise ConfigError(f"the error token {path} is not text") from None
        if mode & 0o007:
            raise ConfigError(f"the error token {path} is readable by all users: run chmod o= {path}")
        if len(text) < MIN_TOKEN_LENGTH:
            raise ConfigError(
                f"the error token {path} has {len(text)} characters: at least {MIN_TOKEN_LENGTH} are needed"
            )
        return cls(text)

    def __bool__(self) -> bool:
        return bool(self._token)

    def shown_in(self, header: str | None) -> bool:
        """Whether a header `Authorization: Bearer TOKEN` contains the token."""
        kind, _, text = (header or "").strip().partition(" ")
        shown = text.strip().encode(errors="replace")
        return bool(self) and kind.lower() == "bearer" and hmac.compare_digest(shown, self._token.encode())


class ErrorCount:
    """Limits how many of the errors that programs report count, per program and per user."""

    def __init__(self) -> None:
        self._until = float("-inf")
        self._programs: Counter[tuple[int, int]] = Counter()
        self._users: Counter[int] = Counter()

    def counted(self, user: int, program: int, errors: int, now: float) -> int:
        """Return how many of a program's errors count."""
        if now >= self._until:
            self._until = now + WINDOW
            self._programs.clear()
            self._users.clear()
        key = (user, program)
        if key not in self._programs and len(self._programs) >= _MAX_PROGRAMS:
            return 0
        counted = max(0, min(errors, MAX_PER_PROGRAM - self._programs[key], MAX_PER_USER - self._users[user]))
        if counted:  # a program without counted errors takes no place
            self._programs[key] += counted
            self._users[user] += counted
        return counted


# Usage reports are small datagrams on a Unix socket; nothing is written to the disk.
#
# A report contains the usage since the previous one. Times are counted in bins that grow by 5 %, so that percentiles
# are accurate within 2.5 %.

SOCKET = "usage.sock"
LARGEST = 32 << 10
"""Maximum bytes of a datagram; a report with all classes and all bins is smaller."""
BINS = 400
_GROWTH = 1.05
_LOG_GROWTH = log(_GROWTH)
_MAX_PATH = 100
"""Maximum bytes of a Unix socket's path; the limit is 108 on Linux and 104 on other systems."""

Bin = Annotated[int, msgspec.Meta(ge=0, lt=BINS)]
ClassNumber = Annotated[int, msgspec.Meta(ge=0, le=CLASSES)]
"""The last number counts all classes that are not counted separately."""
ReportText = Annotated[str, msgspec.Meta(max_length=500)]


class UsageReport(msgspec.Struct, frozen=True, array_like=True):
    """How one program used one version since its last report."""

    line: Name
    version: Version
    predictions: Number = 0
    times: Annotated[dict[Bin, Number], msgspec.Meta(max_length=BINS)] = {}
    classes: Annotated[dict[ClassNumber, Number], msgspec.Meta(max_length=CLASSES + 1)] = {}
    errors: Number = 0
    error_text: ReportText = ""
    """A description of the last error."""
    failure: ReportText = ""
    """Why the version could not be loaded."""


@dataclass
class UsageTally:
    """Sums of reports on one version."""

    predictions: int = 0
    times: Counter[int] = field(default_factory=Counter)
    classes: Counter[int] = field(default_factory=Counter)
    errors: int = 0

    def add(self, report: UsageReport) -> None:
        """Add a report."""
        self.predictions += report.predictions
        self.times.update(report.times)
        self.classes.update(report.classes)
        self.errors += report.errors

    def pace(self) -> Pace | None:
        """Return the median and the 95th percentile of the times in microseconds."""
        return Pace(percentile(self.times, 0.5), percentile(self.times, 0.95)) if self.times.total() else None


def bin_of(microseconds: float) -> int:
    """Return the bin of a time."""
    return min(BINS - 1, int(log(microseconds) / _LOG_GROWTH)) if microseconds > 1 else 0


def percentile(times: Counter[int], share: float) -> float:
    """Return the time in microseconds that this share of the predictions does not exceed: the middle of its bin."""
    wanted, seen, last = share * times.total(), 0, 0
    for last in sorted(times):
        seen += times[last]
        if seen >= wanted:
            break
    return float(_GROWTH ** (last + 0.5))


class UsageSender:
    """A program's end of the socket, which never blocks: a report that cannot be sent immediately is not sent."""

    def __init__(self, store: Path) -> None:
        self._folder = store / FOLDER
        self._socket = socket.socket(socket.AF_UNIX, socket.SOCK_DGRAM)
        self._socket.setblocking(False)

    def send(self, report: UsageReport) -> bool:
        """Send a report; return False if the agent does not listen, or its socket is full."""
        try:
            with address_of(self._folder) as address:
                self._socket.sendto(msgspec.msgpack.encode(report), address)
        except OSError:
            return False
        return True

    def close(self) -> None:
        """Close the socket."""
        self._socket.close()


@contextmanager
def address_of(folder: Path) -> Iterator[str]:
    """Yield an address of the socket that is short enough, even if its folder has a long path."""
    path = str(folder / SOCKET)
    if len(os.fsencode(path)) <= _MAX_PATH:
        yield path
        return
    handle = os.open(folder, os.O_RDONLY | os.O_DIRECTORY)
    try:
        yield f"/proc/self/fd/{handle}/{SOCKET}"
    finally:
        os.close(handle)
