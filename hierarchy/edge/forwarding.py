"""The forwarding of releases, and of withdrawals of mandates, to the devices of a site."""

from __future__ import annotations

from collections.abc import Container, Iterable

import msgspec

from sojourn.node.machine import Effect, Log, Pull, Send
from sojourn.protocol.limits import drop_oldest
from sojourn.protocol.mandates import Recall
from sojourn.protocol.release_messages import DeviceReport, Release, ReleaseReport, Ship
from sojourn.protocol.topics import Address
from sojourn.protocol.wire import Ref
from sojourn.rate_limiter import Rate, RateLimiter

# Forwarding withdrawals of mandates: to every online device, and to devices that come online later.
#
# Volatile: after a restart of the site the coordinator sends the withdrawals that still matter again. Devices verify
# each withdrawal; the edge server does not.

MAX_WITHDRAWALS = 64
"""At most this many withdrawals are kept for devices that come online later; the oldest is dropped first."""


class Recalls:
    """The withdrawals that this site knows of."""

    def __init__(self) -> None:
        self._known: dict[bytes, Recall] = {}
        """By the signed bytes."""

    def take(self, message: Recall, present: Iterable[str]) -> list[Effect]:
        """Keep a withdrawal from the coordinator and forward it to all online devices."""
        key = message.withdrawal.withdrawal
        self._known.pop(key, None)
        self._known[key] = message
        drop_oldest(self._known, MAX_WITHDRAWALS)
        return [Send(Address("device", name), message) for name in present]

    def for_device(self, device: str) -> list[Effect]:
        """Return all withdrawals for a device that has come online."""
        return [Send(Address("device", device), message) for message in self._known.values()]


# Forwarding releases: the edge server fetches graph and card (the *goods*) once, and devices fetch them from it.
#
# Volatile: the coordinator repeats an order until the device answers, so a restart only costs time.

MAX_ORDERS = 32
"""The goods of at most this many orders are kept for devices; the oldest are dropped first."""
REPORT_RATE = Rate(1.0, 64.0)
"""The rate at which reports of one device are forwarded; the burst covers all lines of a device that comes online."""


class _ReleasePayload(msgspec.Struct):
    release: Release
    lacking: set[bytes]
    waiting: dict[str, None]
    """The devices that get the order as soon as all its goods are fetched."""


class Shipping:
    """The orders that this site forwards."""

    def __init__(self, cloud: Address) -> None:
        self._cloud = cloud
        self._payloads: dict[bytes, _ReleasePayload] = {}
        """By the bytes of the order."""
        self._rate_limiter = RateLimiter()

    def live(self) -> set[bytes]:
        """Return the digests of the goods that devices may fetch."""
        return {ref.digest for payload in self._payloads.values() for ref in _refs(payload.release)}

    def take(self, message: Ship, present: Container[str]) -> list[Effect]:
        """Take an order from the coordinator; online devices get it once its goods are fetched."""
        key = message.order.order
        payload = self._payloads.pop(key, None)
        pulls: list[Effect] = []
        if payload is None:
            release = Release(message.order, message.graph, message.card)
            refs = dict.fromkeys(_refs(release))
            payload = _ReleasePayload(release, {ref.digest for ref in refs}, {})
            pulls = [Pull(ref, self._cloud) for ref in refs]
        self._payloads[key] = payload
        drop_oldest(self._payloads, MAX_ORDERS)
        payload.waiting |= dict.fromkeys(name for name in message.devices if name in present)
        return [*pulls, *_send_when_complete(payload)]

    def pulled(self, digest: bytes) -> list[Effect]:
        """Send the orders whose last missing goods have arrived."""
        effects: list[Effect] = []
        for payload in self._payloads.values():
            if digest in payload.lacking:
                payload.lacking.discard(digest)
                effects += _send_when_complete(payload)
        return effects

    def pull_failed(self, digest: bytes, reason: str) -> list[Effect]:
        """Forget the orders whose goods cannot be fetched; the coordinator repeats them."""
        lost = [key for key, payload in self._payloads.items() if digest in payload.lacking]
        for key in lost:
            del self._payloads[key]
        return [Log(f"cannot fetch the goods of a release ({reason})", "warning")] if lost else []

    def reported(self, sender: Address, message: ReleaseReport, present: Container[str], now: float) -> list[Effect]:
        """Forward an online device's report to the coordinator, unless the device exceeds its rate.

        The coordinator knows which orders it sent, and asks again about those without a report.
        """
        if sender.name not in present or not self._rate_limiter.allows(sender.name, REPORT_RATE, now):
            return []
        return [Send(self._cloud, DeviceReport(sender.name, message))]


def _send_when_complete(payload: _ReleasePayload) -> list[Effect]:
    if payload.lacking:
        return []
    devices, payload.waiting = list(payload.waiting), {}
    return [Send(Address("device", name), payload.release) for name in devices]


def _refs(release: Release) -> list[Ref]:
    return [ref for ref in (release.graph, release.card) if ref is not None]
