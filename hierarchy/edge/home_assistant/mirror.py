"""Publishes a site's devices for Home Assistant: presence, training, visits, losses, reasons, releases.

A part of the edge server's machine: it observes events and returns what to publish. It keeps no durable state. Its
messages are retained and read back on connect, so a restart of the edge server keeps counts and releases.
"""

from __future__ import annotations

import random
from collections.abc import Container
from itertools import islice

import msgspec

from hierarchy.edge.home_assistant.payloads import (
    MAX_LINES,
    ShownDevice,
    ShownRelease,
    discovery_payload,
    read_state,
    reported_release,
    shown,
)
from hierarchy.edge.records import VisitKept, VisitMissed
from hierarchy.edge.site import Site
from hierarchy.edge.tables import VisitStep
from sojourn.node.machine import (
    Append,
    Effect,
    Event,
    ForeignMessage,
    LinkUp,
    Log,
    NodeRemoved,
    Present,
    Publish,
    Received,
    earliest,
)
from sojourn.node.peers import MAX_DEVICES_PER_SITE
from sojourn.node.pending import TimerHeap
from sojourn.protocol import topics
from sojourn.protocol.limits import MAX_COUNT
from sojourn.protocol.messages import Birth
from sojourn.protocol.release_messages import ReleaseReport, Ship
from sojourn.protocol.wire import Offer

STATE_INTERVAL = 1.0
"""Minimum seconds between two states of one device."""
SETTLING_SECONDS = 1.0
"""Seconds after a connect in which retained messages arrive, before anything is published."""
JOIN_DELAY = 0.2
"""Seconds to wait for further devices when one joins."""
BATCH, BATCH_SECONDS = 64, 0.25
"""How many devices are announced at once, and the seconds until the next batch; no receiver's queue may overflow."""
RESTART_DELAY = (0.5, 3.0)
"""Seconds until a site reacts to a restart of Home Assistant; random, since all sites see it at once."""
ANNOUNCE_INTERVAL = 10.0
"""Minimum seconds between two announcements of all devices after restarts of Home Assistant."""
ECHO_SECONDS = 15.0
"""Seconds within which a published message comes back, if the broker allows it."""
ONLINE = b"online"


class _Mirrored:
    """A device: its shown state, and the state published at the broker."""

    def __init__(self) -> None:
        self.now = ShownDevice()
        self.offer: Offer | None = None
        self.announced = False
        self.published: bytes | None = None
        """None before the first publication since the start."""
        self.next_at = 0.0


