"""The edge server: leads a model along the devices of a tour, one visit after another, or merges those of many.

A machine without I/O (`sojourn.node.machine`): an agent to the coordinator, a coordinator to its devices. A visit that
is lost, declined or stopped by the gate costs one hop, never the tour. What is durable changes only in `apply`.
`tours` takes and ends tours, `visits` leads the model to a device and back, `site` is what both share.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import msgspec

from hierarchy.edge.gate import Failed, Passed, Wrapped
from hierarchy.edge.merge import Merged
from hierarchy.edge.records import EdgeState, Record
from hierarchy.edge.roster import SiteRoster
from hierarchy.edge.shipping import Shipping
from hierarchy.edge.site import Site
from hierarchy.edge.tours import Tours
from sojourn.node.machine import Did, DidNot, Linked, Present, Pulled, PullFailed, Received, Send, Woke, soonest
from sojourn.protocol.messages import (
    Cancel,
    Declined,
    Progress,
    RosterAsk,
    RosterSeen,
    Tour,
    TourAccepted,
    TourCancel,
    TourDiscarded,
    Visited,
)
from sojourn.protocol.release_messages import ReleaseReport, Ship
from sojourn.protocol.topics import Address

if TYPE_CHECKING:
    from collections.abc import Set as AbstractSet

    from sojourn.node.machine import Effect, Event
    from sojourn.protocol.messages import Message
    from sojourn.protocol.topics import Role
    from sojourn.protocol.wire import Offer

STALE = 3
"""How often a device may say that an attempt is stale before it costs the hop."""


class EdgeServer:
    """The state machine of a site."""

    def __init__(self, name: str, cloud: str) -> None:
        self.address = Address("edge", name)
        self.offer: Offer | None = None
        self.watches: tuple[Role, ...] = ("device",)
        self.record_form: Any = Record
        self.roster = SiteRoster()
        self.site = Site(Address("cloud", cloud))
        self._tours = Tours(self.site)
        self._visits = self._tours.visits
        self._shipping = Shipping(self.site.cloud)

    @property
    def state(self) -> EdgeState:
        """The durable state."""
        return self.site.state

    def role_of(self, sender: str) -> Role | None:
        """The coordinator is known by name; everybody else who may write here is a device."""
        return "cloud" if sender == self.site.cloud.name else "device"

    def restore(self, snapshot: bytes) -> None:
        """Take the durable state from a snapshot."""
        self.site.state = msgspec.msgpack.decode(snapshot, type=EdgeState)

    def snapshot(self) -> bytes:
        """The durable state."""
        return msgspec.msgpack.encode(self.state)

    def apply(self, record: Record) -> None:
        """Change the durable state by one record."""
        self.state.apply(record)

    def live(self) -> AbstractSet[bytes]:
        """All that a tour, a result on its way, a release or the roster refers to."""
        return self.site.live() | self._shipping.live() | ({self.roster.blob} if self.roster.blob else set())

    def heard(self, peer: Address, traffic: int, now: float, *, spoke: bool) -> None:
        """Count bytes towards the tour that is at the device; speaking renews its lease."""
        if peer.role == "device":
            self._visits.heard(peer.name, traffic, now, spoke=spoke)

    def wake_at(self) -> float | None:
        """The next resend, lease, heartbeat or roster."""
        return soonest(self.site.outbox.wake_at(), self.roster.tell_at, self.site.alarm.wake_at())

    def start(self, now: float) -> list[Effect]:
        """Take up every tour where its checkpoint is."""
        self.roster.tell_soon(now)
        return self._tours.resume(now)

    def handle(self, event: Event, now: float) -> list[Effect]:
        """React."""
        match event:
            case Received():
                return self._receive(event.sender, event.message, now)
            case Present():
                return self._visits.born(event.node.name, now) if self.roster.present(event, now) else []
            case Pulled():
                return self._pulled(event.digest, now)
            case PullFailed():
                return self._pull_failed(event, now)
            case Did():
                return self._did(event, now)
            case DidNot():
                return self._did_not(event, now)
            case Linked():
                return [*self.site.outbox.hasten(now)]
            case Woke():
                return self._woke(now)
            case _:
                return []

    def _receive(self, sender: Address, message: Message, now: float) -> list[Effect]:
        match message:
            case Tour():
                return self._tours.take(message, now)
            case TourCancel() | TourAccepted() | TourDiscarded():
                return self._tours.settle(message, now)
            case RosterAsk():
                self.roster.tell_soon(now)
            case RosterSeen() if message.revision == self.roster.revision:
                self.site.outbox.answered("roster")
            case Visited() | Progress() | Declined() if not self._visits.unready(message.visit):
                return self._answered(sender, message, now)
            case Ship():
                return self._shipping.take(message, self.roster.members)
            case ReleaseReport():
                return self._shipping.reported(sender, message)
        return []

    def _answered(self, sender: Address, message: Visited | Progress | Declined, now: float) -> list[Effect]:
        match message:
            case Visited():
                return self._visits.visited(sender, message, now)
            case Progress():
                return self._visits.progress(sender, message, now)
            case Declined():
                return [Send(sender, Cancel(message.visit)), *self._declined(sender, message, now)]

    def _declined(self, sender: Address, message: Declined, now: float) -> list[Effect]:
        where = self._visits.current(sender, message.visit)
        if where is None:
            return []
        # The device has seen later attempts than we remember: that is not its fault, and the next number is new to it.
        key, hop = where
        behind = message.reason == "stale" and self.state.tours[key].stops[hop].tries < STALE
        reason = f"{message.reason}: {message.detail}"
        return self._visits.lose(where, "declined", reason, now, "retry" if behind else None)

    def _pulled(self, digest: bytes, now: float) -> list[Effect]:
        effects = self._shipping.pulled(digest)
        for key, hop in self.site.fetches.arrived(digest):
            effects += self._tours.gathered(key, now) if hop is None else self._visits.check((key, hop))
        return effects

    def _pull_failed(self, event: PullFailed, now: float) -> list[Effect]:
        effects = self._shipping.pull_failed(event.digest, event.reason)
        for key, hop in self.site.fetches.waiting(event.digest):
            if hop is None:
                said = f"what it needs could not be fetched ({event.reason})"
                effects += self._tours.gather_again(key, said, now)
            else:
                said = f"the result could not be fetched ({event.reason})"
                effects += self._visits.lose((key, hop), "lost", said, now)
        return effects

    def _did_not(self, event: DidNot, now: float) -> list[Effect]:
        who = self.site.worked(event.key)
        if who is None:
            return []
        key, hop = who
        if hop is None:
            return self._tours.failed(key, event, now)
        return self._visits.lose((key, hop), "refused", event.detail, now)

    def _did(self, event: Did, now: float) -> list[Effect]:
        who = self.site.worked(event.key)
        if who is None:
            return []
        key, hop = who
        match event.outcome:
            case Passed() if hop is not None:
                return self._visits.keep((key, hop), event.outcome, now)
            case Failed() if hop is not None:
                return self._visits.lose((key, hop), "refused", event.outcome.reason, now)
            case Merged():
                return self._tours.merged(key, event.outcome, now)
            case Wrapped():
                return self._tours.end(key, event.outcome.vectors, now)
            case _:
                return []

    def _woke(self, now: float) -> list[Effect]:
        effects: list[Effect] = [*self.site.outbox.due(now), *self.roster.tell(self.site.cloud, self.site.outbox, now)]
        for key, hop in self.site.alarm.due(now):
            effects += self._tours.overdue(key, now) if hop is None else self._visits.overdue((key, hop), now)
        return effects
