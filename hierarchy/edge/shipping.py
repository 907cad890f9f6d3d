"""Passing releases on: graph and card (the *goods*) come from the cloud once, and devices get them here.

Volatile: the coordinator repeats what a device has not answered, so a restart costs time and nothing else.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

import msgspec

from sojourn.node.machine import Pull, Say, Send
from sojourn.protocol.release_messages import DeviceReport, Release
from sojourn.protocol.topics import Address

if TYPE_CHECKING:
    from collections.abc import Container

    from sojourn.node.machine import Effect
    from sojourn.protocol.release_messages import ReleaseReport, Ship
    from sojourn.protocol.wire import Ref

ORDERS_KEPT = 32
"""The goods of at most this many orders are kept for devices; the oldest goes first."""
BURST, PER_SECOND = 64.0, 1.0
"""How many reports of a device go up at once, and how many a second in the long run: all lines of one that connects do,
and one that never ends keeps nobody busy but itself."""


class _Cargo(msgspec.Struct):
    release: Release
    lacking: set[bytes]
    waiting: dict[str, None]
    """The devices that are to have it as soon as all is here."""


class Shipping:
    """The orders that this site hands on."""

    def __init__(self, cloud: Address) -> None:
        self._cloud = cloud
        self._cargo: dict[bytes, _Cargo] = {}
        """By the bytes of the order."""
        self._spoke: dict[str, tuple[float, float]] = {}
        """By device, how many reports it may make still, and as of when."""

    def live(self) -> set[bytes]:
        """The goods that devices may ask for."""
        return {ref.digest for cargo in self._cargo.values() for ref in _refs(cargo.release)}

    def take(self, message: Ship, present: Container[str]) -> list[Effect]:
        """The coordinator has an order for devices: those that are here get it when its goods are."""
        key = message.order.order
        cargo = self._cargo.pop(key, None)
        pulls: list[Effect] = []
        if cargo is None:
            release = Release(message.order, message.graph, message.card)
            refs = dict.fromkeys(_refs(release))
            cargo = _Cargo(release, {ref.digest for ref in refs}, {})
            pulls = [Pull(ref, self._cloud) for ref in refs]
        self._cargo[key] = cargo
        while len(self._cargo) > ORDERS_KEPT:
            del self._cargo[next(iter(self._cargo))]
        cargo.waiting |= dict.fromkeys(name for name in message.devices if name in present)
        return [*pulls, *_hand_out(cargo)]

    def pulled(self, digest: bytes) -> list[Effect]:
        """Goods are here."""
        effects: list[Effect] = []
        for cargo in self._cargo.values():
            if digest in cargo.lacking:
                cargo.lacking.discard(digest)
                effects += _hand_out(cargo)
        return effects

    def pull_failed(self, digest: bytes, reason: str) -> list[Effect]:
        """Goods cannot be had: begin anew when the coordinator repeats itself."""
        lost = [key for key, cargo in self._cargo.items() if digest in cargo.lacking]
        for key in lost:
            del self._cargo[key]
        return [Say(f"the goods of a release could not be fetched ({reason})", "warning")] if lost else []

    def reported(self, sender: Address, message: ReleaseReport, present: Container[str], now: float) -> list[Effect]:
        """A device says how it is with a release: that goes up if it is here and has not said too much.

        Whether it was told of that order is known to the coordinator, which asks again what it has not heard.
        """
        if sender.name not in present or not self._may_speak(sender.name, now):
            return []
        return [Send(self._cloud, DeviceReport(sender.name, message))]

    def _may_speak(self, device: str, now: float) -> bool:
        left, since = self._spoke.get(device, (BURST, now))
        left = min(BURST, left + (now - since) * PER_SECOND)
        may = left >= 1
        self._spoke[device] = left - may, now
        return may


def _hand_out(cargo: _Cargo) -> list[Effect]:
    if cargo.lacking:
        return []
    devices, cargo.waiting = list(cargo.waiting), {}
    return [Send(Address("device", name), cargo.release) for name in devices]


def _refs(release: Release) -> list[Ref]:
    return [ref for ref in (release.graph, release.card) if ref is not None]
