"""The edge server: leads a model along the devices of a tour, one visit after another, or merges those of many.

A machine without I/O (`sojourn.node.machine`): an agent to the coordinator, a coordinator to its devices. A visit that
is lost, declined or stopped by the gate costs one hop, never the tour. What is durable changes only in `apply`.
This file sorts events: `tours` takes and ends tours, `visits` leads the model to a device and back, each along its
table (`tour_table`, `visit_table`); `site` is what both share.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import msgspec

from hierarchy.edge.gate import Failed, Passed, Wrapped
from hierarchy.edge.merge import Merged
from hierarchy.edge.recalls import Recalls
from hierarchy.edge.records import EdgeState, Record
from hierarchy.edge.roster import SiteRoster
from hierarchy.edge.shipping import Shipping
from hierarchy.edge.site import Site
from hierarchy.edge.tours import TourLeader
from sojourn.node.machine import Did, DidNot, Linked, Present, Pulled, PullFailed, Received, Woke, soonest
from sojourn.protocol.mandate_messages import Recall
from sojourn.protocol.mending import read_record
from sojourn.protocol.messages import (
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
from sojourn.protocol.visit_words import UNFETCHED

if TYPE_CHECKING:
    from collections.abc import Set as AbstractSet

    from hierarchy.edge.home_assistant.mirror import HomeMirror
    from sojourn.node.machine import Effect, Event
    from sojourn.protocol.messages import Message
    from sojourn.protocol.topics import Role
    from sojourn.protocol.wire import Offer


class EdgeServer:
    """The state machine of a site: sorts what happens to tours, visits, the roster and releases."""

    def __init__(self, name: str, cloud: str, home: HomeMirror | None = None) -> None:
        """`home` shows the devices to Home Assistant, where somebody wants that."""
        self.address = Address("edge", name)
        self.offer: Offer | None = None
        self.watches: tuple[Role, ...] = ("device",)
        self.record_form: Any = Record
        self.roster = SiteRoster()
        self.site = Site(name, Address("cloud", cloud))
        self._tours = TourLeader(self.site)
        self._visits = self._tours.visits
        self._shipping = Shipping(self.site.cloud)
        self._recalls = Recalls()
        self._home = home

    @property
    def state(self) -> EdgeState:
        """The durable state."""
        return self.site.state

    def role_of(self, sender: str) -> Role | None:
        """The coordinator is known by name; everybody else who may write here is a device."""
        return "cloud" if sender == self.site.cloud.name else "device"

    def restore(self, snapshot: bytes) -> None:
        """Take the durable state from a snapshot."""
        self.site.state = read_record(snapshot, EdgeState)

    def snapshot(self) -> bytes:
        """The durable state."""
        return msgspec.msgpack.encode(self.state)

    def apply(self, record: Record) -> None:
        """Change the durable state by one record."""
        self.state.apply(record)

    remedy = (
        "Tours of which something is missing go on from an earlier visit, or begin anew when the coordinator asks for "
        "them. Nothing needs to be done. To start empty instead: stop the edge server and move its store away."
    )

    def objection(self, record: Record) -> str | None:
        """Why a record does not follow what is here."""
        return self.state.objection(record)

    def mend(self, boots: int) -> None:  # noqa: ARG002  # visits are numbered within their tours
        """Records were lost: number visits beyond all that devices have seen."""
        self.state.mend()

    def do_without(self, missing: AbstractSet[bytes]) -> list[str]:
        """Go on without blobs that are gone."""
        return self.state.do_without(missing)

    def live(self) -> AbstractSet[bytes]:
        """All that a tour, a result on its way, a release or the roster refers to."""
        return self.site.live() | self._shipping.live() | ({self.roster.blob} if self.roster.blob else set())

    def heard(self, peer: Address, traffic: int, now: float, *, spoke: bool) -> None:
        """Count bytes towards the tour that is at the device; speaking renews its lease."""
        if peer.role == "device":
            self._visits.heard(peer.name, traffic, now, spoke=spoke)

    def wake_at(self) -> float | None:
        """The next resend, lease, heartbeat or roster."""
        home = self._home.wake_at() if self._home else None
        return soonest(self.site.outbox.wake_at(), self.roster.wake_at(), self.site.alarm.wake_at(), home)

    def start(self, now: float) -> list[Effect]:
        """Take up every tour where its checkpoint is."""
        self.roster.report_soon(now)
        return self._tours.resume(now)

    def handle(self, event: Event, now: float) -> list[Effect]:
        """Change by one event; the effects are to be performed in their order."""
        effects = self._react(event, now)
        if self._home is None:
            return effects
        return [*effects, *self._home.follow(event, effects, self.site, self.roster.members, now)]

    def _react(self, event: Event, now: float) -> list[Effect]:
        match event:
            case Received():
                return self._receive(event.sender, event.message, now)
            case Present():
                born, said = self.roster.present(event, now)
                return [*said, *(self._born(event.node.name, now) if born else [])]
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
                return self._tours.dismissed(message, now)
            case RosterAsk():
                self.roster.report_soon(now)
            case RosterSeen() if message.revision == self.roster.revision:
                self.site.outbox.answered("roster")
            case Visited():
                return self._visits.visited(sender, message, now)
            case Progress():
                return self._visits.progress(sender, message, now)
            case Declined():
                return self._visits.declined(sender, message, now)
            case _:
                return self._hand_on(sender, message, now)
        return []

    def _hand_on(self, sender: Address, message: Message, now: float) -> list[Effect]:
        """What concerns releases and withdrawals is handed to devices, or up."""
        match message:
            case Recall():
                return self._recalls.take(message, self.roster.members)
            case Ship():
                return self._shipping.take(message, self.roster.members)
            case ReleaseReport():
                return self._shipping.reported(sender, message, self.roster.members, now)
            case _:
                return []

    def _born(self, device: str, now: float) -> list[Effect]:
        """A device is here again: it may have forgotten what it was asked, and not heard what was withdrawn."""
        return [*self._recalls.told(device), *self._visits.born(device, now)]

    def _pulled(self, digest: bytes, now: float) -> list[Effect]:
        effects = self._shipping.pulled(digest)
        for key, hop in self.site.fetches.arrived(digest):
            effects += self._tours.gathered(key, now) if hop is None else self._visits.fetched((key, hop))
        return effects

    def _pull_failed(self, event: PullFailed, now: float) -> list[Effect]:
        effects = self._shipping.pull_failed(event.digest, event.reason)
        for key, hop in self.site.fetches.waiting(event.digest):
            if hop is None:
                effects += self._tours.not_gathered(key, event.reason, now)
            else:
                reason = f"{UNFETCHED} ({event.reason})"
                effects += self._visits.lose((key, hop), "fetch failed", reason, now)
        return effects

    def _did_not(self, event: DidNot, now: float) -> list[Effect]:
        who = self.site.worked(event.key)
        if who is None:
            return []
        key, hop = who
        if hop is None:
            return self._tours.failed(key, event, now)
        return self._visits.lose((key, hop), "not checked", f"{event.detail}; see the log of this edge server", now)

    def _did(self, event: Did, now: float) -> list[Effect]:
        who = self.site.worked(event.key)
        if who is None:
            return []
        key, hop = who
        match event.outcome:
            case Passed() if hop is not None:
                return self._visits.keep((key, hop), event.outcome, now)
            case Failed() if hop is not None:
                return self._visits.refuse((key, hop), event.outcome, now)
            case Merged():
                return self._tours.merged(key, event.outcome, now)
            case Wrapped():
                return self._tours.wrapped(key, event.outcome.vectors, now)
            case _:
                return []

    def _woke(self, now: float) -> list[Effect]:
        effects: list[Effect] = [
            *self.site.outbox.due(now),
            *self.roster.report(self.site.cloud, self.site.outbox, now),
        ]
        for key, hop in self.site.alarm.due(now):
            effects += self._tours.overdue(key, now) if hop is None else self._visits.overdue((key, hop), now)
        return effects
