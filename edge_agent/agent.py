"""The agent: the state machine of a device, which hands each event to the part of it that the event is for.

A machine without I/O (`sojourn.node.machine`). `edge_agent.visits` leads visits, `edge_agent.releases.machine` what is
served; the two share one processor, so a release is tried only while no visit is under way, and the other way round.
What is durable changes only in `apply`.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, Literal

import msgspec

from edge_agent.mandate_records import MandateEnded
from edge_agent.mandates import Mandates
from edge_agent.offer_check import memory_needed
from edge_agent.records import AgentState, Record
from edge_agent.releases.machine import ReleaseMachine
from edge_agent.releases.work import Usage
from edge_agent.training.work import Trained, Warm
from edge_agent.visits import VisitMachine
from sojourn.data.data_survey import DataSurvey
from sojourn.node.machine import (
    Announce,
    Append,
    Did,
    DidNot,
    Do,
    Doing,
    Effect,
    Linked,
    Pull,
    Pulled,
    PullFailed,
    Received,
    Say,
    Told,
    Woke,
    soonest,
)
from sojourn.protocol.mandate_messages import Recall
from sojourn.protocol.mending import read_record
from sojourn.protocol.messages import Accepted, Cancel, Discarded, Prepare, Visit
from sojourn.protocol.release_messages import Release
from sojourn.protocol.topics import Address

if TYPE_CHECKING:
    from collections.abc import Set as AbstractSet

    from edge_agent.visits import Objection, Room, Sign
    from sojourn.node.machine import Event
    from sojourn.protocol.messages import Message
    from sojourn.protocol.topics import Role
    from sojourn.protocol.wire import Offer


class Agent:
    """The state machine of a device."""

    def __init__(
        self,
        name: str,
        offer: Offer,
        *,
        edges: frozenset[str] = frozenset(),
        objection: Objection | None = None,
        releases: ReleaseMachine | None = None,
        mandates: Mandates | None = None,
        sign: Sign | None = None,
        room: Room | None = None,
    ) -> None:
        self.address = Address("device", name)
        self.offer: Offer | None = offer
        self.watches: tuple[Role, ...] = ()
        self.record_form: Any = Record
        self.state = AgentState()
        self._edges = edges
        self._objection = objection or (lambda: None)
        self._mandates = mandates or Mandates()
        self._visits = VisitMachine(self.state, offer, self._objection, self._mandates)
        if sign is not None:
            self._visits.sign = sign
        if room is not None:
            self._visits.room = room
        self._releases = releases or ReleaseMachine("", "")
        self._warming: Prepare | None = None
        """The visit that is near, for which the worker is made ready."""

    def role_of(self, sender: str) -> Role | None:
        """Only edge servers write to a device; with a list of them, only those."""
        return "edge" if not self._edges or sender in self._edges else None

    def restore(self, snapshot: bytes) -> None:
        """Take the durable state from a snapshot."""
        self.state = self._visits.state = read_record(snapshot, AgentState)

    def snapshot(self) -> bytes:
        """The durable state as bytes."""
        return msgspec.msgpack.encode(self.state)

    def apply(self, record: Record) -> None:
        """Change the durable state by one record."""
        self.state.apply(record)

    remedy = (
        "Visits of which something is missing are begun again when edge servers ask for them; what objectives remember "
        "between visits may be lost. Nothing needs to be done. To start empty instead: stop the agent and move its "
        "store away."
    )

    def objection(self, record: Record) -> str | None:  # noqa: ARG002  # visits are told apart by what they change
        """Have none: a record of a visit or a line that is not here cannot be applied."""
        return None

    def mend(self, boots: int) -> None:  # noqa: ARG002  # a device gives no numbers
        """Records were lost."""
        self.state.mend()

    def do_without(self, missing: AbstractSet[bytes]) -> list[str]:
        """Go on without blobs that are gone."""
        return self.state.do_without(missing)

    def live(self) -> AbstractSet[bytes]:
        """All that a held visit, the job's memory or a warm worker refers to."""
        warming = {self._warming.kit.digest} if self._warming else set()
        return self.state.live() | warming

    def heard(self, peer: Address, traffic: int, now: float, *, spoke: bool) -> None:  # noqa: ARG002
        """A node that speaks sends what is being fetched."""
        if spoke:
            self._visits.heard(now)

    def wake_at(self) -> float | None:
        """The next resend or sign of life."""
        return soonest(self._visits.wake_at(trying=self._releases.trying), self._mandates.wake_at())

    def start(self, now: float) -> list[Effect]:
        """Go on with what the durable state says was under way."""
        effects = [*self._mandates.start(self.state, now), *self._releases.start(self.state), *self._visits.start(now)]
        return [*effects, *self._releases.go_on(self.state, busy=self._busy)]

    def handle(self, event: Event, now: float) -> list[Effect]:
        """What is to be done about an event."""
        effects = self._react(event, now)
        if self._visits.waits and not self._releases.trying:
            effects += self._visits.train_if_unblocked(now)
        if busy := self._busy:
            self._warming = None
        if self._releases.waits:
            effects += self._releases.go_on(self.state, busy=busy)
        return effects

    @property
    def visits(self) -> VisitMachine:
        """The visits of the device."""
        return self._visits

    @property
    def idle(self) -> bool:
        """Whether nothing is under way and nobody waits for an answer: then all that counts is in its durable state."""
        return not (self._busy or self._warming or self.state.held or self.state.lines) and self.wake_at() is None

    @property
    def _busy(self) -> bool:
        """Whether a visit is under way."""
        return self._visits.active is not None

    def _react(self, event: Event, now: float) -> list[Effect]:
        match event:
            case Received():
                return self._receive(event.sender, event.message, now)
            case Pulled():
                return self._pulled(event.digest, now)
            case PullFailed():
                return self._pull_failed(event, now)
            case Doing():
                self._visits.doing(event, now)
                return []
            case Did():
                return self._did(event, now)
            case DidNot():
                return self._did_not(event, now)
            case Told():
                return self._told(event.what)
            case Linked():
                return [*self._visits.linked(now), *self._releases.linked(self.state)]
            case Woke():
                return [*self._look_at_mandates(now), *self._visits.woke(now)]
            case _:
                return []

    def _look_at_mandates(self, now: float) -> list[Effect]:
        """End those whose time is over, when it is time to look."""
        at = self._mandates.wake_at()
        if at is None or at > now:
            return []
        effects = self._mandates.look(self.state, now)
        ended = [it.record.job for it in effects if isinstance(it, Append) and isinstance(it.record, MandateEnded)]
        for job in ended:
            effects += self._visits.mandate_over(job, now)
        return effects

    def _recalled(self, message: Recall, now: float) -> list[Effect]:
        job, effects = self._mandates.recalled(self.state, message.withdrawal)
        if job and self._warming and self._warming.job == job:
            self._warming = None
        return [*effects, *(self._visits.mandate_over(job, now) if job else ())]

    def _told(self, what: object) -> list[Effect]:
        if isinstance(what, DataSurvey):
            return self._looked(what)
        return self._releases.used(what, self.state) if isinstance(what, Usage) else []

    def _looked(self, found: DataSurvey) -> list[Effect]:
        """The data was looked at: say here what it was taken for, and to others as much as the owner shares."""
        offer = self._visits.offer
        summary = found.summary.shared(offer.shares)
        self.offer = self._visits.offer = msgspec.structs.replace(offer, summary=summary)
        level: Literal["info", "warning"] = "warning" if found.summary.fault else "info"
        facts = [Say(f"data: {line}", level) for line in found.facts]
        return [*facts, *(Say(f"data: {text}", "warning") for text in found.warnings), Announce()]

    def _receive(self, edge: Address, message: Message, now: float) -> list[Effect]:
        match message:
            case Visit():
                return self._visits.ordered(edge, message, now)
            case Prepare():
                return self._prepare(edge, message)
            case Accepted():
                return self._visits.answered(edge, message.visit, accepted=True)
            case Discarded():
                return self._visits.answered(edge, message.visit, accepted=False, reason=message.reason)
            case Cancel():
                return self._visits.answered(edge, message.visit, accepted=False)
            case Recall():
                return self._recalled(message, now)
            case Release():
                return self._releases.ordered(self.state, edge, message)
            case _:
                return []

    def _prepare(self, edge: Address, message: Prepare) -> list[Effect]:
        if self._busy or self._objection() or not self._mandates.allows(self.state, edge.name, message):
            return []
        if self._visits.room(memory_needed(message)):  # the visit will be declined: its kit is not fetched for nothing
            return []
        self._warming = message
        return [Pull(message.kit, edge)]

    def _pulled(self, digest: bytes, now: float) -> list[Effect]:
        self._releases.pulled(digest, self.state)
        if self._visits.lacks(digest):
            return self._visits.pulled(digest, now)
        if self._warming and self._warming.kit.digest == digest:
            return [Do("warm", Warm(self._warming.kit, self._warming.task))]
        return []

    def _pull_failed(self, event: PullFailed, now: float) -> list[Effect]:
        effects = self._releases.pull_failed(event.digest, event.reason, self.state)
        if self._visits.lacks(event.digest):
            effects += self._visits.pull_failed(event.reason, now)
        return effects

    def _did(self, event: Did, now: float) -> list[Effect]:
        released = self._releases.did(event, self.state)
        if released is not None:
            return released
        if self._visits.trains(event.key) and isinstance(event.outcome, Trained):
            return self._visits.did(event.outcome, now)
        return []

    def _did_not(self, event: DidNot, now: float) -> list[Effect]:
        released = self._releases.did_not(event, self.state)
        if released is not None:
            return released
        return self._visits.did_not(event, now) if self._visits.trains(event.key) else []
