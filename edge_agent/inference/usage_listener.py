"""The agent's end of the socket on which programs tell of their predictions: adds them up and says how a release does.

What comes in is bounded: a datagram's size, one tally for the current and one for the previous version of each line
that is served here, and the errors of each program and user, whom the kernel names. Anything else is dropped and
counted.
"""

from __future__ import annotations

import logging
import os
import socket
import struct
import threading
from contextlib import suppress
from dataclasses import dataclass, field
from time import monotonic
from typing import TYPE_CHECKING, NamedTuple

import msgspec

from edge_agent.inference.reporters import ErrorCount
from edge_agent.inference.usage import LARGEST, UsageReport, UsageTally, address_of
from edge_agent.releases.folder import FOLDER, ReleaseFolder, shared_folder
from edge_agent.releases.work import Usage
from sojourn.errors import InvalidBlob, InvalidMessage, StoreError
from sojourn.model.class_mix import total_variation
from sojourn.protocol.envelope import unpack_blob
from sojourn.protocol.limits import MOST
from sojourn.protocol.release import ENOUGH, Card, Health
from sojourn.store.blobs import disk_errors

if TYPE_CHECKING:
    from collections.abc import Callable
    from pathlib import Path

    from edge_agent.releases.folder import Identity, ServedFiles

PAUSE = 60.0
_SHORT_PAUSE = 1.0
"""Seconds between two urgent words on one line, however many errors programs report."""
_MIX = 64
_SOCKET_MODE = 0o660
_GRACE = 5.0
_CREDENTIALS = struct.Struct("3i")
_ABOUT = socket.CMSG_SPACE(_CREDENTIALS.size)
log = logging.getLogger(__name__)


class Sender(NamedTuple):
    """The program that sent a datagram, and whose it is."""

    user: int
    program: int


NOBODY = Sender(-1, -1)


def sender_of(about: list[tuple[int, int, bytes]]) -> Sender:
    """Who sent a datagram, as the kernel says beside it."""
    for level, kind, data in about:
        if (level, kind) == (socket.SOL_SOCKET, socket.SCM_CREDENTIALS) and len(data) >= _CREDENTIALS.size:
            program, user, _ = _CREDENTIALS.unpack_from(data)
            return Sender(user, program)
    return NOBODY


@dataclass
class LineUsage:
    """What is served of a line, and what programs told of it."""

    folder: ReleaseFolder
    identity: Identity | None = None
    version: int = 0
    tally: UsageTally = field(default_factory=UsageTally)
    before: int = 0
    tally_before: UsageTally = field(default_factory=UsageTally)
    failure: str = ""
    words: str = ""
    """What a program wrote of its last error, since the last word to the agent."""
    due: float | None = None
    """When to tell the agent what is new; None when nothing is."""
    reported_at: float = float("-inf")
    enough: bool = False
    alike: bool = True
    """Whether the groups that the answers of both versions are counted in are the same."""
    error_count: ErrorCount = field(default_factory=ErrorCount)

    def look(self) -> None:
        """Look which version is served: a new one is counted from zero, and the counts of the one before are kept."""
        identity = self.folder.identity()
        if identity == self.identity:
            return
        current = self.folder.current()
        previous = self.folder.previous()
        self.identity = identity
        version, before = current.version if current else 0, previous.version if previous else 0
        if version == self.version:
            return
        known = {self.version: self.tally, self.before: self.tally_before}
        self.tally_before = known.get(before, UsageTally())
        self.version, self.before, self.tally = version, before, UsageTally()
        self.alike = _alike(self.folder, current, previous)
        self.failure, self.enough, self.due = "", False, None

    def add(self, report: UsageReport, sender: Sender, now: float, pause: float) -> bool:
        """Count a report in; False for one on a version that is not served here."""
        errors = self.error_count.counted(sender.user, sender.program, report.errors, now) if report.errors else 0
        report = msgspec.structs.replace(report, errors=errors)
        if report.version == self.before != self.version:
            self.tally_before.add(report)
            return True
        if report.version != self.version:
            return False
        self.tally.add(report)
        self.words = report.words or self.words
        urgent = bool(report.errors) or (self.tally.predictions >= ENOUGH and not self.enough)
        if report.failure and report.failure != self.failure:
            self.failure, urgent = report.failure, True
        if urgent or report.predictions:
            when = max(now, self.reported_at + (_SHORT_PAUSE if urgent else pause))
            self.due = when if self.due is None else min(self.due, when)
        return True

    def usage(self, now: float) -> Usage:
        """All that is known, as the agent is told it now."""
        if self.words:
            log.warning("programs report errors of %s %d: %r", self.folder.line, self.version, self.words)
            self.words = ""
        self.reported_at, self.due = now, None
        self.enough = self.enough or self.tally.predictions >= ENOUGH
        return Usage(self.folder.line, self.version, self._health(), self.failure)

    def _health(self) -> Health:
        tally, before = self.tally, self.tally_before
        counted = tally.classes.total()
        seen = min(_MIX, max((each for each, count in tally.classes.items() if count), default=-1) + 1)
        # A version that was returned to is not compared with the one that it was returned from.
        compared = 0 < self.before < self.version
        enough = min(tally.predictions, before.predictions) >= ENOUGH
        return Health(
            predictions=min(tally.predictions, MOST),
            live=tally.pace(),
            live_before=before.pace() if compared else None,
            live_drift=total_variation(tally.classes, before.classes) if compared and enough and self.alike else 0.0,
            errors=min(tally.errors, MOST),
            mix=tuple(tally.classes[each] / counted for each in range(seen)) if counted else (),
        )


