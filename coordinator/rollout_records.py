"""The durable state of releases: each line's newest rollout, and the records that change it."""

from __future__ import annotations

import hashlib
from collections.abc import Iterable
from functools import lru_cache
from math import ceil

import msgspec

from sojourn.protocol.limits import Moment, decoded
from sojourn.protocol.release import ENDS, HealthRules, Order, RolloutStatus, RolloutTurn, SignedOrder
from sojourn.protocol.release_messages import ReleaseReport
from sojourn.protocol.wire import Ref

TURNS, TURN_TEXT = 20, 200
"""How many status changes of its rollouts a line stores, and the maximum characters of their reasons."""
AHEAD = 1_000_000
"""Maximum distance of an order's serial from the newest known one, so that a wrong one does not use up the range."""


class ReleasePayload(msgspec.Struct, frozen=True):
    """A signed order, and the blobs that it brings."""

    order: SignedOrder
    graph: Ref | None
    card: Ref | None

    @property
    def read(self) -> Order:
        """The order; it was checked to be readable before it was stored."""
        return _read(self.order)

    @property
    def refs(self) -> list[Ref]:
        """The references of its blobs."""
        return [ref for ref in (self.graph, self.card) if ref is not None]


@lru_cache(256)
def _read(order: SignedOrder) -> Order:
    return decoded(order.order, Order)


class RolloutBegun(msgspec.Struct, frozen=True, tag="rollout-begun/1"):
    """A rollout was started; `back` returns to what the fleet served before."""

    line: str
    ticket: str
    forward: ReleasePayload
    back: ReleasePayload
    stages: tuple[float, ...]
    rules: HealthRules
    undo: bool


class DevicesJoined(msgspec.Struct, frozen=True, tag="devices-joined/1"):
    """These devices get the release, from this stage on."""

    line: str
    stage: int
    devices: tuple[str, ...]


class DeviceReported(msgspec.Struct, frozen=True, tag="device-reported/1"):
    """A device progressed with an order, or is no longer healthy with it."""

    line: str
    device: str
    report: ReleaseReport
    site: str
    """The site through which the report came."""


class DevicesSetAside(msgspec.Struct, frozen=True, tag="devices-set-aside/1"):
    """These devices alone complained: only they return to the previous release. By device, the reason."""

    line: str
    devices: dict[str, str]


class RolloutTurned(msgspec.Struct, frozen=True, tag="rollout-turned/1"):
    """The rollout changed its status, or has ended."""

    line: str
    status: RolloutStatus
    detail: str
    at: Moment
    """When, in seconds since 1970."""


RolloutRecord = RolloutBegun | DevicesJoined | DeviceReported | DevicesSetAside | RolloutTurned


class LineState(msgspec.Struct):
    """A model line."""

    line: str
    ticket: str
    forward: ReleasePayload
    back: ReleasePayload
    stages: tuple[float, ...]
    rules: HealthRules
    undo: bool
    status: RolloutStatus = "running"
    detail: str = ""
    stage: int = 0
    """The current stage; the first is 1."""
    members: dict[str, int] = {}
    """The devices that get the release, and since which stage."""
    reports: dict[str, ReleaseReport] = {}
    sites: dict[str, str] = {}
    """The site through which each device's report came."""
    set_aside: dict[str, str] = {}
    """The members that returned to the previous release alone, and why."""
    turned: list[RolloutTurn] = []
    """The newest status changes of the line's rollouts, with their dates."""

    @property
    def payload(self) -> ReleasePayload:
        """The order that devices should follow now."""
        return self.back if self.status in ("rolling-back", "rolled-back") else self.forward

    def payload_for(self, device: str) -> ReleasePayload:
        """Return the order that this device should follow now."""
        return self.back if device in self.set_aside else self.payload

    @property
    def serves(self) -> ReleasePayload:
        """What the fleet as a whole should serve if the rollout stopped now."""
        return self.forward if self.status == "done" else self.back

    @property
    def over(self) -> bool:
        """Whether another rollout may begin."""
        return self.status in ("done", "rolled-back")

    def ended(self, device: str) -> bool:
        """Return whether a device has completed its current order."""
        report = self.reports.get(device)
        return report is not None and report.serial >= self.payload_for(device).read.serial and report.state in ENDS

    def chosen(self, stage: int, devices: Iterable[str]) -> list[str]:
        """Return the devices of a stage, in a pseudo-random order that can be verified."""
        ranked = self.ranked({*devices, *self.members})
        count = max(1, ceil(self.stages[stage - 1] * len(ranked) - 1e-9))
        return [device for device in ranked[:count] if device not in self.members]

    def ranked(self, devices: Iterable[str]) -> list[str]:
        """Return the devices in the order in which they get this release."""
        return sorted(devices, key=self._rank)

    def _rank(self, device: str) -> bytes:
        return hashlib.sha256(f"{self.line}/{self.forward.read.version}/{device}".encode()).digest()

    def live(self) -> set[bytes]:
        """Return the digests of the blobs of both orders."""
        return {ref.digest for payload in (self.forward, self.back) for ref in payload.refs}

    def apply(self, record: DevicesJoined | DeviceReported | DevicesSetAside | RolloutTurned) -> None:
        """Change the state by one record."""
        match record:
            case DevicesJoined():
                self.stage = record.stage
                self.members |= dict.fromkeys(record.devices, record.stage)
            case DeviceReported():
                self.reports[record.device] = record.report
                self.sites[record.device] = record.site
            case DevicesSetAside():
                self.set_aside |= record.devices
            case RolloutTurned():
                self.status, self.detail = record.status, record.detail
                version = self.forward.read.version
                turn = RolloutTurn(record.at, record.status, version, record.detail[:TURN_TEXT])
                self.turned = [*self.turned, turn][-TURNS:]


def apply(lines: dict[str, LineState], record: RolloutRecord) -> None:
    """Change one line by one record; reports of an earlier rollout remain, since they show what devices serve."""
    if isinstance(record, RolloutBegun):
        line = LineState(**msgspec.structs.asdict(record))
        if known := lines.get(record.line):
            line.reports, line.turned = known.reports, known.turned
        lines[record.line] = line
    else:
        lines[record.line].apply(record)
