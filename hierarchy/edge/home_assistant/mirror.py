"""A site's devices, left at its broker for Home Assistant: who is here, who trains, visits, losses, reasons, releases.

A part of the edge server's machine: it watches what happens, and says what is to be published. Nothing that it knows is
durable here. What it publishes is retained, and read back on connect, so that a restart of the edge server does not
forget counts and releases.
"""

from __future__ import annotations

import random
from itertools import islice
from typing import TYPE_CHECKING

import msgspec

from hierarchy.edge.home_assistant.payloads import (
    LINES,
    ShownDevice,
    ShownRelease,
    discovery_payload,
    read_state,
    reported_release,
    shown,
)
from hierarchy.edge.records import VisitKept, VisitMissed
from hierarchy.edge.visit_table import HANDED
from sojourn.node.alarm import Alarm
from sojourn.node.machine import Append, Linked, NodeRemoved, Overheard, Present, Publish, Received, Say, soonest
from sojourn.node.quotas import MEMBERS
from sojourn.protocol import home_topics, topics
from sojourn.protocol.limits import MOST
from sojourn.protocol.messages import Birth
from sojourn.protocol.release_messages import ReleaseReport, Ship

if TYPE_CHECKING:
    from collections.abc import Container

    from hierarchy.edge.site import Site
    from sojourn.node.machine import Effect, Event
    from sojourn.protocol.wire import Offer

PAUSE = 1.0
"""Seconds between two states of one device, however quickly it changes."""
SETTLING = 1.0
"""Seconds after a connect for what the broker has kept to come, before anything is published."""
SOON = 0.2
"""Seconds to wait for more when a device joins."""
AT_ONCE, STEP = 64, 0.25
"""So many devices are announced at once, and the next after so many seconds: nobody's queue is to run over."""
SPREAD = (0.5, 3.0)
"""Seconds after which a site answers that Home Assistant is back: all sites hear it at once."""
AGAIN = 10.0
"""Seconds at least between two times that all devices are announced because Home Assistant says so."""
ECHO = 15.0
"""Seconds after which what was published has come back, if the broker let it pass."""
ONLINE = b"online"


class _Mirrored:
    """A device: what is shown of it, and what of that is at the broker."""

    def __init__(self) -> None:
        self.now = ShownDevice()
        self.offer: Offer | None = None
        self.announced = False
        self.published: bytes | None = None
        """None before the first time since we started."""
        self.next_at = 0.0


