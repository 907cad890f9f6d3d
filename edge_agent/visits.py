"""Visits on a device: takes them from edge servers, has them trained, and holds the results until they are answered.

A part of the agent's machine, without I/O. One visit is worked on at a time; trained results wait for `Accepted` or
`Discarded`, across restarts. Each change of a visit is a row of `edge_agent.visit_table`.

An objective may remember vectors from one visit of a job to the next, and only `Accepted` commits them. So a visit with
such an objective is taken and fetched, but not trained before the job's earlier results are answered: or else what
comes of it would depend on which message was lost. Half a lease is given to that; then the earlier result is dropped.
"""

from __future__ import annotations

from collections import Counter
from dataclasses import dataclass, field
from typing import TYPE_CHECKING

import msgspec

from edge_agent.active_visit import ActiveVisit
from edge_agent.mandates import Mandates
from edge_agent.offer_check import memory_needed, remembers, unsupported
from edge_agent.records import (
    RESULTS_KEPT,
    HeldVisit,
    Memory,
    VisitEnded,
    VisitTaken,
    VisitTrained,
    key_of,
    supersedes,
    work_key,
)
from edge_agent.training.work import Train
from edge_agent.visit_table import DEVICE_VISIT, DeviceVisitEvent, DeviceVisitState
from sojourn.about import About
from sojourn.node.machine import Append, Do, Pull, Say, Send, Undo, soonest
from sojourn.node.outbox import Outbox
from sojourn.protocol.limits import MOST, TEXT
from sojourn.protocol.messages import Declined, Visited
from sojourn.protocol.topics import Address

if TYPE_CHECKING:
    from collections.abc import Callable

    from edge_agent.records import AgentState, Key
    from edge_agent.training.work import Trained
    from sojourn.node.machine import DidNot, Doing, Effect
    from sojourn.protocol.messages import Visit
    from sojourn.protocol.signed_hop import HopSignature
    from sojourn.protocol.wire import Offer, VisitId, VisitReason

    Objection = Callable[[], tuple[VisitReason, str] | None]
    """Why this device will not work now, if it will not: heat, hours, power ..."""
    Room = Callable[[int], tuple[VisitReason, str] | None]
    """Why training that takes so many bytes of memory does not fit here now, if it does not."""
    Sign = Callable[[Visit, Visited], HopSignature | msgspec.UnsetType]
    """The device's signature of a result, where it has a key of its own."""

DECLINED = "declined"
"""The key under which the last refusal waits to be heard."""
RESTARTS = 1
"""How often a visit is begun again here when its worker died, before it is given up."""
REASONS: tuple[VisitReason, ...] = (
    "hot", "hours", "metered", "power", "busy", "memory", "disk", "data", "runtime", "unsupported", "failed",
)  # fmt: skip
"""The words for what ended a training that an edge server understands."""
_OUTCOMES = {
    DeviceVisitEvent.ACCEPTED: "accepted",
    DeviceVisitEvent.DISCARDED: "discarded",
    DeviceVisitEvent.SUPERSEDED: "dropped",
    DeviceVisitEvent.CROWDED_OUT: "dropped",
    DeviceVisitEvent.UNANSWERED: "dropped",
}
"""How a visit is counted that ended like this; the others were declined, and are counted there."""


def _unsigned(_order: Visit, _answer: Visited) -> msgspec.UnsetType:
    """What a device without a key signs."""
    return msgspec.UNSET


def _unlimited(_needed: int) -> None:
    """Have room for everything."""


