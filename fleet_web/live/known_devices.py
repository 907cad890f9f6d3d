"""The devices as the coordinator told them last: after the first time only those that changed are asked for."""

from __future__ import annotations

import time
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from collections.abc import Iterable

    from coordinator.console.operator import Operator
    from sojourn.protocol.fleet_messages import FleetDevice

ALL_AGAIN = 600.0
"""Seconds after which all are asked for again: who was forgotten is in no list of changes."""
INTEREST = 30.0
"""Seconds after a page asked for them in which changes are told along with the news: that saves a question each."""


class WatchedDevices:
    """By name. Only the operator's thread writes here."""

    def __init__(self) -> None:
        self._devices: dict[str, FleetDevice] = {}
        self._mark: int | None = None
        self._all_at = self._asked_at = float("-inf")

    @property
    def wanted(self) -> bool:
        """Whether some page shows them."""
        return time.monotonic() < self._asked_at + INTEREST

    def newest(self, operator: Operator, mark: int | None) -> list[FleetDevice]:
        """All devices, by name; mark: the newest that the coordinator told. What changes while we ask is told again."""
        now = self._asked_at = time.monotonic()
        if self._mark is None or mark is None or now > self._all_at + ALL_AGAIN:
            self._devices = {it.device: it for it in operator.devices()[0]}
            self._all_at, self._mark = now, mark
        elif self._mark != mark:
            self.take(operator.devices(since=self._mark)[0], self._mark, mark)
        return list(self._devices.values())

    def take(self, changed: Iterable[FleetDevice], since: int, mark: int) -> None:
        """The devices that changed between two marks; of no use where it is not the first of them that is known."""
        if since != self._mark:
            return
        found = {it.device: it for it in changed}
        new = found.keys() - self._devices.keys()
        self._devices |= found
        if new:
            self._devices = dict(sorted(self._devices.items()))
        self._mark = mark
