"""What a coordinator remembers of its fleet: every device that it saw, their comings and goings, and their visits.

Within a bound of age and of size, so that no site can fill the disk with devices that it makes up. What is dropped is
the oldest. It is for people: nothing is planned by it, so that a lost record costs nothing but itself.
"""

from __future__ import annotations

from itertools import accumulate
from typing import TYPE_CHECKING

import msgspec

from sojourn.protocol.fleet_messages import FleetChange, LastVisit, VisitNote, VisitPhase
from sojourn.protocol.wire import VisitStatus

if TYPE_CHECKING:
    from collections.abc import Iterable, Iterator

OLDEST = 90 * 86_400.0
"""Seconds after which comings, goings and visits are forgotten, and devices that have been gone for so long."""
DEVICES = 20_000
"""At most this many devices are known; those that went longest ago are forgotten first."""
CHANGES = 20_000
"""At most this many comings and goings are kept."""
VISIT_BYTES = 4 << 20
"""Bytes of visits that are kept: about 40,000 of them, fewer if their reasons are long."""
ROUND_BYTES = 2 << 20
"""Bytes of visits that are kept of one round."""
REASON = 160
"""Characters of why a device's last visit did not count, which every list of devices tells."""
SHORT = 64
"""Characters of what a device says of its version and its machine."""


class DeviceJoined(msgspec.Struct, frozen=True, array_like=True):
    """A device is here, at this site, and says this of itself."""

    device: str
    site: str
    version: str
    machine: str


class FleetChanged(msgspec.Struct, frozen=True, tag="fleet-changed/1"):
    """Devices came or went; `at` is in seconds since 1970."""

    at: float
    joined: tuple[DeviceJoined, ...] = ()
    left: tuple[str, ...] = ()


class DeviceForgotten(msgspec.Struct, frozen=True, tag="device-forgotten/1"):
    """An operator had a device forgotten that was gone."""

    device: str


class VisitOutcome(msgspec.Struct, frozen=True, array_like=True):
    """How a visit of a round ended, or one that was planned and never was."""

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
        """About as many as it takes in a snapshot."""
        return 60 + len(self.device) + len(self.site) + len(self.reason.encode())


class RoundVisits(msgspec.Struct, frozen=True, array_like=True):
    """All visits of a round, or of an estimation before it."""

    at: float
    job: str
    round: int
    phase: VisitPhase
    outcomes: tuple[VisitOutcome, ...]
    number: int
    """Of its first visit, counted over all that there ever were."""
    bytes: int
    """About as many as they take in a snapshot."""


class DeviceHistory(msgspec.Struct, array_like=True):
    """A device that was seen at least once."""

    site: str
    version: str
    machine: str
    first: float
    since: float
    here: bool
    visits: int = 0
    failed: int = 0
    last: LastVisit | None = None


class FleetHistory(msgspec.Struct):
    """The devices that were seen, and what there was to see, the newest last."""

    devices: dict[str, DeviceHistory] = {}
    changes: list[FleetChange] = []
    changes_dropped: int = 0
    rounds: list[RoundVisits] = []
    visits_counted: int = 0
    visit_bytes: int = 0
    """Of all rounds that are kept."""

    def apply(self, record: FleetChanged) -> None:
        """Devices came or went."""
        for it in record.joined:
            known = self.devices.setdefault(it.device, DeviceHistory("", "", "", record.at, 0.0, here=False))
            known.site, known.version, known.machine = it.site, it.version, it.machine
            known.here, known.since = True, record.at
            self.changes.append(FleetChange(record.at, it.device, it.site, "joined"))
        for device in record.left:
            if gone := self.devices.get(device):
                gone.here, gone.since = False, record.at
                self.changes.append(FleetChange(record.at, device, gone.site, "left"))
        self._forget(record.at)

    def forget(self, record: DeviceForgotten) -> None:
        """Drop a device; its visits stay in the tables of their jobs."""
        self.devices.pop(record.device, None)

    def visited(self, at: float, job: str, round_: int, phase: VisitPhase, outcomes: tuple[VisitOutcome, ...]) -> None:
        """A round or an estimation was closed, and its visits ended like this."""
        for each in outcomes:
            why = each.reason[:REASON] if each.reason and each.status != "done" else msgspec.UNSET
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
        """Every visit that is remembered with its number, the newest first."""
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
        """Every coming and going that is remembered with its number, the newest first."""
        for at in range(len(self.changes) - 1, -1, -1):
            yield self.changes_dropped + at, self.changes[at]

    def _forget(self, now: float) -> None:
        """Drop what is too old or too much."""
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
        gone = [name for name, it in self.devices.items() if not it.here and it.since < oldest]
        if (excess := len(self.devices) - len(gone) - DEVICES) > 0:
            away = [(it.since, name) for name, it in self.devices.items() if not it.here and it.since >= oldest]
            gone += [name for _, name in sorted(away)[:excess]]
        for name in gone:
            del self.devices[name]


def worth_keeping(outcomes: Iterable[VisitOutcome]) -> tuple[VisitOutcome, ...]:
    """As many of a round's visits as a record may hold: whatever sites say, the journal stays small."""
    found = list(outcomes)
    ends = accumulate(each.bytes for each in found)
    return tuple(each for each, end in zip(found, ends, strict=True) if end <= ROUND_BYTES)


def joined(device: str, site: str, version: str, machine: str) -> DeviceJoined:
    """A device that is here, with as much of what it says as is kept."""
    return DeviceJoined(device, site, version[:SHORT], machine[:SHORT])