@dataclass
class VisitMachine:
    """The visits of a device: at most one that is worked on, and results that wait for an answer."""

    state: AgentState
    offer: Offer
    objection: Objection
    mandates: Mandates = field(default_factory=Mandates)
    room: Room = _unlimited
    sign: Sign = _unsigned
    active: ActiveVisit | None = None
    _outbox: Outbox = field(default_factory=Outbox)
    _declined: Declined | None = None
    """The last visit that was begun and given up."""
    counts: Counter[tuple[str, str]] = field(default_factory=Counter)
    """Visits since the start, by outcome and, of those that were declined, reason: both of a closed set of words."""
    _warned: tuple[str, tuple[str, ...]] = ("", ())
    """The job, and what was odd about the data beside it, that was said last."""

    @property
    def unanswered(self) -> int:
        """How many results and refusals wait to be heard."""
        return len(self._outbox)

    def state_of(self, visit: VisitId) -> DeviceVisitState:
        """Where a visit is, by what is known of it here."""
        held = self.state.held.get(key_of(visit))
        if held and held.order.id == visit:
            return self._state_of_held(held)
        if self._declined and self._declined.visit == visit:
            return DeviceVisitState.DECLINED
        is_over = visit.attempt <= self.state.fence(key_of(visit))
        return DeviceVisitState.OVER if is_over else DeviceVisitState.NEW

    def heard(self, now: float) -> None:
        """What is fetched comes: the visit gets on."""
        if self.active and self.active.lacking:
            self.active.news_at = now

    def lacks(self, digest: bytes) -> bool:
        """Whether the visit under way waits for this blob."""
        return self.active is not None and digest in self.active.lacking

    @property
    def waits(self) -> bool:
        """Whether a visit is fetched and not trained yet."""
        return self.active is not None and self.active.state == DeviceVisitState.WAITING

    def wake_at(self, *, trying: bool) -> float | None:
        """The next resend or sign of life; what waits for the trial of a release goes on when that ends."""
        active, resend = self.active, self._outbox.wake_at()
        if active is None:
            return resend
        patience = active.patience if self.waits and not trying else None
        return soonest(resend, active.next_progress, patience)

    def start(self, now: float) -> list[Effect]:
        """Offer finished results again; begin an interrupted visit again, with the same randomness."""
        effects: list[Effect] = []
        for key, held in list(self.state.held.items()):
            if held.answer:
                effects += self._outbox.ask(key, Address("edge", held.source), held.answer, now)
                continue
            begun = self._begin(key, held, now)
            if objection := unsupported(held.order.task, self.offer):  # the owner has changed the terms since
                effects += self._decline(DeviceVisitEvent.UNSUPPORTED, "unsupported", objection, now)
            elif self.mandates.demanded and not self.mandates.in_force(self.state, held.order.id.job):
                effects += self._decline(
                    DeviceVisitEvent.MANDATE_OVER, "mandate", "not covered: no mandate holds now", now
                )
            else:
                effects += begun
        return effects

    def ordered(self, edge: Address, order: Visit, now: float) -> list[Effect]:
        """A visit was asked for: take it, say why not, or say again what became of it."""
        # A mandate is kept once, not with each visit.
        bare = msgspec.structs.replace(order, mandate=msgspec.UNSET) if order.mandate else order
        if self.state_of(order.id) != DeviceVisitState.NEW:
            return self._again(edge, bare, now)
        effects: list[Effect] = []
        key = key_of(order.id)
        if key in self.state.held:  # an older attempt of the same visit
            effects += self._end(key, DeviceVisitEvent.SUPERSEDED)
        if self.active and supersedes(order.id, self.active.order.id):
            effects += self._end(self.active.key, DeviceVisitEvent.SUPERSEDED)
        if refusal := self._refusal(edge, order):
            DEVICE_VISIT.step(DeviceVisitState.NEW, DeviceVisitEvent.REFUSED)
            self.counts["declined", refusal[0]] += 1
            declined = Say(f"declined {order.id}: {refusal[1]}", about=order.id.about(site=edge.name))
            return [*effects, declined, Send(edge, Declined(order.id, *refusal))]
        while len(self.state.held) >= RESULTS_KEPT:  # results that nobody fetches
            effects += self._end(next(iter(self.state.held)), DeviceVisitEvent.CROWDED_OUT)
        effects += self.mandates.take(self.state, order, now)
        record = VisitTaken(edge.name, bare)
        self.state.apply(record)
        return [*effects, Append(record), *self._begin(key, self.state.held[key], now)]

    def answered(self, edge: Address, visit: VisitId, *, accepted: bool, reason: str = "") -> list[Effect]:
        """The edge server has answered a result, or wants no more of a visit."""
        event = DeviceVisitEvent.ACCEPTED if accepted else DeviceVisitEvent.DISCARDED
        before = self.state_of(visit)
        if before == DeviceVisitState.DECLINED:  # it has heard that
            self._outbox.answered(DECLINED)
        held = self.state.held.get(key_of(visit))
        if held and held.order.id == visit and held.source != edge.name:  # only who asked for it has a say
            return []
        after = DEVICE_VISIT.step(before, event)
        if after == before:
            return []
        text = "its result is accepted" if accepted else f"it is wanted no more: {reason or 'no reason was given'}"
        return [*self._end(key_of(visit), event), Say(text, "step", visit.about(site=edge.name))]

    def pulled(self, digest: bytes, now: float) -> list[Effect]:
        """A blob that the visit under way waited for is here."""
        active = self._active()
        active.lacking.discard(digest)
        if active.lacking:
            return []
        active.step(DeviceVisitEvent.ALL_FETCHED)
        active.patience, active.news_at = now + active.order.lease / 2, now
        waits = self.state.unanswered(active.order.id.job) if remembers(active.order.task) else []
        if not waits:
            return []
        earlier = ", ".join(str(self.state.held[key].order.id) for key in waits)
        text = f"visit {active.order.id} waits until the results of {earlier} are answered"
        return [Say(text, about=active.about), *self._outbox.hasten(now)]

    def pull_failed(self, reason: str, now: float) -> list[Effect]:
        """A blob that the visit under way waited for cannot be had."""
        word: VisitReason = "disk" if reason == "disk" else "gone"
        return self._decline(DeviceVisitEvent.PULL_FAILED, word, "could not get what the visit needs", now)

    def train_if_unblocked(self, now: float) -> list[Effect]:
        """Train the visit that is fetched, as soon as what is remembered for its job is certain."""
        active = self.active
        if active is None or active.state != DeviceVisitState.WAITING:
            return []
        effects: list[Effect] = []
        for key in self.state.unanswered(active.order.id.job) if remembers(active.order.task) else ():
            if now < active.patience:
                return []
            visit = self.state.held[key].order.id
            text = f"no edge server answers the result of {visit}: it is dropped, and what it would have remembered"
            lost = Say(text, "warning", visit.about())
            effects += [*self._end(key, DeviceVisitEvent.UNANSWERED), lost]
        if self.mandates.demanded and not self.mandates.in_force(self.state, active.order.id.job):
            return [*effects, *self.mandate_over(active.order.id.job, now)]
        active.step(DeviceVisitEvent.UNBLOCKED)
        return [*effects, *self._train(now)]

    def doing(self, event: Doing, now: float) -> None:
        """Training gets on."""
        if self.trains(event.key):
            active = self._active()
            active.progress, active.news_at = (event.step, event.steps), now

    def trains(self, key: str) -> bool:
        """Whether this is the name of the training that is under way."""
        return self.active is not None and work_key(self.active.order.id) == key

    def did(self, outcome: Trained, now: float) -> list[Effect]:
        """The visit is trained: keep the result, and offer it until it is answered."""
        active = self._active()
        if objection := self.mandates.too_much(self.state, active.order.id.job, outcome):
            return self._decline(DeviceVisitEvent.NOT_DONE, "mandate", objection, now)
        active.step(DeviceVisitEvent.DONE)
        samples = min(outcome.samples, MOST)
        note = outcome.note[:TEXT] or msgspec.UNSET
        answer = Visited(active.order.id, outcome.vectors, samples, outcome.metrics, outcome.signature, note)
        answer = msgspec.structs.replace(answer, signed=self.sign(active.order, answer))
        record = VisitTrained(active.key, answer, outcome.memory)
        self.state.apply(record)
        self.active = None
        blobs = tuple(ref.digest for ref in [*outcome.vectors.values(), *outcome.memory.values()])
        ask = self._outbox.ask(active.key, active.edge, answer, now)
        said = [
            Say(f"trained {active.order.id}: {_describe(outcome)}", about=active.about),
            Say(f"its result is offered to {active.edge.name}: {_size(outcome)} bytes", "step", active.about),
            *self._warn(active.order.id.job, outcome),
        ]
        return [Append(record, sync=True, blobs=blobs), *said, *ask]

    def _warn(self, job: str, outcome: Trained) -> list[Say]:
        """Say what is odd about the data beside this job; not again for each of its visits."""
        if (job, outcome.warnings) == self._warned:
            return []
        self._warned = job, outcome.warnings
        return [Say(f"job {job}, data: {text}", "warning", About(job)) for text in outcome.warnings]

    def did_not(self, event: DidNot, now: float) -> list[Effect]:
        """Training failed: try once more where the worker itself broke, else give the visit up."""
        active = self._active()
        if event.reason == "failed" and active.restarts < RESTARTS:
            active.restarts += 1
            active.step(DeviceVisitEvent.WORKER_DIED)
            failed = Say(f"the worker failed, once more: {event.detail}", "warning", active.about)
            return [failed, *self._train(now)]
        reason: VisitReason = next((word for word in REASONS if word == event.reason), "failed")
        return self._decline(DeviceVisitEvent.NOT_DONE, reason, event.detail, now)

    def mandate_over(self, job: str, now: float) -> list[Effect]:
        """What was signed for a job holds no longer: nothing of it goes on, and nothing more of it leaves."""
        effects: list[Effect] = []
        for key in [key for key, held in self.state.held.items() if held.order.id.job == job]:
            if self.active and self.active.key == key:
                text = "not covered: the mandate has ended"
                effects += self._decline(DeviceVisitEvent.MANDATE_OVER, "mandate", text, now)
            else:
                self.counts["dropped", ""] += 1
                effects += self._end(key, DeviceVisitEvent.MANDATE_OVER)
        return effects

    def linked(self, now: float) -> list[Effect]:
        """The link is up: offer at once what waits for an answer."""
        return [*self._outbox.hasten(now)]

    def woke(self, now: float) -> list[Effect]:
        """Time has passed: offer again what is due, and give a sign of life."""
        due = self.active is not None and self.active.next_progress is not None and self.active.next_progress <= now
        return [*self._outbox.due(now), *(self._active().sign_of_life(now) if due else ())]

    def _state_of_held(self, held: HeldVisit) -> DeviceVisitState:
        return self.active.state if self.active and self.active.held is held else DeviceVisitState.TRAINED

    def _refusal(self, edge: Address, order: Visit) -> tuple[VisitReason, str] | None:
        """Why a visit is declined: another is under way, it asks for what is unknown here, or the owner objects."""
        if self.active:
            return "busy", f"visiting for {self.active.order.id.job}"
        if objection := unsupported(order.task, self.offer):
            return "unsupported", objection
        refusal = self.mandates.refusal(self.state, edge.name, order) or self.objection()
        return refusal or self.room(memory_needed(order))

    def _again(self, edge: Address, order: Visit, now: float) -> list[Effect]:
        """A visit that is known comes again: answer from memory."""
        state = DEVICE_VISIT.step(self.state_of(order.id), DeviceVisitEvent.ASKED_AGAIN)
        held = self.state.held.get(key_of(order.id))
        if held and held.order == order:
            return [Send(edge, held.answer)] if held.answer else self._active().sign_of_life(now)
        refusal = self._declined if state == DeviceVisitState.DECLINED else None
        return [Send(edge, refusal or Declined(order.id, "stale", "this attempt is over here"))]

    def _begin(self, key: Key, held: HeldVisit, now: float) -> list[Effect]:
        """Fetch what the visit needs."""
        needed = dict.fromkeys([held.order.kit, *held.order.vectors.values()])
        # The sign of life is due at once, unless all is here: then it says that training has begun.
        self.active = ActiveVisit(key, held, now, now, {ref.digest for ref in needed})
        self.active.step(DeviceVisitEvent.TAKEN)
        pulls = [Pull(ref, self.active.edge) for ref in needed]
        return [Say(f"visit {held.order.id} from {held.source}", about=self.active.about), *pulls]

    def _train(self, now: float) -> list[Effect]:
        """Give the visit to the training process, with what the device remembers of the job."""
        active = self._active()
        active.news_at = active.next_progress = now  # a sign of life, unless the result is here as soon
        order = active.order
        memory = (self.state.memory.get(order.id.job) if remembers(order.task) else None) or Memory()
        begins = Say("all is here: it is trained now", "step", active.about)
        return [begins, Do(work_key(order.id), Train(order, memory.vectors, memory.visits))]

    def _decline(self, event: DeviceVisitEvent, reason: VisitReason, detail: str, now: float) -> list[Effect]:
        """Give up a visit that was begun, and say so until the edge server has heard it."""
        active = self._active()
        if self._declined:
            DEVICE_VISIT.step(DeviceVisitState.DECLINED, DeviceVisitEvent.CROWDED_OUT)
        self._declined = Declined(active.order.id, reason, detail[:TEXT])
        self.counts["declined", reason] += 1
        ask = self._outbox.ask(DECLINED, active.edge, self._declined, now)
        declined = Say(f"declined {active.order.id}: {detail}", "warning", active.about)
        return [*self._end(active.key, event), declined, *ask]

    def _end(self, key: Key, event: DeviceVisitEvent) -> list[Effect]:
        """Nothing more is held of a visit."""
        held = self.state.held[key]
        DEVICE_VISIT.step(self._state_of_held(held), event)
        if outcome := _OUTCOMES.get(event):
            self.counts[outcome, ""] += 1
        record = VisitEnded(key, event == DeviceVisitEvent.ACCEPTED)
        self.state.apply(record)
        self._outbox.answered(key)
        effects: list[Effect] = [Append(record, sync=record.accepted)]
        if self.active and self.active.key == key:
            self.active = None
            effects.append(Undo(work_key(held.order.id)))
        return effects

    def _active(self) -> ActiveVisit:
        assert self.active is not None  # noqa: S101  # callers have looked
        return self.active


def _size(outcome: Trained) -> int:
    return sum(ref.size for ref in outcome.vectors.values())


def _describe(outcome: Trained) -> str:
    loss = outcome.metrics.get("loss")
    words = "diverged" if "diverged" in outcome.metrics else f"loss {loss:.4f}" if loss is not None else ""
    return f"{outcome.samples} samples" + (f", {words}" if words else "")
