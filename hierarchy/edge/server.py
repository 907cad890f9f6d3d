"""The edge server: leads a model along the devices of a tour, or merges the models of many devices.

A machine without I/O (`sojourn.node.machine`): an agent to the coordinator, a coordinator to its devices. A visit that
is lost, declined or refused by the gate costs one hop, never the tour. Durable state changes only in `apply`.
This module dispatches events: `tours` takes and ends tours, `visits` leads the model to a device and back, each along
its state table (`tables`); `site` holds the state that both share.
"""

from __future__ import annotations

from collections.abc import Set as AbstractSet
from typing import Any

import msgspec

from hierarchy.edge.forwarding import Recalls, Shipping
from hierarchy.edge.gate import Failed, Passed, Wrapped
from hierarchy.edge.home_assistant.mirror import HomeMirror
from hierarchy.edge.merge import Merged
from hierarchy.edge.records import EdgeState, Record
from hierarchy.edge.roster import SiteRoster
from hierarchy.edge.site import Site
from hierarchy.edge.tables import VisitEvent
from hierarchy.edge.tours import TourLeader
from sojourn.node.machine import (
    Effect,
    Event,
    LinkUp,
    Present,
    Pulled,
    PullFailed,
    Received,
    TimerFired,
    WorkDone,
    WorkFailed,
    earliest,
)
from sojourn.protocol.limits import decoded
from sojourn.protocol.mandates import Recall
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
from sojourn.protocol.registry import Message
from sojourn.protocol.release_messages import ReleaseReport, Ship
from sojourn.protocol.topics import Address, Role
from sojourn.protocol.visit_outcomes import UNFETCHED
from sojourn.protocol.wire import Offer


class EdgeServer:
    """The state machine of a site: dispatches events to tours, visits, the roster and releases."""

    def __init__(self, name: str, cloud: str, home: HomeMirror | None = None) -> None:
        """`home` shows the devices in Home Assistant; None if that is not enabled."""
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
        """Return the durable state."""
        return self.site.state

    def role_of(self, sender: str) -> Role | None:
        """Return the role of a sender: the coordinator is known by name; every other permitted sender is a device."""
        return "cloud" if sender == self.site.cloud.name else "device"

    def restore(self, snapshot: bytes) -> None:
        """Restore the durable state from a snapshot."""
        self.site.state = decoded(snapshot, EdgeState)

    def snapshot(self) -> bytes:
        """Return the encoded durable state."""
        return msgspec.msgpack.encode(self.state)

    def apply(self, record: Record) -> None:
        """Change the durable state by one record."""
        self.state.apply(record)

    remedy = (
        "Tours with missing records resume from an earlier visit, or start again when the coordinator asks for "
        "them. No action is needed. To start empty instead, stop the edge server and move its store away."
    )

    def validation_error(self, record: Record) -> str | None:
        """Return why a record does not follow from the current state."""
        return self.state.validation_error(record)

    def reserve_newer_attempts(self, boots: int) -> None:  # noqa: ARG002  # visits are numbered within their tours
        """Number visits beyond all that devices may have seen, after records were lost."""
        self.state.reserve_newer_attempts()

    def drop_missing_blobs(self, missing: AbstractSet[bytes]) -> list[str]:
        """Continue without blobs that are missing."""
        return self.state.drop_missing_blobs(missing)

    def live(self) -> AbstractSet[bytes]:
        """Return all blobs that a tour, a result in transit, a release or the roster refers to."""
        return self.site.live() | self._shipping.live() | ({self.roster.blob} if self.roster.blob else set())

    def on_traffic(self, peer: Address, traffic: int, now: float, *, sign_of_life: bool) -> None:
        """Count bytes towards the tour at the device; a sign of life renews its lease."""
        if peer.role == "device":
            self._visits.on_traffic(peer.name, traffic, now, sign_of_life=sign_of_life)

    def wake_at(self) -> float | None:
        """Return when the next resend, lease, heartbeat or roster is due."""
        home = self._home.wake_at() if self._home else None
        return earliest(self.site.outbox.wake_at(), self.roster.wake_at(), self.site.alarm.wake_at(), home)

    def start(self, now: float) -> list[Effect]:
        """Resume every tour at its checkpoint."""
        self.roster.report_soon(now)
        return self._tours.resume(now)

    def handle(self, event: Event, now: float) -> list[Effect]:
        """Apply one event; the caller performs the effects in their order."""
        effects = self._react(event, now)
        if self._home is None:
            return effects
        return [*effects, *self._home.follow(event, effects, self.site, self.roster.members, now)]

    def _react(self, event: Event, now: float) -> list[Effect]:
        match event:
            case Received():
                return self._receive(event.sender, event.message, now)
            case Present():
                born, logged = self.roster.present(event, now)
                if not born:
                    return logged
                # It may have lost its order, and missed withdrawals.
                device = event.node.name
                return [*logged, *self._recalls.for_device(device), *self._visits.born(device, now)]
            case Pulled():
                return self._pulled(event.digest, now)
            case PullFailed():
                return self._pull_failed(event, now)
            case WorkDone():
                return self._work_done(event, now)
            case WorkFailed():
                return self._work_failed(event, now)
            case LinkUp():
                return [*self.site.outbox.resend_now(now)]
            case TimerFired():
                return self._wake(now)
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
                return self._forward(sender, message, now)
        return []

    def _forward(self, sender: Address, message: Message, now: float) -> list[Effect]:
        """Forward releases and withdrawals to devices, and release reports to the coordinator."""
        match message:
            case Recall():
                return self._recalls.take(message, self.roster.members)
            case Ship():
                return self._shipping.take(message, self.roster.members)
            case ReleaseReport():
                return self._shipping.reported(sender, message, self.roster.members, now)
            case _:
                return []

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
                effects += self._visits.lose((key, hop), VisitEvent.FETCH_FAILED, reason, now)
        return effects

    def _work_failed(self, event: WorkFailed, now: float) -> list[Effect]:
        owner = self.site.worked(event.key)
        if owner is None:
            return []
        key, hop = owner
        if hop is None:
            return self._tours.failed(key, event, now)
        return self._visits.lose(
            (key, hop), VisitEvent.NOT_CHECKED, f"{event.detail}; see the log of this edge server", now
        )

    def _work_done(self, event: WorkDone, now: float) -> list[Effect]:
        owner = self.site.worked(event.key)
        if owner is None:
            return []
        key, hop = owner
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

    def _wake(self, now: float) -> list[Effect]:
        effects: list[Effect] = [
            *self.site.outbox.due(now),
            *self.roster.report(self.site.cloud, self.site.outbox, now),
        ]
        for key, hop in self.site.alarm.due(now):
            effects += self._tours.overdue(key, now) if hop is None else self._visits.overdue((key, hop), now)
        return effects
