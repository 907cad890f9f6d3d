"""A coordinator that rolls releases out on a bench: devices answer by hand, and a twin is compared after each step."""

from __future__ import annotations

from typing import Any

import msgspec
from cryptography.hazmat.primitives.asymmetric.ed25519 import Ed25519PrivateKey

from coordinator.machine.authorization import Trust
from coordinator.machine.coordinator import Coordinator
from sojourn.node.machine import Pulled, Send, TimerFired
from sojourn.protocol.release import BlobRef, Goods, Health, HealthRules, Order, sign
from sojourn.protocol.release_messages import DeviceReport, InspectReleases, ReleaseReport, Rollout, Ship, Steer
from sojourn.protocol.signing import Signer
from sojourn.protocol.wire import Ref
from sojourn.store.blobs import ref_of
from tests.coordinator.machine.cloud_bench import OPERATOR, Bench, site
from tests.sojourn.store.replays import replayed, sends

SIGNER = Signer(Ed25519PrivateKey.generate())
RULES = HealthRules(soak=10.0, timeout=100.0, quorum=1)
"""One complaint is enough; larger quorums are tested separately."""


def refs(version: int) -> tuple[Ref, Ref]:
    return ref_of(b"graph %d" % version), ref_of(b"card %d" % version)


def goods(version: int) -> Goods | None:
    return Goods(*(BlobRef(ref.digest, ref.size) for ref in refs(version))) if version else None


def rollout(
    version=1, before=0, serial=1, ticket="t", stages=(0.5, 1.0), rules=RULES, undo=True, line="l", fleet="sojourn"
) -> Rollout:
    """Return the order to a version with this serial, and the order back with the next serial."""
    forward = Order(fleet, line, serial, version, goods(version))
    back = Order(fleet, line, serial + 1, before, goods(before), rollback=True)
    return Rollout(ticket, sign(forward, SIGNER), sign(back, SIGNER), *refs(version), stages, rules, undo)


class RolloutBench(Bench):
    """It has its own clock; devices follow orders and answer when a test makes them."""

    def __init__(self, devices=(), sites=1, key="") -> None:
        super().__init__()
        self.cloud = Coordinator("c", trust=Trust(key))
        self.now = 0.0
        for number in range(sites):
            self.join(f"s{number}", tuple(devices[number::sites]))
        self.devices = list(devices)

    def handle(self, event, now=None) -> list[Any]:
        if now is not None:
            self.now = max(self.now, now)
        return super().handle(event, self.now)

    def begin(self, version=1, **how) -> list[Any]:
        """Start a rollout, and deliver its blobs."""
        self.receive(OPERATOR, rollout(version, **how))
        self.handle(Pulled(refs(version)[0].digest))
        return self.handle(Pulled(refs(version)[1].digest))

    def of_releases(self) -> list[bytes]:
        """Return the records without those of connections."""
        return [record for record in self.changes if b"fleet-changed" not in record]

    def line(self, name="l"):
        return self.cloud.state.lines[name]

    def report(
        self, device: str, serial: int, version=1, state="serving", health=None, detail="", line="l", through=None
    ):
        message = DeviceReport(device, ReleaseReport(line, serial, version, state, detail, health or Health(rows=1)))
        return self.receive(site(through or self.home(device)), message)

    def home(self, device: str) -> str:
        """Return the site of a device."""
        return next((name for name, there in self.cloud.sites.reach().items() if device in there), "s0")

    def all_well(self, serial: int, version=1):
        """Every device that got the order serves."""
        for device in list(self.line().members):
            effects = self.report(device, serial, version)
        return effects

    def wait(self, seconds: float) -> list[Any]:
        """Advance the clock, and fire timers when they are due."""
        end = self.now + seconds
        effects: list[Any] = []
        while (wake := self.cloud.wake_at()) is not None and wake <= end:
            self.now = max(self.now, wake)
            effects += self.handle(TimerFired())
            after = self.cloud.wake_at()
            assert after is None or after > self.now, "it would be woken for nothing, for ever"
        self.now = end
        return effects

    def steer(self, action, ticket="s", line="l"):
        return self.receive(OPERATOR, Steer(ticket, line, action))

    def ask(self, line=None):
        (answer,) = sends(self.receive(OPERATOR, InspectReleases("q", line)))
        return answer.lines

    def restart(self) -> None:
        """The coordinator's power fails; sites send their rosters again."""
        twin = replayed(Coordinator("c"), self.records)
        self.cloud = twin
        self.note(twin.start(self.now))

    def through(self, serial=1, version=1) -> None:
        """Let a rollout with healthy devices run to its end."""
        for _ in range(50):
            if self.line().status != "running":
                break
            self.all_well(serial, version)
            self.wait(RULES.soak + 1)


def shipped(effects) -> list[tuple[str, int, tuple[str, ...]]]:
    """Return the site, the order and the devices of each shipment."""
    found = []
    for effect in effects:
        if isinstance(effect, Send) and isinstance(effect.message, Ship):
            order = msgspec.msgpack.decode(effect.message.order.order, type=Order)
            found.append((effect.to.name, order.serial, effect.message.devices))
    return found


def ordered_devices(effects) -> set[str]:
    return {device for _, _, devices in shipped(effects) for device in devices}
