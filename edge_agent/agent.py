"""The agent: takes visits from edge servers, has them trained, and holds the results until they are accepted.

A machine without I/O (`sojourn.node.machine`). One visit is worked on at a time; trained results wait for `Accepted` or
`Discarded`, across restarts. What is durable changes only in `apply`.

An objective may remember vectors from one visit of a job to the next, and only `Accepted` commits them. So a visit with
such an objective is taken and fetched, but not trained before the job's earlier results are settled: or else what comes
of it would depend on which message was lost. Half a lease is given to that; then the earlier result is dropped.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import msgspec

from edge_agent.offer_check import remembers, unsupported
from edge_agent.records import (
    KEPT,
    AgentState,
    Held,
    Key,
    Memory,
    Record,
    VisitEnded,
    VisitTaken,
    VisitTrained,
    key_of,
    supersedes,
    work_key,
)
from edge_agent.releases.machine import Releases
from edge_agent.releases.work import Usage
from edge_agent.training.work import Train, Trained, Warm
from sojourn.node.machine import (
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
    Send,
    Told,
    Undo,
    Woke,
    soonest,
)  # fmt: skip
from sojourn.node.outbox import Outbox
from sojourn.protocol.messages import Accepted, Cancel, Declined, Discarded, Prepare, Progress, Visit, Visited
from sojourn.protocol.release_messages import Release
from sojourn.protocol.topics import Address

if TYPE_CHECKING:
    from collections.abc import Callable
    from collections.abc import Set as AbstractSet

    from sojourn.node.machine import Event
    from sojourn.protocol.messages import Message
    from sojourn.protocol.topics import Role
    from sojourn.protocol.wire import Offer, VisitId, VisitReason

    Objection = Callable[[], tuple[VisitReason, str] | None]
    """Why this device will not work now, if it will not: heat, hours, power ..."""

PROGRESS_PAUSE = 1.0
DECLINED = "declined"
"""The key under which the last refusal waits to be heard."""
RESTARTS = 1
"""How often a visit is begun again here when its worker died, before it is given up."""
REASONS: tuple[VisitReason, ...] = (
    "hot", "hours", "metered", "power", "busy", "memory", "disk", "data", "runtime", "unsupported", "failed",
)  # fmt: skip


class Agent:
    """The state machine of a device."""

    def __init__(
        self,
        name: str,
        offer: Offer,
        *,
        edges: frozenset[str] = frozenset(),
        objection: Objection | None = None,
        releases: Releases | None = None,
    ) -> None:
        self.address = Address("device", name)
        self.offer: Offer | None = offer
        self.watches: tuple[Role, ...] = ()
        self.record_form: Any = Record
        self.state = AgentState()
        self._edges = edges
        self._objection = objection or (lambda: None)
        self._releases = releases or Releases("", "")
        self._outbox = Outbox()
        self._active: Key | None = None
        self._lacking: set[bytes] = set()
        self._warming: Prepare | None = None
        self._declined: Declined | None = None
        self._restarts = 0
        self._steps = (0, 0)
        self._news_at = 0.0
        self._next_progress: float | None = None
        self._patience: float | None = None
        """Until when the visit, all fetched, waits for earlier results of its job to be settled."""

    def role_of(self, sender: str) -> Role | None:
        """Only edge servers write to a device; with a list of them, only those."""
        return "edge" if not self._edges or sender in self._edges else None

    def restore(self, snapshot: bytes) -> None:
        """Take the durable state from a snapshot."""
        self.state = msgspec.msgpack.decode(snapshot, type=AgentState)

    def snapshot(self) -> bytes:
        """The durable state."""
        return msgspec.msgpack.encode(self.state)

    def apply(self, record: Record) -> None:
        """Change the durable state by one record."""
        self.state.apply(record)

    def live(self) -> AbstractSet[bytes]:
        """All that a held visit, the job's memory or a warm worker refers to."""
        warming = {self._warming.kit.digest} if self._warming else set()
        return self.state.live() | self._lacking | warming

    def heard(self, peer: Address, traffic: int, now: float, *, spoke: bool) -> None:  # noqa: ARG002
        """What is fetched comes: the visit gets on."""
        if spoke and self._lacking:
            self._news_at = now

    def wake_at(self) -> float | None:
        """The next resend or sign of life."""
        patience = None if self._releases.trying else self._patience  # what waits for a trial goes on when that ends
        return soonest(self._outbox.wake_at(), self._next_progress, patience)

    def start(self, now: float) -> list[Effect]:
        """Offer finished results again; begin an interrupted visit again, with the same randomness."""
        effects: list[Effect] = self._releases.start(self.state)
        for key, held in list(self.state.held.items()):
            if held.answer:
                effects += self._outbox.ask(key, Address("edge", held.source), held.answer, now)
            elif self.offer and (objection := unsupported(held.order.task, self.offer)):
                self._active = key  # the owner has changed the terms since it was taken
                effects += self._decline("unsupported", objection, now)
            else:
                effects += self._begin(key, held, now)
        return [*effects, *self._releases.go_on(busy=self._active is not None)]

    def handle(self, event: Event, now: float) -> list[Effect]:
        """React."""
        effects = [*self._react(event, now), *self._train_if_settled(now)]
        return [*effects, *self._releases.go_on(busy=self._active is not None)]

    def _react(self, event: Event, now: float) -> list[Effect]:
        match event:
            case Received():
                return self._receive(event.sender, event.message, now)
            case Pulled():
                return self._pulled(event.digest, now)
            case PullFailed():
                return self._pull_failed(event, now)
            case Doing():
                self._steps, self._news_at = (event.step, event.steps), now
                return []
            case Did():
                return self._did(event, now)
            case DidNot():
                return self._did_not(event, now)
            case Told() if isinstance(event.what, Usage):
                return self._releases.used(event.what, self.state)
            case Linked():
                return [*self._outbox.hasten(now), *self._releases.linked(self.state)]
            case Woke():
                return [*self._outbox.due(now), *self._sign_of_life(now)]
            case _:
                return []

    def _receive(self, edge: Address, message: Message, now: float) -> list[Effect]:
        match message:
            case Visit():
                return self._visit(edge, message, now)
            case Prepare():
                return self._prepare(edge, message)
            case Accepted():
                return self._settle(edge, message.visit, accepted=True)
            case Discarded() | Cancel():
                return self._settle(edge, message.visit, accepted=False)
            case Release():
                return self._releases.ordered(self.state, edge, message)
            case _:
                return []

    def _visit(self, edge: Address, message: Visit, now: float) -> list[Effect]:
        key = key_of(message.id)
        held = self.state.held.get(key)
        if held and held.order == message:  # asked again: answer from memory
            return [Send(edge, held.answer)] if held.answer else self._sign_of_life(now, at_once=True)
        if message.id.attempt <= self.state.fence(key):
            said = self._declined if self._declined and self._declined.visit == message.id else None
            return [Send(edge, said or Declined(message.id, "stale", "this attempt is over here"))]
        effects: list[Effect] = []
        if held:  # an older attempt of the same visit
            effects += self._end(key, accepted=False)
        if self._active is not None and supersedes(message.id, self.state.held[self._active].order.id):
            effects += self._end(self._active, accepted=False)
        if self._active is not None:
            busy = self.state.held[self._active]
            return [*effects, Send(edge, Declined(message.id, "busy", f"visiting for {busy.order.id.job}"))]
        if refusal := self._refusal(message):
            told = Say(f"declined {message.id}: {refusal[1]}")
            return [*effects, Send(edge, Declined(message.id, *refusal)), told]
        while len(self.state.held) >= KEPT:  # results that nobody fetches
            effects += self._end(next(iter(self.state.held)), accepted=False)
        record = VisitTaken(edge.name, message)
        self.apply(record)
        return [*effects, Append(record), *self._begin(key, self.state.held[key], now)]

    def _refusal(self, message: Visit) -> tuple[VisitReason, str] | None:
        objection = self.offer and unsupported(message.task, self.offer)
        return ("unsupported", objection) if objection else self._objection()

    def _begin(self, key: Key, held: Held, now: float) -> list[Effect]:
        """Fetch what the visit needs, then train."""
        self._active, self._restarts, self._steps = key, 0, (0, 0)
        self._warming = None
        needed = [held.order.kit, *held.order.vectors.values()]
        self._lacking, self._news_at = {ref.digest for ref in needed}, now
        source = Address("edge", held.source)
        pulls: list[Effect] = [Pull(ref, source) for ref in dict.fromkeys(needed)]
        self._next_progress = now  # unless all is here: then it is said that training has begun
        return [Say(f"visit {held.order.id} from {held.source}"), *pulls]

    def _pulled(self, digest: bytes, now: float) -> list[Effect]:
        self._releases.pulled(digest, self.state)
        if self._active is not None and digest in self._lacking:
            self._lacking.discard(digest)
            return [] if self._lacking else self._wait(now)
        if self._warming and self._warming.kit.digest == digest and self._active is None:
            return [Do("warm", Warm(self._warming.kit, self._warming.task))]
        return []

    def _wait(self, now: float) -> list[Effect]:
        """All is here: train, as soon as what is remembered for the job is certain."""
        visit = self.state.held[self._key()].order
        self._patience, self._news_at = now + visit.lease / 2, now
        if not (remembers(visit.task) and (waits := self.state.unsettled(visit.id.job))):
            return []
        return [Say(f"visit {visit.id} waits until {', '.join(waits)} is settled"), *self._outbox.hasten(now)]

    def _train_if_settled(self, now: float) -> list[Effect]:
        if self._patience is None or self._releases.trying:
            return []
        visit = self.state.held[self._key()].order
        effects: list[Effect] = []
        for key in self.state.unsettled(visit.id.job) if remembers(visit.task) else ():
            if now < self._patience:
                return []
            told = f"nobody has answered the result of {key}: it is dropped, and what it would have remembered"
            effects += [*self._end(key, accepted=False), Say(told, "warning")]
        return [*effects, *self._train(now)]

    def _train(self, now: float) -> list[Effect]:
        visit = self.state.held[self._key()].order
        memory = self.state.memory.get(visit.id.job) if remembers(visit.task) else None
        memory = memory or Memory()
        self._patience, self._news_at = None, now
        self._next_progress = now  # unless the result is here as soon
        return [Do(work_key(visit.id), Train(visit, memory.vectors, memory.visits))]

    def _pull_failed(self, event: PullFailed, now: float) -> list[Effect]:
        failed = self._releases.pull_failed(event.digest, event.reason, self.state)
        if self._active is None or event.digest not in self._lacking:
            return failed
        reason: VisitReason = "disk" if event.reason == "disk" else "gone"
        return failed + self._decline(reason, "could not get what the visit needs", now)

    def _prepare(self, edge: Address, message: Prepare) -> list[Effect]:
        if self._active is not None or self._objection():
            return []
        self._warming = message
        return [Pull(message.kit, edge)]

    def _did(self, event: Did, now: float) -> list[Effect]:
        released = self._releases.did(event, self.state)
        if released is not None:
            return released
        if not isinstance(event.outcome, Trained) or self._active is None:
            return []
        key, outcome = self._active, event.outcome
        held = self.state.held[key]
        answer = Visited(held.order.id, outcome.vectors, outcome.samples, outcome.metrics, outcome.signature)
        record = VisitTrained(key, answer, outcome.memory)
        self.apply(record)
        self._rest()
        blobs = tuple(ref.digest for ref in [*outcome.vectors.values(), *outcome.memory.values()])
        ask = self._outbox.ask(key, Address("edge", held.source), answer, now)
        return [Append(record, sync=True, blobs=blobs), *ask, Say(f"trained {held.order.id}: {_told(outcome)}")]

    def _did_not(self, event: DidNot, now: float) -> list[Effect]:
        released = self._releases.did_not(event, self.state)
        if released is not None:
            return released
        if self._active is None or event.key == "warm":
            return []
        if event.reason == "failed" and self._restarts < RESTARTS:
            self._restarts += 1
            return [Say(f"the worker failed, once more: {event.detail}", "warning"), *self._train(now)]
        reason: VisitReason = next((word for word in REASONS if word == event.reason), "failed")
        return self._decline(reason, event.detail, now)

    def _decline(self, reason: VisitReason, detail: str, now: float) -> list[Effect]:
        """Give up a visit that was begun, and say so until the edge server has heard it."""
        key = self._key()
        held = self.state.held[key]
        self._declined = Declined(held.order.id, reason, detail[:2000])
        ask = self._outbox.ask(DECLINED, Address("edge", held.source), self._declined, now)
        return [*self._end(key, accepted=False), *ask, Say(f"declined {held.order.id}: {detail}", "warning")]

    def _settle(self, edge: Address, visit: VisitId, *, accepted: bool) -> list[Effect]:
        key = key_of(visit)
        held = self.state.held.get(key)
        if self._declined and self._declined.visit == visit:
            self._outbox.answered(DECLINED)
        if held is None or held.order.id != visit or held.source != edge.name or (accepted and not held.answer):
            return []
        return self._end(key, accepted=accepted)

    def _end(self, key: Key, *, accepted: bool) -> list[Effect]:
        """A visit is over, whichever way."""
        held = self.state.held[key]
        record = VisitEnded(key, accepted)
        self.apply(record)
        self._outbox.answered(key)
        effects: list[Effect] = [Append(record, sync=accepted)]
        if key == self._active:
            self._rest()
            effects.append(Undo(work_key(held.order.id)))
        return effects

    def _rest(self) -> None:
        self._active, self._next_progress, self._patience = None, None, None
        self._lacking = set()

    def _sign_of_life(self, now: float, *, at_once: bool = False) -> list[Effect]:
        if self._active is None or not (at_once or (self._next_progress is not None and self._next_progress <= now)):
            return []
        held = self.state.held[self._active]
        if now - self._news_at > held.order.lease:  # nothing gets on here: let the lease run out
            self._next_progress = None
            return []
        self._next_progress = now + min(PROGRESS_PAUSE, held.order.lease / 4)
        stage = "fetching" if self._lacking or self._patience is not None else "training"
        return [Send(Address("edge", held.source), Progress(held.order.id, stage, *self._steps))]  # type: ignore[arg-type]

    def _key(self) -> Key:
        assert self._active is not None  # noqa: S101  # callers have looked
        return self._active


def _told(outcome: Trained) -> str:
    loss = outcome.metrics.get("loss")
    return f"{outcome.samples} samples" + (f", loss {loss:.4f}" if loss is not None else "")