class UsageListener:
    """Listens on a thread of its own and tells the agent how the releases do that programs use here."""

    def __init__(self, store_folder: Path, tell: Callable[[Usage], None], pause: float = PAUSE) -> None:
        """Listen beside the releases of a store; good news is told every `pause` seconds at most, bad news at once."""
        self._store, self._tell, self._pause = store_folder, tell, pause
        self._lines: dict[str, LineUsage] = {}
        self._closed = False
        self.dropped = 0
        """Datagrams that were no report on a release that is served here."""
        folder = store_folder / FOLDER
        with disk_errors(f"listening in {folder}"):
            shared_folder(store_folder, folder)
            self._socket = socket.socket(socket.AF_UNIX, socket.SOCK_DGRAM)
            self._socket.setsockopt(socket.SOL_SOCKET, socket.SO_PASSCRED, 1)  # the kernel says who sent each datagram
            with address_of(folder) as address:
                with suppress(FileNotFoundError):
                    os.unlink(address)  # noqa: PTH108  # left by a process that was killed
                self._socket.bind(address)
                os.chmod(address, _SOCKET_MODE)  # noqa: PTH101  # the address is no path that can be kept
        self._thread = threading.Thread(target=self._listen, name="usage", daemon=True)
        self._thread.start()

    def close(self) -> None:
        """Tell the agent what is new, and end the thread."""
        self._closed = True
        with suppress(OSError), address_of(self._store / FOLDER) as address:
            # An empty one wakes the thread; where the socket is full it wakes by itself.
            self._socket.sendto(b"", socket.MSG_DONTWAIT, address)
        with suppress(OSError):  # where the file is gone this wakes a thread that has nothing to say
            self._socket.shutdown(socket.SHUT_RD)
        self._thread.join(_GRACE)
        self._socket.close()
        with suppress(OSError), address_of(self._store / FOLDER) as address:
            os.unlink(address)  # noqa: PTH108  # as above

    def _listen(self) -> None:
        while not self._closed:
            data, sender = self._receive()
            now = monotonic()
            if data:
                self._take(data, sender, now)
            self._report_due(now)
        for line in self._lines.values():
            if line.due is not None:
                self._tell(line.usage(monotonic()))

    def _receive(self) -> tuple[bytes, Sender]:
        dues = [line.due for line in self._lines.values() if line.due is not None]
        # Without anything to say there is nothing to wake up for.
        self._socket.settimeout(max(0.001, min(dues) - monotonic()) if dues else None)
        try:
            data, about, _, _ = self._socket.recvmsg(LARGEST, _ABOUT)  # a longer one is cut, and so is no report
        except TimeoutError:
            return b"", NOBODY
        return data, sender_of(about)

    def _take(self, data: bytes, sender: Sender, now: float) -> None:
        try:
            if not self._count(_decode(data), sender, now):
                self.dropped += 1
        except (msgspec.MsgspecError, RecursionError, StoreError) as error:
            self.dropped += 1
            log.debug("a datagram on usage was dropped: %s", error)

    def _count(self, report: UsageReport, sender: Sender, now: float) -> bool:
        line = self._lines.get(report.line)
        if line is None:
            line = LineUsage(ReleaseFolder(self._store, report.line))
            if line.folder.identity() is None:
                return False
            self._lines[report.line] = line
        line.look()
        if not line.version:
            del self._lines[report.line]
            return False
        return line.add(report, sender, now, self._pause)

    def _report_due(self, now: float) -> None:
        for line in self._lines.values():
            if line.due is not None and line.due <= now:
                self._tell(line.usage(now))


def _alike(folder: ReleaseFolder, current: ServedFiles | None, previous: ServedFiles | None) -> bool:
    """Whether two versions count their answers in the same groups; classes are, as long as nobody says otherwise."""
    if current is None or previous is None:
        return True
    try:
        now, before = (unpack_blob(folder.read_card(each), Card).task for each in (current, previous))
    except (InvalidBlob, InvalidMessage, StoreError) as error:
        log.debug("two versions of %s are not compared: %s", folder.line, error)
        return False
    if not now or not before:
        return bool(now) == bool(before)
    return (now.kind, now.output, now.strata) == (before.kind, before.output, before.strata)


_decode = msgspec.msgpack.Decoder(UsageReport).decode
