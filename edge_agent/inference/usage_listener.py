"""The agent's end of the usage socket: adds up the reports of programs, and reports the health of each release.

All input is bounded: the size of a datagram, one tally each for the current and the previous version of a served line,
and the errors per program and user, which the kernel identifies. Other datagrams are dropped and counted.
"""

from __future__ import annotations

import logging
import os
import socket
import struct
import threading
from collections.abc import Callable
from contextlib import suppress
from dataclasses import dataclass, field
from pathlib import Path
from time import monotonic
from typing import NamedTuple

import msgspec

from edge_agent.inference.usage import LARGEST, ErrorCount, UsageReport, UsageTally, address_of
from edge_agent.releases.folder import FOLDER, Identity, ReleaseFolder, ServedFiles, shared_folder
from edge_agent.releases.orders import Usage
from sojourn.errors import InvalidBlob, InvalidMessage, StoreError
from sojourn.protocol.envelope import unpack_blob
from sojourn.protocol.limits import MAX_COUNT
from sojourn.protocol.release import ENOUGH, Card, Health, total_variation
from sojourn.store.blobs import disk_errors

PAUSE = 60.0
_URGENT_PAUSE = 1.0
"""Minimum seconds between two urgent reports on one line."""
_MAX_MIX = 64
_SOCKET_MODE = 0o660
_GRACE = 5.0
_CREDENTIALS = struct.Struct("3i")
_ABOUT = socket.CMSG_SPACE(_CREDENTIALS.size)
log = logging.getLogger(__name__)


class Sender(NamedTuple):
    """The process that sent a datagram, and its user."""

    user: int
    program: int


UNKNOWN_SENDER = Sender(-1, -1)


def sender_of(about: list[tuple[int, int, bytes]]) -> Sender:
    """Return the sender of a datagram from the kernel's ancillary data."""
    for level, kind, data in about:
        if (level, kind) == (socket.SOL_SOCKET, socket.SCM_CREDENTIALS) and len(data) >= _CREDENTIALS.size:
            program, user, _ = _CREDENTIALS.unpack_from(data)
            return Sender(user, program)
    return UNKNOWN_SENDER


@dataclass
class LineUsage:
    """The served versions of a line, and the usage that programs reported."""

    folder: ReleaseFolder
    identity: Identity | None = None
    version: int = 0
    tally: UsageTally = field(default_factory=UsageTally)
    before: int = 0
    tally_before: UsageTally = field(default_factory=UsageTally)
    failure: str = ""
    error_text: str = ""
    """A program's description of its last error, if it is not logged yet."""
    due: float | None = None
    """When to report to the agent; None if there is nothing new."""
    reported_at: float = float("-inf")
    enough: bool = False
    same_groups: bool = True
    """Whether both versions count their predictions in the same groups."""
    error_count: ErrorCount = field(default_factory=ErrorCount)

    def look(self) -> None:
        """Check which version is served; start new counts for a new version, and keep those of the previous one."""
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
        self.same_groups = _same_groups(self.folder, current, previous)
        self.failure, self.enough, self.due = "", False, None

    def add(self, report: UsageReport, sender: Sender, now: float, pause: float) -> bool:
        """Add a report; return False if its version is not served."""
        errors = self.error_count.counted(sender.user, sender.program, report.errors, now) if report.errors else 0
        report = msgspec.structs.replace(report, errors=errors)
        if report.version == self.before != self.version:
            self.tally_before.add(report)
            return True
        if report.version != self.version:
            return False
        self.tally.add(report)
        self.error_text = report.error_text or self.error_text
        urgent = bool(report.errors) or (self.tally.predictions >= ENOUGH and not self.enough)
        if report.failure and report.failure != self.failure:
            self.failure, urgent = report.failure, True
        if urgent or report.predictions:
            when = max(now, self.reported_at + (_URGENT_PAUSE if urgent else pause))
            self.due = when if self.due is None else min(self.due, when)
        return True

    def usage(self, now: float) -> Usage:
        """Return the usage of the current version to report to the agent."""
        if self.error_text:
            log.warning("programs report errors of %s %d: %r", self.folder.line, self.version, self.error_text)
            self.error_text = ""
        self.reported_at, self.due = now, None
        self.enough = self.enough or self.tally.predictions >= ENOUGH
        return Usage(self.folder.line, self.version, self._health(), self.failure)

    def _health(self) -> Health:
        tally, before = self.tally, self.tally_before
        counted = tally.classes.total()
        seen = min(_MAX_MIX, max((each for each, count in tally.classes.items() if count), default=-1) + 1)
        # After a rollback, the older version is not compared with the newer one.
        compared = 0 < self.before < self.version
        enough = min(tally.predictions, before.predictions) >= ENOUGH
        return Health(
            predictions=min(tally.predictions, MAX_COUNT),
            live=tally.pace(),
            live_before=before.pace() if compared else None,
            live_drift=total_variation(tally.classes, before.classes)
            if compared and enough and self.same_groups
            else 0.0,
            errors=min(tally.errors, MAX_COUNT),
            mix=tuple(tally.classes[each] / counted for each in range(seen)) if counted else (),
        )


