"""The fleet's history: every known device, connections, disconnections and visits.

Age and size are limited, so that no site can fill the disk with invented devices; the oldest entries are dropped first.
The history is only displayed: planning does not use it, so a lost record has no other effect.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from itertools import accumulate

import msgspec

from sojourn.protocol.operator_messages import FleetChange, LastVisit, VisitNote, VisitPhase
from sojourn.protocol.wire import VisitStatus

OLDEST = 90 * 86_400.0
"""Seconds after which connections, disconnections, visits, and devices disconnected for that long are forgotten."""
DEVICES = 20_000
"""Maximum number of known devices; those that disconnected first are forgotten first."""
CHANGES = 20_000
"""Maximum number of stored connections and disconnections."""
VISIT_BYTES = 4 << 20
"""Maximum bytes of stored visits: about 40,000 of them, fewer if their reasons are long."""
ROUND_BYTES = 2 << 20
"""Maximum bytes of stored visits of one round."""
REASON = 160
"""Maximum characters of the reason why a device's last visit failed, shown in every list of devices."""
SHORT = 64
"""Maximum characters of a device's version and machine."""


class DeviceJoined(msgspec.Struct, frozen=True, array_like=True):
    """A device connected at this site, and reported its version and machine."""

    device: str
    site: str
    version: str
    machine: str


class FleetChanged(msgspec.Struct, frozen=True, tag="fleet-changed/1"):
    """Devices connected or disconnected; `at` is in seconds since 1970."""

    at: float
    joined: tuple[DeviceJoined, ...] = ()
    left: tuple[str, ...] = ()


class DeviceForgotten(msgspec.Struct, frozen=True, tag="device-forgotten/1"):
    """An operator removed an offline device from the history."""

    device: str


class VisitOutcome(msgspec.Struct, frozen=True, array_like=True):
    """The outcome of a visit of a round, or of one that was planned but never started."""

    tour: int
    hop: int
    site: str
    device: str
    status: VisitStatus
    reason: str = ""
    samples: int = 0
    seconds: float = 0.0
    loss: float | None = None

    @property
    def bytes(self) -> int:
        """The approximate size in a snapshot."""
        return 60 + len(self.device) + len(self.site) + len(self.reason.encode())


class RoundVisits(msgspec.Struct, frozen=True, array_like=True):
    """All visits of a round, or of an estimation before it."""

    at: float
    job: str
    round: int
    phase: VisitPhase
    outcomes: tuple[VisitOutcome, ...]
    number: int
    """The number of its first visit, counted over all visits ever."""
    bytes: int
    """The approximate size in a snapshot."""


class DeviceHistory(msgspec.Struct, array_like=True):
    """The history of a device."""

    site: str
    version: str
    machine: str
    first: float
    since: float
    online: bool
    visits: int = 0
    failed: int = 0
    last: LastVisit | None = None


class FleetHistory(msgspec.Struct):
    """The known devices and recent events, the newest last."""

    devices: dict[str, DeviceHistory] = {}
    changes: list[FleetChange] = []
    changes_dropped: int = 0
    rounds: list[RoundVisits] = []
    visits_counted: int = 0
    visit_bytes: int = 0
    """The size of all stored rounds."""

    def apply(self, record: FleetChanged) -> None:
        """Record that devices connected or disconnected."""
        for it in record.joined:
            known = self.devices.setdefault(it.device, DeviceHistory("", "", "", record.at, 0.0, online=False))
            known.site, known.version, known.machine = it.site, it.version, it.machine
            known.online, known.since = True, record.at
            self.changes.append(FleetChange(record.at, it.device, it.site, "online"))
        for device in record.left:
            if gone := self.devices.get(device):
                gone.online, gone.since = False, record.at
                self.changes.append(FleetChange(record.at, device, gone.site, "offline"))
        self._forget(record.at)

    def forget(self, record: DeviceForgotten) -> None:
        """Forget a device; its visits remain in the tables of their jobs."""
        self.devices.pop(record.device, None)

    def visited(self, at: float, job: str, round_: int, phase: VisitPhase, outcomes: tuple[VisitOutcome, ...]) -> None:
        """Record the outcomes of the visits of a closed round or estimation."""
        for each in outcomes:
            why = each.reason[:REASON] if each.reason and each.status != "done" else ""
            self._count(LastVisit(at, job, round_, phase, each.status, why), each.device)
        if outcomes:
            size = sum(each.bytes for each in outcomes)
            self.rounds.append(RoundVisits(at, job, round_, phase, outcomes, self.visits_counted, size))
            self.visits_counted += len(outcomes)
            self.visit_bytes += size
            self._forget(at)

    def _count(self, visit: LastVisit, device: str) -> None:
        if known := self.devices.get(device):
            known.last = visit
            if visit.status == "done":
                known.visits += 1
            else:
                known.failed += 1

    def notes(self) -> Iterator[tuple[int, VisitNote]]:
        """Yield every stored visit with its number, the newest first."""
        for it in reversed(self.rounds):
            for at in range(len(it.outcomes) - 1, -1, -1):
                each = it.outcomes[at]
                yield (
                    it.number + at,
                    VisitNote(
                        it.at, it.job, it.round, it.phase, each.tour, each.hop, each.site, each.device, each.status,
                        each.reason, each.samples, each.seconds, each.loss,
                    ),
                )  # fmt: skip

    def numbered_changes(self) -> Iterator[tuple[int, FleetChange]]:
        """Yield every stored connection and disconnection with its number, the newest first."""
        for at in range(len(self.changes) - 1, -1, -1):
            yield self.changes_dropped + at, self.changes[at]

    def _forget(self, now: float) -> None:
        """Drop what exceeds the limits of age and size."""
        oldest = now - OLDEST
        drop = max(0, len(self.changes) - CHANGES)
        while drop < len(self.changes) and self.changes[drop].at < oldest:
            drop += 1
        del self.changes[:drop]
        self.changes_dropped += drop
        drop = 0
        while drop < len(self.rounds) and (self.visit_bytes > VISIT_BYTES or self.rounds[drop].at < oldest):
            self.visit_bytes -= self.rounds[drop].bytes
            drop += 1
        del self.rounds[:drop]
        gone = [name for name, it in self.devices.items() if not it.online and it.since < oldest]
        if (excess := len(self.devices) - len(gone) - DEVICES) > 0:
            away = [(it.since, name) for name, it in self.devices.items() if not it.online and it.since >= oldest]
            gone += [name for _, name in sorted(away)[:excess]]
        for name in gone:
            del self.devices[name]


def worth_keeping(outcomes: Iterable[VisitOutcome]) -> tuple[VisitOutcome, ...]:
    """Return as many of a round's visits as a record may hold, so that the journal stays small."""
    found = list(outcomes)
    ends = accumulate(each.bytes for each in found)
    return tuple(each for each, end in zip(found, ends, strict=True) if end <= ROUND_BYTES)


def joined(device: str, site: str, version: str, machine: str) -> DeviceJoined:
    """Return an online device, with its texts cut to their limits."""
    return DeviceJoined(device, site, version[:SHORT], machine[:SHORT])
