"""The state machine of a device, which passes each event to its visits, its releases or its mandates.

The machine does no I/O (`sojourn.node.machine`). `edge_agent.visits` handles visits, `edge_agent.releases.machine`
handles releases. Both share one processor: a release is tried only while no visit is active, and a visit is trained
only while no release is being tried. Durable state changes only in `apply`.
"""

from __future__ import annotations

from collections.abc import Set as AbstractSet
from typing import Any, Literal

import msgspec

from edge_agent.limits import memory_needed
from edge_agent.mandates import Mandates
from edge_agent.records import AgentState, MandateEnded, Record
from edge_agent.releases.machine import ReleaseMachine
from edge_agent.releases.orders import Usage
from edge_agent.training.messages import Trained, Warm
from edge_agent.visits import Objection, Room, Sign, VisitMachine
from sojourn.node.machine import (
    Append,
    Effect,
    Event,
    LinkUp,
    LocalEvent,
    Log,
    PublishBirth,
    Pull,
    Pulled,
    PullFailed,
    Received,
    StartWork,
    TimerFired,
    WorkDone,
    WorkFailed,
    WorkProgress,
    earliest,
)
from sojourn.protocol.data_summary import DataSurvey
from sojourn.protocol.limits import decoded
from sojourn.protocol.mandates import Recall
from sojourn.protocol.messages import Accepted, Cancel, Discarded, Prepare, Visit
from sojourn.protocol.registry import Message
from sojourn.protocol.release_messages import Release
from sojourn.protocol.topics import Address, Role
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
        self._visits = VisitMachine(
            self.state,
            offer,
            self._objection,
            self._mandates,
            room or (lambda _needed: None),
            sign or (lambda _order, _answer: None),
        )
        self._releases = releases or ReleaseMachine("", "")
        self._warming: Prepare | None = None
        """The announced visit for which the worker loads data and graphs in advance."""

    def role_of(self, sender: str) -> Role | None:
        """Return the role of a sender: only edge servers may write to a device, and only the listed ones if any are."""
        return "edge" if not self._edges or sender in self._edges else None

    def restore(self, snapshot: bytes) -> None:
        """Load the durable state from a snapshot."""
        self.state = self._visits.state = decoded(snapshot, AgentState)

    def snapshot(self) -> bytes:
        """Return the durable state as bytes."""
        return msgspec.msgpack.encode(self.state)

    def apply(self, record: Record) -> None:
        """Apply one record to the durable state."""
        self.state.apply(record)

    remedy = (
        "Visits with missing records start again when edge servers ask for them; state that objectives keep between "
        "visits may be lost. No action is needed. To start with an empty store instead: stop the agent and move its "
        "store away."
    )

    def validation_error(self, record: Record) -> str | None:  # noqa: ARG002  # any record can be applied
        """Return None: every record that can be decoded is valid."""
        return None

    def reserve_newer_attempts(self, boots: int) -> None:  # noqa: ARG002  # a device assigns no attempt numbers
        """Update the state after records were lost."""
        self.state.reserve_newer_attempts()

    def drop_missing_blobs(self, missing: AbstractSet[bytes]) -> list[str]:
        """Drop the results whose blobs are missing; return a message for each."""
        return self.state.drop_missing_blobs(missing)

    def live(self) -> AbstractSet[bytes]:
        """Return the digests of all blobs that visits, objective memory, releases or the warm-up refer to."""
        warming = {self._warming.kit.digest} if self._warming else set()
        return self.state.live() | warming

    def on_traffic(self, peer: Address, traffic: int, now: float, *, sign_of_life: bool) -> None:  # noqa: ARG002
        """Handle traffic from a peer: it shows that the blobs being fetched are arriving."""
        if sign_of_life:
            self._visits.on_traffic(now)

    def wake_at(self) -> float | None:
        """Return the time of the next resend, progress report or mandate check."""
        return earliest(self._visits.wake_at(trying=self._releases.trying), self._mandates.wake_at())

    def start(self, now: float) -> list[Effect]:
        """Resume the work that was active when the durable state was last written."""
        effects = [*self._mandates.start(self.state, now), *self._releases.start(self.state), *self._visits.start(now)]
        return [*effects, *self._releases.advance(self.state, busy=self._busy)]

    def handle(self, event: Event, now: float) -> list[Effect]:
        """Return the effects of an event."""
        effects = self._react(event, now)
        if self._visits.waits and not self._releases.trying:
            effects += self._visits.train_if_unblocked(now)
        if busy := self._busy:
            self._warming = None
        if self._releases.waits:
            effects += self._releases.advance(self.state, busy=busy)
        return effects

    @property
    def visits(self) -> VisitMachine:
        """The visits of the device."""
        return self._visits

    @property
    def idle(self) -> bool:
        """Whether no work is active and no reply is pending, so that the durable state is the whole state."""
        return not (self._busy or self._warming or self.state.held or self.state.lines) and self.wake_at() is None

    @property
    def _busy(self) -> bool:
        """Whether a visit is active."""
        return self._visits.active is not None

    def _react(self, event: Event, now: float) -> list[Effect]:
        match event:
            case Received():
                return self._receive(event.sender, event.message, now)
            case Pulled():
                return self._pulled(event.digest, now)
            case PullFailed():
                return self._pull_failed(event, now)
            case WorkProgress():
                self._visits.on_progress(event, now)
                return []
            case WorkDone():
                return self._on_work_done(event, now)
            case WorkFailed():
                return self._on_work_failed(event, now)
            case LocalEvent():
                return self._on_local_event(event.what)
            case LinkUp():
                return [*self._visits.on_link_up(now), *self._releases.on_link_up(self.state)]
            case TimerFired():
                return [*self._check_mandates(now), *self._visits.on_timer(now)]
            case _:
                return []

    def _check_mandates(self, now: float) -> list[Effect]:
        """End the mandates that have expired, if a check is due."""
        at = self._mandates.wake_at()
        if at is None or at > now:
            return []
        effects = self._mandates.check_clock(self.state, now)
        ended = [it.record.job for it in effects if isinstance(it, Append) and isinstance(it.record, MandateEnded)]
        for job in ended:
            effects += self._visits.on_mandate_ended(job, now)
        return effects

    def _on_recall(self, message: Recall, now: float) -> list[Effect]:
        job, effects = self._mandates.recalled(self.state, message.withdrawal)
        if job and self._warming and self._warming.job == job:
            self._warming = None
        return [*effects, *(self._visits.on_mandate_ended(job, now) if job else ())]

    def _on_local_event(self, what: object) -> list[Effect]:
        if isinstance(what, DataSurvey):
            return self._on_survey(what)
        return self._releases.on_usage(what, self.state) if isinstance(what, Usage) else []

    def _on_survey(self, found: DataSurvey) -> list[Effect]:
        """Log how the data was interpreted, and publish the part of the summary that the owner shares."""
        offer = self._visits.offer
        summary = found.summary.shared(offer.shares)
        self.offer = self._visits.offer = msgspec.structs.replace(offer, summary=summary)
        level: Literal["info", "warning"] = "warning" if found.summary.fault else "info"
        facts = [Log(f"data: {line}", level) for line in found.facts]
        return [*facts, *(Log(f"data: {text}", "warning") for text in found.warnings), PublishBirth()]

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
                return self._on_recall(message, now)
            case Release():
                return self._releases.ordered(self.state, edge, message)
            case _:
                return []

    def _prepare(self, edge: Address, message: Prepare) -> list[Effect]:
        if self._busy or self._objection() or not self._mandates.allows(self.state, edge.name, message):
            return []
        if self._visits.room(memory_needed(message)):  # the visit would be declined: do not fetch its kit
            return []
        self._warming = message
        return [Pull(message.kit, edge)]

    def _pulled(self, digest: bytes, now: float) -> list[Effect]:
        self._releases.pulled(digest, self.state)
        if self._visits.lacks(digest):
            return self._visits.pulled(digest, now)
        if self._warming and self._warming.kit.digest == digest:
            return [StartWork("warm", Warm(self._warming.kit, self._warming.task))]
        return []

    def _pull_failed(self, event: PullFailed, now: float) -> list[Effect]:
        effects = self._releases.pull_failed(event.digest, event.reason, self.state)
        if self._visits.lacks(event.digest):
            effects += self._visits.pull_failed(event.reason, now)
        return effects

    def _on_work_done(self, event: WorkDone, now: float) -> list[Effect]:
        released = self._releases.on_work_done(event, self.state)
        if released is not None:
            return released
        if self._visits.trains(event.key) and isinstance(event.outcome, Trained):
            return self._visits.on_trained(event.outcome, now)
        return []

    def _on_work_failed(self, event: WorkFailed, now: float) -> list[Effect]:
        released = self._releases.on_work_failed(event, self.state)
        if released is not None:
            return released
        return self._visits.on_work_failed(event, now) if self._visits.trains(event.key) else []
