"""The devices as the coordinator told them last: after the first time only those that changed are asked for."""

from __future__ import annotations

from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from coordinator.console.operator import Operator
    from fleet_web.live.change_follower import ChangeFollower
    from sojourn.protocol.fleet_messages import FleetDevice

ALL_AGAIN = 600.0
"""Seconds after which all are asked for again: who was forgotten is in no list of changes."""


class KnownDevices:
    """By name. Only the operator's thread writes here."""

    def __init__(self) -> None:
        self._devices: dict[str, FleetDevice] = {}
        self._mark: int | None = None
        self._all_at = 0.0

    def newest(self, operator: Operator, follower: ChangeFollower) -> list[FleetDevice]:
        """All devices, by name."""
        mark, now = follower.told, follower.now()  # what changes while we ask is told again
        if self._mark is None or mark is None or now > self._all_at + ALL_AGAIN:
            self._devices = {it.device: it for it in operator.devices()[0]}
            self._all_at = now
        else:
            changed = {it.device: it for it in operator.devices(since=self._mark)[0]}
            new = changed.keys() - self._devices.keys()
            self._devices |= changed
            if new:
                self._devices = dict(sorted(self._devices.items()))
        self._mark = mark
        return list(self._devices.values())