class UsageListener:
    """Receives usage reports in a separate thread, and reports the health of the served releases to the agent."""

    def __init__(self, store_folder: Path, notify: Callable[[Usage], None], pause: float = PAUSE) -> None:
        """Listen in a store's release folder; report usage every `pause` seconds, and errors immediately."""
        self._store, self._notify, self._pause = store_folder, notify, pause
        self._lines: dict[str, LineUsage] = {}
        self._closed = False
        self.dropped = 0
        """Number of datagrams that were not valid reports on a served release."""
        folder = store_folder / FOLDER
        with disk_errors(f"listening in {folder}"):
            shared_folder(store_folder, folder)
            self._socket = socket.socket(socket.AF_UNIX, socket.SOCK_DGRAM)
            self._socket.setsockopt(
                socket.SOL_SOCKET, socket.SO_PASSCRED, 1
            )  # the kernel adds the sender to each datagram
            with address_of(folder) as address:
                with suppress(FileNotFoundError):
                    os.unlink(address)  # noqa: PTH108  # left by a killed process
                self._socket.bind(address)
                os.chmod(address, _SOCKET_MODE)  # noqa: PTH101  # the address is not a permanent path
        self._thread = threading.Thread(target=self._listen, name="usage", daemon=True)
        self._thread.start()

    def close(self) -> None:
        """Report new usage to the agent, and end the thread."""
        self._closed = True
        with suppress(OSError), address_of(self._store / FOLDER) as address:
            # An empty datagram wakes the thread; if the socket is full, the thread is awake.
            self._socket.sendto(b"", socket.MSG_DONTWAIT, address)
        with suppress(OSError):  # wakes the thread if the socket's file is gone
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
                self._notify(line.usage(monotonic()))

    def _receive(self) -> tuple[bytes, Sender]:
        dues = [line.due for line in self._lines.values() if line.due is not None]
        # Without a report that is due, wait without a timeout.
        self._socket.settimeout(max(0.001, min(dues) - monotonic()) if dues else None)
        try:
            data, about, _, _ = self._socket.recvmsg(LARGEST, _ABOUT)  # a longer datagram is cut, and then invalid
        except TimeoutError:
            return b"", UNKNOWN_SENDER
        return data, sender_of(about)

    def _take(self, data: bytes, sender: Sender, now: float) -> None:
        try:
            if not self._count(_decode(data), sender, now):
                self.dropped += 1
        except (msgspec.MsgspecError, RecursionError, StoreError) as error:
            self.dropped += 1
            log.debug("usage datagram dropped: %s", error)

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
                self._notify(line.usage(now))


def _same_groups(folder: ReleaseFolder, current: ServedFiles | None, previous: ServedFiles | None) -> bool:
    """Whether two versions count their predictions in the same groups; versions without a task spec do."""
    if current is None or previous is None:
        return True
    try:
        now, before = (unpack_blob(folder.read_card(each), Card).task for each in (current, previous))
    except (InvalidBlob, InvalidMessage, StoreError) as error:
        log.debug("versions of %s are not compared: %s", folder.line, error)
        return False
    if not now or not before:
        return bool(now) == bool(before)
    return (now.kind, now.output, now.strata) == (before.kind, before.output, before.strata)


_decode = msgspec.msgpack.Decoder(UsageReport).decode
