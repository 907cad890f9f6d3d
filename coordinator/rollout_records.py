"""What a coordinator must not forget of its releases: each line's newest rollout, and the records that change it."""

from __future__ import annotations

import hashlib
from functools import lru_cache
from math import ceil
from typing import TYPE_CHECKING

import msgspec

from sojourn.protocol.decoders import decoded
from sojourn.protocol.limits import Moment
from sojourn.protocol.release import ENDS, HealthRules, Order, RolloutStatus, RolloutTurn, SignedOrder
from sojourn.protocol.release_messages import ReleaseReport
from sojourn.protocol.wire import Ref

if TYPE_CHECKING:
    from collections.abc import Iterable

TURNS, TURN_TEXT = 20, 200
"""How many turns of its rollouts a line remembers, and how many characters of why."""
AHEAD = 1_000_000
"""How far an order's serial number may be ahead of the newest that is known: a wrong one must not use up all others."""


class Cargo(msgspec.Struct, frozen=True):
    """A signed order, and the blobs that it brings."""

    order: SignedOrder
    graph: Ref | None
    card: Ref | None

    @property
    def read(self) -> Order:
        """What it orders; it was read before it was kept."""
        return _read(self.order)

    @property
    def refs(self) -> list[Ref]:
        """Its blobs."""
        return [ref for ref in (self.graph, self.card) if ref is not None]


@lru_cache(256)
def _read(order: SignedOrder) -> Order:
    return decoded(order.order, Order)


class RolloutBegun(msgspec.Struct, frozen=True, tag="rollout-begun/1"):
    """A release is to go to the fleet; `back` leads to what the fleet was meant to serve before."""

    line: str
    ticket: str
    forward: Cargo
    back: Cargo
    stages: tuple[float, ...]
    rules: HealthRules
    undo: bool


class DevicesJoined(msgspec.Struct, frozen=True, tag="devices-joined/1"):
    """These devices are to have the release too, from this stage on."""

    line: str
    stage: int
    devices: tuple[str, ...]


class DeviceReported(msgspec.Struct, frozen=True, tag="device-told/1"):
    """A device got on with an order, or is no longer well with it."""

    line: str
    device: str
    report: ReleaseReport
    site: str | msgspec.UnsetType = msgspec.UNSET
    """Through which site that was heard; unset before 0.3.0."""


class DevicesSetAside(msgspec.Struct, frozen=True, tag="devices-set-aside/1"):
    """These devices complained and others did not: they alone go back, and the rollout goes on. By device, why."""

    line: str
    devices: dict[str, str]


class RolloutTurned(msgspec.Struct, frozen=True, tag="rollout-turned/1"):
    """The rollout goes another way, or has ended."""

    line: str
    status: RolloutStatus
    detail: str
    at: Moment | msgspec.UnsetType = msgspec.UNSET
    """When, in seconds since 1970; unset before 0.9.0."""


RolloutRecord = RolloutBegun | DevicesJoined | DeviceReported | DevicesSetAside | RolloutTurned


class LineState(msgspec.Struct):
    """A model line."""

    line: str
    ticket: str
    forward: Cargo
    back: Cargo
    stages: tuple[float, ...]
    rules: HealthRules
    undo: bool
    status: RolloutStatus = "running"
    detail: str = ""
    stage: int = 0
    """The stage that is under way; the first is 1."""
    members: dict[str, int] = {}
    """The devices that are to serve the release, and since which stage."""
    reports: dict[str, ReleaseReport] = {}
    sites: dict[str, str] | msgspec.UnsetType = msgspec.UNSET
    set_aside: dict[str, str] | msgspec.UnsetType = msgspec.UNSET
    turned: list[RolloutTurn] | msgspec.UnsetType = msgspec.UNSET
    """The newest turns of the line's rollouts, with their dates; unset before 0.9.0."""

    @property
    def through(self) -> dict[str, str]:
        """Through which site each device's report came."""
        return self.sites or {}

    @property
    def aside(self) -> dict[str, str]:
        """The members that went back alone, and why."""
        return self.set_aside or {}

    @property
    def cargo(self) -> Cargo:
        """The order that devices should be under now."""
        return self.back if self.status in ("rolling-back", "rolled-back") else self.forward

    def cargo_for(self, device: str) -> Cargo:
        """The order that this device should be under now."""
        return self.back if device in self.aside else self.cargo

    @property
    def serves(self) -> Cargo:
        """What the fleet as a whole is meant to serve, if the rollout went no further."""
        return self.forward if self.status == "done" else self.back

    @property
    def over(self) -> bool:
        """Whether another rollout may begin."""
        return self.status in ("done", "rolled-back")

    def ended(self, device: str) -> bool:
        """Whether a device has done what it can with the order that it should be under."""
        report = self.reports.get(device)
        return report is not None and report.serial >= self.cargo_for(device).read.serial and report.state in ENDS

    def chosen(self, stage: int, devices: Iterable[str]) -> list[str]:
        """The devices that a stage brings the release to, in an order that nobody chose and everybody can check."""
        ranked = self.ranked({*devices, *self.members})
        count = max(1, ceil(self.stages[stage - 1] * len(ranked) - 1e-9))
        return [device for device in ranked[:count] if device not in self.members]

    def ranked(self, devices: Iterable[str]) -> list[str]:
        """The devices in the order in which this release is brought to them."""
        return sorted(devices, key=self._rank)

    def _rank(self, device: str) -> bytes:
        return hashlib.sha256(f"{self.line}/{self.forward.read.version}/{device}".encode()).digest()

    def live(self) -> set[bytes]:
        """The goods of both orders."""
        return {ref.digest for cargo in (self.forward, self.back) for ref in cargo.refs}

    def apply(self, record: DevicesJoined | DeviceReported | DevicesSetAside | RolloutTurned) -> None:
        """Change by one record."""
        match record:
            case DevicesJoined():
                self.stage = record.stage
                self.members |= dict.fromkeys(record.devices, record.stage)
            case DeviceReported():
                self.reports[record.device] = record.report
                if record.site is not msgspec.UNSET:
                    self.sites = self.sites or {}
                    self.sites[record.device] = record.site
            case DevicesSetAside():
                self.set_aside = self.aside | record.devices
            case RolloutTurned():
                self.status, self.detail = record.status, record.detail
                if record.at is not msgspec.UNSET:
                    version = self.forward.read.version
                    turn = RolloutTurn(record.at, record.status, version, record.detail[:TURN_TEXT])
                    self.turned = [*(self.turned or ()), turn][-TURNS:]


def apply(lines: dict[str, LineState], record: RolloutRecord) -> None:
    """Change one line by one record; reports of an earlier rollout stay, for they say what devices serve."""
    if isinstance(record, RolloutBegun):
        known = lines.get(record.line)
        lines[record.line] = LineState(
            record.line,
            record.ticket,
            record.forward,
            record.back,
            record.stages,
            record.rules,
            record.undo,
            reports=known.reports if known else {},
            turned=known.turned if known else msgspec.UNSET,
        )
    else:
        lines[record.line].apply(record)