class HomeMirror:
    """The Home Assistant view of the devices of one site."""

    def __init__(self, fleet: str, edge: str, prefix: str = topics.PREFIX) -> None:
        self._fleet, self._edge, self._prefix = fleet, edge, prefix
        self._status = topics.status(prefix)
        self._random = random.Random(edge)  # spreads sites, hides nothing
        self._devices: dict[str, _Mirrored] = {}
        self._retained: dict[str, ShownDevice] = {}
        """Retained states of devices that have not been seen yet."""
        self._training: set[str] = set()
        self._alarm: TimerHeap[str] = TimerHeap()
        self._announcing: dict[str, None] = {}
        """The devices to announce to Home Assistant, in this order."""
        self._announce_at: float | None = None
        self._settled_at: float | None = None
        """When the retained messages have arrived; None before the first connect."""
        self._answered_at = -ANNOUNCE_INTERVAL
        self._echo_by: float | None = None
        self._echo_received = False

    @property
    def extra_topics(self) -> tuple[str, ...]:
        """Return the topics that the edge server subscribes to for this, in addition to those of nodes."""
        return self._status, topics.device_state_filter(self._fleet, self._edge)

    def wake_at(self) -> float | None:
        """Return when to publish next, or to check for the echo."""
        return earliest(self._alarm.wake_at(), self._announce_at, self._echo_by)

    def follow(
        self, event: Event, effects: list[Effect], site: Site, online: Container[str], now: float
    ) -> list[Effect]:
        """Observe an event and the edge server's effects of it; return what to publish.

        online: the devices in the roster.
        """
        removed = self._take(event, online, now)
        for effect in effects:
            if isinstance(effect, Append):
                self._recorded(effect.record, now)
        self._update_training(event, site, now)
        return [*removed, *self._announced(now), *self._changed(now), *self._missed_echo(now)]

    def _take(self, event: Event, online: Container[str], now: float) -> list[Effect]:
        match event:
            case Present():
                self._present(event, online=event.node.name in online, now=now)
            case NodeRemoved():
                return self._removed(event.node.name)
            case ForeignMessage():
                self._foreign_message(event.topic, event.payload, now)
            case LinkUp():
                self._settled_at = now + SETTLING_SECONDS
                self._announce_all(self._settled_at)
            case Received(message=Ship() as message):
                self._shipped(message, now)
            case Received(message=ReleaseReport() as message):
                self._reported(event.sender.name, message, now)
            case _:
                pass
        return []

    def _present(self, event: Present, *, online: bool, now: float) -> None:
        """Take a device's birth or death; a device that was offline before the start is shown, too."""
        name = event.node.name
        it = self._devices.get(name)
        if it is None:
            if len(self._devices) >= MAX_DEVICES_PER_SITE:
                return
            it = self._devices[name] = _Mirrored()
            it.now = self._retained.pop(name, it.now)
            self._announce(name, now)
        if isinstance(event.state, Birth) and _differs(event.state.offer, it.offer):
            it.offer = event.state.offer
            self._announce(name, now)
        self._show(name, now, online=online, training=it.now.training and online)

    def _removed(self, name: str) -> list[Effect]:
        """Remove everything about a device that left the fleet from the broker."""
        known = self._devices.pop(name, None)
        left = self._retained.pop(name, None)
        self._alarm.forget(name)
        self._announcing.pop(name, None)
        self._training.discard(name)
        if known is None and left is None:
            return []
        topics_left = topics.all_topics(self._prefix, self._fleet, self._edge, name)
        return [Publish("device", topic, b"") for topic in topics_left]

    def _foreign_message(self, topic: str, payload: bytes, now: float) -> None:
        if topic == self._status:
            self._home_status(payload, now)
            return
        name = topics.read_device(self._fleet, self._edge, topic)
        if name is None or not topics.is_name(name):
            return
        it = self._devices.get(name)
        if it is not None and it.published is not None:
            self._echo_received, self._echo_by = True, None
        else:
            self._take_retained(name, payload)

    def _home_status(self, payload: bytes, now: float) -> None:
        """After Home Assistant has restarted, announce all devices with a delay, and not repeatedly."""
        if payload == ONLINE and now >= self._answered_at:
            self._answered_at = max(now + self._random.uniform(*RESTART_DELAY), self._answered_at + ANNOUNCE_INTERVAL)
            self._announce_all(self._answered_at)

    def _take_retained(self, name: str, payload: bytes) -> None:
        """Take the counts of a retained state; the current presence is known better from the roster."""
        state = read_state(payload)
        if state is None:
            return
        if it := self._devices.get(name):
            it.now = msgspec.structs.replace(state, online=it.now.online, training=it.now.training)
        elif len(self._retained) < MAX_DEVICES_PER_SITE:
            self._retained[name] = msgspec.structs.replace(state, online=False, training=False)

    def _recorded(self, record: object, now: float) -> None:
        """Count a visit that was kept, or show why it failed."""
        if not isinstance(record, VisitKept | VisitMissed):
            return
        report = record.report
        if (it := self._devices.get(report.device)) is None:
            return
        if isinstance(record, VisitMissed):
            self._show(report.device, now, reason=shown(f"{report.status}: {report.reason}"))
            return
        loss = report.metrics.get("loss", it.now.loss)
        self._show(report.device, now, visits=min(it.now.visits + 1, MAX_COUNT), loss=loss, reason="")

    def _update_training(self, event: Event, site: Site, now: float) -> None:
        """Update whether the sender, and each training device, is training: any event may have changed that."""
        sign_of_life = {event.sender.name} if isinstance(event, Received) and event.sender.role == "device" else set()
        for name in sign_of_life | self._training:
            if name in self._devices:
                trains = _trains(site, name)
                (self._training.add if trains else self._training.discard)(name)
                self._show(name, now, training=trains)

    def _shipped(self, message: Ship, now: float) -> None:
        """Show which release the devices of an order should serve."""
        order = message.order.read()
        if order is None:
            return
        for name in message.devices:
            if it := self._devices.get(name):
                known = it.now.releases.get(order.line, ShownRelease())
                self._show_release(name, order.line, known.ordered(order.version), now)

    def _reported(self, name: str, report: ReleaseReport, now: float) -> None:
        if it := self._devices.get(name):
            known = it.now.releases.get(report.line)
            self._show_release(name, report.line, reported_release(known, report), now)

    def _show_release(self, name: str, line: str, release: ShownRelease, now: float) -> None:
        releases = self._devices[name].now.releases
        if line not in releases:
            if len(releases) >= MAX_LINES:
                return
            self._announce(name, now)
        self._show(name, now, releases={**releases, line: release})

    def _show(self, name: str, now: float, **changes: object) -> None:
        """Change a shown state; it is published after its pause, once the device was announced."""
        it = self._devices[name]
        state = msgspec.structs.replace(it.now, **changes)
        if state != it.now:
            it.now = state
            self._alarm.set(name, max(now, it.next_at))

    def _announce(self, name: str, now: float) -> None:
        if self._settled_at is None:
            return
        self._announcing[name] = None
        self._announce_at = earliest(self._announce_at, max(now + JOIN_DELAY, self._settled_at))

    def _announce_all(self, when: float) -> None:
        self._announcing |= dict.fromkeys(self._devices)
        self._announce_at = earliest(self._announce_at, when)

    def _announced(self, now: float) -> list[Effect]:
        """Announce the next batch of devices to Home Assistant, if it is due."""
        if self._announce_at is None or self._announce_at > now:
            return []
        effects: list[Effect] = []
        for name in list(islice(self._announcing, BATCH)):
            del self._announcing[name]
            # The state first, so that Home Assistant can read it, with all releases, once it discovers the device.
            effects += [self._state(name, now), self._discovery(name)]
        self._announce_at = now + BATCH_SECONDS if self._announcing else None
        return effects

    def _discovery(self, name: str) -> Publish:
        it = self._devices[name]
        it.announced = True
        payload = discovery_payload(self._fleet, self._edge, name, it.offer, sorted(it.now.releases))
        identity = topics.object_id(self._fleet, self._edge, name)
        return Publish("device", topics.discovery(self._prefix, identity), payload)

    def _changed(self, now: float) -> list[Effect]:
        """Return the states of announced devices whose pause is over."""
        effects: list[Effect] = []
        for name in self._alarm.due(now):
            it = self._devices[name]
            if not it.announced or it.now.encoded() == it.published:
                continue
            if it.next_at > now:
                self._alarm.set(name, it.next_at)
            else:
                effects.append(self._state(name, now))
        return effects

    def _state(self, name: str, now: float) -> Publish:
        it = self._devices[name]
        payload = it.now.encoded()
        it.published, it.next_at = payload, now + STATE_INTERVAL
        if not self._echo_received and self._echo_by is None:
            self._echo_by = now + ECHO_SECONDS
        return Publish("device", topics.device_state(self._fleet, self._edge, name), payload)

    def _missed_echo(self, now: float) -> list[Effect]:
        """Warn once if published messages do not come back: a broker silently drops messages that its ACL forbids."""
        if self._echo_by is None or self._echo_by > now:
            return []
        self._echo_received, self._echo_by = True, None
        return [
            Log(
                "messages published for Home Assistant do not come back: the site's broker may not allow them "
                "(`sojourn fleet add-home-assistant` writes access rules that do)",
                "warning",
            )
        ]


def _differs(offer: Offer | None, known: Offer | None) -> bool:
    """Return whether an offer differs in what is shown; data and abilities are not shown."""
    if offer is None or known is None:
        return offer is not known
    return (offer.machine, offer.version) != (known.machine, known.version)


def _trains(site: Site, device: str) -> bool:
    """Return whether a device is training, as far as it has reported."""
    where = site.at.get(device)
    visit = site.visit(where) if where else None
    return visit is not None and visit.prepared and visit.state == VisitStep.HANDED