class HomeMirror:
    """What Home Assistant is shown of the devices of one site."""

    def __init__(self, fleet: str, edge: str, prefix: str = home_topics.PREFIX) -> None:
        self._fleet, self._edge, self._prefix = fleet, edge, prefix
        self._status = home_topics.status(prefix)
        self._random = random.Random(edge)  # spreads sites, hides nothing
        self._devices: dict[str, _Mirrored] = {}
        self._left: dict[str, ShownDevice] = {}
        """States that were left before, of devices that were not heard of yet."""
        self._training: set[str] = set()
        self._alarm: Alarm[str] = Alarm()
        self._announcing: dict[str, None] = {}
        """Whom Home Assistant is to be told of, in this order."""
        self._announce_at: float | None = None
        self._settled_at: float | None = None
        """When what the broker has kept has come; None before the first connect."""
        self._answered_at = -AGAIN
        self._echo_by: float | None = None
        self._heard_echo = False

    @property
    def overhears(self) -> tuple[str, ...]:
        """The topics, besides those of nodes, that the edge server listens to for this."""
        return self._status, home_topics.device_state_filter(self._fleet, self._edge)

    def wake_at(self) -> float | None:
        """When something is to be published, or to be said of what was."""
        return soonest(self._alarm.wake_at(), self._announce_at, self._echo_by)

    def follow(self, event: Event, effects: list[Effect], site: Site, here: Container[str], now: float) -> list[Effect]:
        """Take note of an event and of what the edge server made of it; returns what is to be published.

        here: the devices that are, as the roster says.
        """
        removed = self._take(event, here, now)
        for effect in effects:
            if isinstance(effect, Append):
                self._written(effect.record, now)
        self._look_who_trains(event, site, now)
        return [*removed, *self._announced(now), *self._changed(now), *self._missed_echo(now)]

    def _take(self, event: Event, here: Container[str], now: float) -> list[Effect]:
        match event:
            case Present():
                self._present(event, online=event.node.name in here, now=now)
            case NodeRemoved():
                return self._removed(event.node.name)
            case Overheard():
                self._overheard(event.topic, event.payload, now)
            case Linked():
                self._settled_at = now + SETTLING
                self._announce_all(self._settled_at)
            case Received(message=Ship() as message):
                self._shipped(message, now)
            case Received(message=ReleaseReport() as message):
                self._reported(event.sender.name, message, now)
            case _:
                pass
        return []

    def _present(self, event: Present, *, online: bool, now: float) -> None:
        """A device came or went, as the roster knows already; one that was gone before we came is shown, too."""
        name = event.node.name
        it = self._devices.get(name)
        if it is None:
            if len(self._devices) >= MEMBERS:
                return
            it = self._devices[name] = _Mirrored()
            it.now = self._left.pop(name, it.now)
            self._announce(name, now)
        if isinstance(event.state, Birth) and _differs(event.state.offer, it.offer):
            it.offer = event.state.offer
            self._announce(name, now)
        self._show(name, now, online=online, training=it.now.training and online)

    def _removed(self, name: str) -> list[Effect]:
        """A device left the fleet: nothing of it stays at the broker."""
        known = self._devices.pop(name, None)
        left = self._left.pop(name, None)
        self._alarm.forget(name)
        self._announcing.pop(name, None)
        self._training.discard(name)
        if known is None and left is None:
            return []
        topics_left = home_topics.all_topics(self._prefix, self._fleet, self._edge, name)
        return [Publish("device", topic, b"") for topic in topics_left]

    def _overheard(self, topic: str, payload: bytes, now: float) -> None:
        if topic == self._status:
            self._home_is(payload, now)
            return
        name = home_topics.read_device(self._fleet, self._edge, topic)
        if name is None or not topics.is_name(name):
            return
        it = self._devices.get(name)
        if it is not None and it.published is not None:
            self._heard_echo, self._echo_by = True, None
        else:
            self._remember(name, payload)

    def _home_is(self, payload: bytes, now: float) -> None:
        """Home Assistant says that it is back: announce all devices, a little later, and not again and again."""
        if payload == ONLINE and now >= self._answered_at:
            self._answered_at = max(now + self._random.uniform(*SPREAD), self._answered_at + AGAIN)
            self._announce_all(self._answered_at)

    def _remember(self, name: str, payload: bytes) -> None:
        """A state that was left before: what it counts goes on, but who is here now is known better."""
        state = read_state(payload)
        if state is None:
            return
        if it := self._devices.get(name):
            it.now = msgspec.structs.replace(state, online=it.now.online, training=it.now.training)
        elif len(self._left) < MEMBERS:
            self._left[name] = msgspec.structs.replace(state, online=False, training=False)

    def _written(self, record: object, now: float) -> None:
        """A visit was kept, or came to nothing."""
        if not isinstance(record, VisitKept | VisitMissed):
            return
        report = record.report
        if (it := self._devices.get(report.device)) is None:
            return
        if isinstance(record, VisitMissed):
            self._show(report.device, now, reason=shown(f"{report.status}: {report.reason}"))
            return
        loss = report.metrics.get("loss", it.now.loss)
        self._show(report.device, now, visits=min(it.now.visits + 1, MOST), loss=loss, reason="")

    def _look_who_trains(self, event: Event, site: Site, now: float) -> None:
        """Who spoke may train now; who trained may have been told to stop, whatever happened."""
        spoke = {event.sender.name} if isinstance(event, Received) and event.sender.role == "device" else set()
        for name in spoke | self._training:
            if name in self._devices:
                trains = _trains(site, name)
                (self._training.add if trains else self._training.discard)(name)
                self._show(name, now, training=trains)

    def _shipped(self, message: Ship, now: float) -> None:
        """The coordinator has an order for devices: what they should serve is known."""
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
            if len(releases) >= LINES:
                return
            self._announce(name, now)
        self._show(name, now, releases={**releases, line: release})

    def _show(self, name: str, now: float, **what: object) -> None:
        """Change what is shown; published when its pause is over, and once it was announced."""
        it = self._devices[name]
        state = msgspec.structs.replace(it.now, **what)
        if state != it.now:
            it.now = state
            self._alarm.set(name, max(now, it.next_at))

    def _announce(self, name: str, now: float) -> None:
        if self._settled_at is None:
            return
        self._announcing[name] = None
        self._announce_at = soonest(self._announce_at, max(now + SOON, self._settled_at))

    def _announce_all(self, when: float) -> None:
        self._announcing |= dict.fromkeys(self._devices)
        self._announce_at = soonest(self._announce_at, when)

    def _announced(self, now: float) -> list[Effect]:
        """Tell Home Assistant of the next devices, if it is time to."""
        if self._announce_at is None or self._announce_at > now:
            return []
        effects: list[Effect] = []
        for name in list(islice(self._announcing, AT_ONCE)):
            del self._announcing[name]
            # The state first: whoever finds the device reads at once what is kept of it, with all its releases.
            effects += [self._state(name, now), self._discovery(name)]
        self._announce_at = now + STEP if self._announcing else None
        return effects

    def _discovery(self, name: str) -> Publish:
        it = self._devices[name]
        it.announced = True
        payload = discovery_payload(self._fleet, self._edge, name, it.offer, sorted(it.now.releases))
        identity = home_topics.object_id(self._fleet, self._edge, name)
        return Publish("device", home_topics.discovery(self._prefix, identity), payload)

    def _changed(self, now: float) -> list[Effect]:
        """The states of those whose pause is over; of who was not announced yet, none."""
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
        it.published, it.next_at = payload, now + PAUSE
        if not self._heard_echo and self._echo_by is None:
            self._echo_by = now + ECHO
        return Publish("device", home_topics.device_state(self._fleet, self._edge, name), payload)

    def _missed_echo(self, now: float) -> list[Effect]:
        """Say once that nothing comes back of what is published: a broker drops in silence what it does not allow."""
        if self._echo_by is None or self._echo_by > now:
            return []
        self._heard_echo, self._echo_by = True, None
        return [
            Say(
                "what is published for Home Assistant does not come back: the site's broker may not allow it "
                "(`sojourn fleet add-home-assistant` writes access rules that do)",
                "warning",
            )
        ]


def _differs(offer: Offer | None, known: Offer | None) -> bool:
    """Whether an offer says something else of what is shown: of the data and the abilities nothing is."""
    if offer is None or known is None:
        return offer is not known
    return (offer.machine, offer.version) != (known.machine, known.version)


def _trains(site: Site, device: str) -> bool:
    """Whether a device is at work on a visit, as it says."""
    where = site.at.get(device)
    visit = site.visit(where) if where else None
    return visit is not None and visit.prepared and visit.state == HANDED
