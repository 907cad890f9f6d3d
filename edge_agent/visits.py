"""Visits on a device: accepts them from edge servers, has them trained, and keeps the results until they are answered.

A part of the agent's machine, without I/O. One visit is active at a time; trained results wait for `Accepted` or
`Discarded`, across restarts. Each transition of a visit is a row of `edge_agent.visit_states`.

An objective may keep vectors from one visit of a job to the next, and only `Accepted` commits them. The result of a
visit with such an objective must not depend on which message was lost, so the visit is fetched but not trained before
the job's earlier results are answered. The device waits half a lease for that, and then drops the earlier result.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable
from dataclasses import dataclass, field

import msgspec

from edge_agent.limits import memory_needed, remembers, unsupported
from edge_agent.mandates import Mandates
from edge_agent.records import (
    RESULTS_KEPT,
    AgentState,
    HeldVisit,
    Key,
    Memory,
    VisitEnded,
    VisitTaken,
    VisitTrained,
    key_of,
    supersedes,
    work_key,
)
from edge_agent.training.messages import Train, Trained
from edge_agent.visit_states import DEVICE_VISIT, ActiveVisit, DeviceVisitEvent, DeviceVisitState
from sojourn.logs import About
from sojourn.node.machine import (
    Append,
    CancelWork,
    Effect,
    Log,
    Pull,
    Send,
    StartWork,
    WorkFailed,
    WorkProgress,
    earliest,
)
from sojourn.node.pending import Outbox
from sojourn.protocol.limits import MAX_COUNT, TEXT
from sojourn.protocol.messages import Declined, Visit, Visited
from sojourn.protocol.topics import Address
from sojourn.protocol.wire import HopSignature, Offer, VisitId, VisitReason

Objection = Callable[[], tuple[VisitReason, str] | None]
"""Returns why this device declines visits now (heat, hours, power ...), or None."""
Room = Callable[[int], tuple[VisitReason, str] | None]
"""Returns why training that needs this many bytes of memory does not fit now, or None."""
Sign = Callable[[Visit, Visited], HopSignature | None]
"""Returns the device's signature of a result, or None if it has no key."""

DECLINED = "declined"
"""The outbox key of the last refusal."""
MAX_RESTARTS = 1
"""How often a visit is started again after its worker died, before it is declined."""
REASONS: tuple[VisitReason, ...] = (
    "hot", "hours", "metered", "power", "busy", "memory", "disk", "data", "runtime", "unsupported", "failed",
)  # fmt: skip
"""The reasons for failed training that an edge server understands."""
_OUTCOMES = {
    DeviceVisitEvent.ACCEPTED: "accepted",
    DeviceVisitEvent.DISCARDED: "discarded",
    DeviceVisitEvent.SUPERSEDED: "dropped",
    DeviceVisitEvent.CROWDED_OUT: "dropped",
    DeviceVisitEvent.UNANSWERED: "dropped",
}
"""The outcome counted for each final event; declined visits are counted by `_decline`."""


@dataclass
class VisitMachine:
    """The visits of a device: at most one that is active, and results that wait for a reply."""

    state: AgentState
    offer: Offer
    objection: Objection
    mandates: Mandates
    room: Room
    sign: Sign
    active: ActiveVisit | None = None
    _outbox: Outbox = field(default_factory=Outbox)
    _declined: Declined | None = None
    """The refusal of the last visit that was started and declined."""
    counts: Counter[tuple[str, str]] = field(default_factory=Counter)
    """Visits since the start, by outcome and, if declined, by reason."""
    _warned: tuple[str, tuple[str, ...]] = ("", ())
    """The job and the data warnings that were logged last."""

    @property
    def unanswered(self) -> int:
        """The number of results and refusals that wait for a reply."""
        return len(self._outbox)

    def state_of(self, visit: VisitId) -> DeviceVisitState:
        """Return the state of a visit on this device."""
        held = self.state.held.get(key_of(visit))
        if held and held.order.id == visit:
            return self._state_of_held(held)
        if self._declined and self._declined.visit == visit:
            return DeviceVisitState.DECLINED
        is_over = visit.attempt <= self.state.fence(key_of(visit))
        return DeviceVisitState.OVER if is_over else DeviceVisitState.NEW

    def on_traffic(self, now: float) -> None:
        """Note that blobs are arriving, which counts as progress of the visit."""
        if self.active and self.active.lacking:
            self.active.news_at = now

    def lacks(self, digest: bytes) -> bool:
        """Whether the active visit waits for this blob."""
        return self.active is not None and digest in self.active.lacking

    @property
    def waits(self) -> bool:
        """Whether a visit is fetched but not trained yet."""
        return self.active is not None and self.active.state == DeviceVisitState.WAITING

    def wake_at(self, *, trying: bool) -> float | None:
        """Return the time of the next resend, progress report or timeout; while `trying` a release, no timeout runs."""
        active, resend = self.active, self._outbox.wake_at()
        if active is None:
            return resend
        deadline = active.deadline if self.waits and not trying else None
        return earliest(resend, active.next_progress, deadline)

    def start(self, now: float) -> list[Effect]:
        """Offer finished results again; restart an interrupted visit with the same seed."""
        effects: list[Effect] = []
        for key, held in list(self.state.held.items()):
            if held.answer:
                effects += self._outbox.ask(key, Address("edge", held.source), held.answer, now)
                continue
            begun = self._begin(key, held, now)
            if objection := unsupported(held.order.task, self.offer):  # the owner has changed the settings
                effects += self._decline(DeviceVisitEvent.UNSUPPORTED, "unsupported", objection, now)
            elif self.mandates.demanded and not self.mandates.in_force(self.state, held.order.id.job):
                effects += self._decline(
                    DeviceVisitEvent.MANDATE_OVER, "mandate", "not covered: no mandate is in force", now
                )
            else:
                effects += begun
        return effects

    def ordered(self, edge: Address, order: Visit, now: float) -> list[Effect]:
        """Handle an order for a visit: take it, decline it, or repeat its outcome."""
        # The mandate is stored once per job, not with each visit.
        bare = msgspec.structs.replace(order, mandate=None) if order.mandate else order
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
            declined = Log(f"declined {order.id}: {refusal[1]}", about=order.id.about(site=edge.name))
            return [*effects, declined, Send(edge, Declined(order.id, *refusal))]
        while len(self.state.held) >= RESULTS_KEPT:  # results that were never answered
            effects += self._end(next(iter(self.state.held)), DeviceVisitEvent.CROWDED_OUT)
        effects += self.mandates.take(self.state, order, now)
        record = VisitTaken(edge.name, bare)
        self.state.apply(record)
        return [*effects, Append(record), *self._begin(key, self.state.held[key], now)]

    def answered(self, edge: Address, visit: VisitId, *, accepted: bool, reason: str = "") -> list[Effect]:
        """Handle the edge server's reply to a result, or its cancellation of a visit."""
        event = DeviceVisitEvent.ACCEPTED if accepted else DeviceVisitEvent.DISCARDED
        before = self.state_of(visit)
        if before == DeviceVisitState.DECLINED:  # it has received the refusal
            self._outbox.answered(DECLINED)
        held = self.state.held.get(key_of(visit))
        if (
            held and held.order.id == visit and held.source != edge.name
        ):  # only the edge server that ordered it may end it
            return []
        after = DEVICE_VISIT.step(before, event)
        if after == before:
            return []
        text = "result accepted" if accepted else f"visit discarded: {reason or 'no reason given'}"
        return [*self._end(key_of(visit), event), Log(text, "step", visit.about(site=edge.name))]

    def pulled(self, digest: bytes, now: float) -> list[Effect]:
        """Handle the arrival of a blob that the active visit waits for."""
        active = self._active()
        active.lacking.discard(digest)
        if active.lacking:
            return []
        active.step(DeviceVisitEvent.ALL_FETCHED)
        active.deadline, active.news_at = now + active.order.lease / 2, now
        waits = self.state.unanswered(active.order.id.job) if remembers(active.order.task) else []
        if not waits:
            return []
        earlier = ", ".join(str(self.state.held[key].order.id) for key in waits)
        text = f"visit {active.order.id} waits for replies to the results of {earlier}"
        return [Log(text, about=active.about), *self._outbox.resend_now(now)]

    def pull_failed(self, reason: VisitReason, now: float) -> list[Effect]:
        """Decline the active visit: one of its blobs cannot be fetched."""
        return self._decline(DeviceVisitEvent.PULL_FAILED, reason, "could not fetch the visit's inputs", now)

    def train_if_unblocked(self, now: float) -> list[Effect]:
        """Train the fetched visit as soon as the memory of its job's objective is final."""
        if not self.waits:
            return []
        active = self._active()
        effects: list[Effect] = []
        for key in self.state.unanswered(active.order.id.job) if remembers(active.order.task) else ():
            if now < active.deadline:
                return []
            visit = self.state.held[key].order.id
            text = f"no edge server replied to the result of {visit}: the result and its memory are dropped"
            lost = Log(text, "warning", visit.about())
            effects += [*self._end(key, DeviceVisitEvent.UNANSWERED), lost]
        if self.mandates.demanded and not self.mandates.in_force(self.state, active.order.id.job):
            return [*effects, *self.on_mandate_ended(active.order.id.job, now)]
        active.step(DeviceVisitEvent.UNBLOCKED)
        return [*effects, *self._train(now)]

    def on_progress(self, event: WorkProgress, now: float) -> None:
        """Record the progress of training."""
        if self.trains(event.key):
            active = self._active()
            active.progress, active.news_at = (event.step, event.steps), now

    def trains(self, key: str) -> bool:
        """Whether this is the work key of the active visit."""
        return self.active is not None and work_key(self.active.order.id) == key

    def on_trained(self, outcome: Trained, now: float) -> list[Effect]:
        """Store the result of the trained visit, and offer it until the edge server replies."""
        active = self._active()
        if objection := self.mandates.result_objection(self.state, active.order.id.job, outcome):
            return self._decline(DeviceVisitEvent.NOT_DONE, "mandate", objection, now)
        active.step(DeviceVisitEvent.DONE)
        samples = min(outcome.samples, MAX_COUNT)
        note = outcome.note[:TEXT]
        answer = Visited(active.order.id, outcome.vectors, samples, outcome.metrics, outcome.signature, note)
        answer = msgspec.structs.replace(answer, signed=self.sign(active.order, answer))
        record = VisitTrained(active.key, answer, outcome.memory)
        self.state.apply(record)
        self.active = None
        blobs = tuple(ref.digest for ref in [*outcome.vectors.values(), *outcome.memory.values()])
        ask = self._outbox.ask(active.key, active.edge, answer, now)
        logs = [
            Log(f"trained {active.order.id}: {_describe(outcome)}", about=active.about),
            Log(f"result offered to {active.edge.name}: {_size(outcome)} bytes", "step", active.about),
            *self._warn(active.order.id.job, outcome),
        ]
        return [Append(record, sync=True, blobs=blobs), *logs, *ask]

    def _warn(self, job: str, outcome: Trained) -> list[Log]:
        """Log the data warnings of a job once, not for each of its visits."""
        if (job, outcome.warnings) == self._warned:
            return []
        self._warned = job, outcome.warnings
        return [Log(f"job {job}, data: {text}", "warning", About(job)) for text in outcome.warnings]

    def on_work_failed(self, event: WorkFailed, now: float) -> list[Effect]:
        """Handle failed training: retry once if the worker died, otherwise decline the visit."""
        active = self._active()
        if event.reason == "failed" and active.restarts < MAX_RESTARTS:
            active.restarts += 1
            active.step(DeviceVisitEvent.WORKER_DIED)
            failed = Log(f"worker failed; retrying: {event.detail}", "warning", active.about)
            return [failed, *self._train(now)]
        reason = event.reason if event.reason in REASONS else "failed"
        return self._decline(DeviceVisitEvent.NOT_DONE, reason, event.detail, now)

    def on_mandate_ended(self, job: str, now: float) -> list[Effect]:
        """End the visits of a job whose mandate has ended: stop training, and drop the results."""
        effects: list[Effect] = []
        for key in [key for key, held in self.state.held.items() if held.order.id.job == job]:
            if self.active and self.active.key == key:
                text = "not covered: the mandate has ended"
                effects += self._decline(DeviceVisitEvent.MANDATE_OVER, "mandate", text, now)
            else:
                self.counts["dropped", ""] += 1
                effects += self._end(key, DeviceVisitEvent.MANDATE_OVER)
        return effects

    def on_link_up(self, now: float) -> list[Effect]:
        """Resend immediately everything that waits for a reply."""
        return [*self._outbox.resend_now(now)]

    def on_timer(self, now: float) -> list[Effect]:
        """Send what is due: resends and the progress report."""
        due = self.active is not None and self.active.next_progress is not None and self.active.next_progress <= now
        return [*self._outbox.due(now), *(self._active().report_progress(now) if due else ())]

    def _state_of_held(self, held: HeldVisit) -> DeviceVisitState:
        return self.active.state if self.active and self.active.held is held else DeviceVisitState.TRAINED

    def _refusal(self, edge: Address, order: Visit) -> tuple[VisitReason, str] | None:
        """Return why a visit is declined: another one is active, it is not supported, or the owner's limits object."""
        if self.active:
            return "busy", f"training a visit of {self.active.order.id.job}"
        if objection := unsupported(order.task, self.offer):
            return "unsupported", objection
        refusal = self.mandates.refusal(self.state, edge.name, order) or self.objection()
        return refusal or self.room(memory_needed(order))

    def _again(self, edge: Address, order: Visit, now: float) -> list[Effect]:
        """Repeat the outcome of a known visit, or its progress."""
        state = DEVICE_VISIT.step(self.state_of(order.id), DeviceVisitEvent.ASKED_AGAIN)
        held = self.state.held.get(key_of(order.id))
        if held and held.order == order:
            return [Send(edge, held.answer)] if held.answer else self._active().report_progress(now)
        refusal = self._declined if state == DeviceVisitState.DECLINED else None
        return [Send(edge, refusal or Declined(order.id, "stale", "this attempt has ended on this device"))]

    def _begin(self, key: Key, held: HeldVisit, now: float) -> list[Effect]:
        """Start a visit: fetch its kit and vectors."""
        needed = dict.fromkeys([held.order.kit, *held.order.vectors.values()])
        # The first progress report is due immediately; if no blob is missing, it reports that training has started.
        self.active = ActiveVisit(key, held, now, now, {ref.digest for ref in needed})
        self.active.step(DeviceVisitEvent.TAKEN)
        pulls = [Pull(ref, self.active.edge) for ref in needed]
        return [Log(f"visit {held.order.id} from {held.source}", about=self.active.about), *pulls]

    def _train(self, now: float) -> list[Effect]:
        """Pass the visit to the training process, with the memory of the job's objective."""
        active = self._active()
        active.news_at = active.next_progress = now  # report progress, unless training is done by then
        order = active.order
        memory = (self.state.memory.get(order.id.job) if remembers(order.task) else None) or Memory()
        begins = Log("inputs fetched; training started", "step", active.about)
        return [begins, StartWork(work_key(order.id), Train(order, memory.vectors, memory.visits))]

    def _decline(self, event: DeviceVisitEvent, reason: VisitReason, detail: str, now: float) -> list[Effect]:
        """Decline the active visit, and send the refusal until the edge server replies."""
        active = self._active()
        if self._declined:
            DEVICE_VISIT.step(DeviceVisitState.DECLINED, DeviceVisitEvent.CROWDED_OUT)
        self._declined = Declined(active.order.id, reason, detail[:TEXT])
        self.counts["declined", reason] += 1
        ask = self._outbox.ask(DECLINED, active.edge, self._declined, now)
        declined = Log(f"declined {active.order.id}: {detail}", "warning", active.about)
        return [*self._end(active.key, event), declined, *ask]

    def _end(self, key: Key, event: DeviceVisitEvent) -> list[Effect]:
        """End a visit, and drop everything that is stored for it."""
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
            effects.append(CancelWork(work_key(held.order.id)))
        return effects

    def _active(self) -> ActiveVisit:
        assert self.active is not None  # noqa: S101  # callers have checked
        return self.active


def _size(outcome: Trained) -> int:
    return sum(ref.size for ref in outcome.vectors.values())


def _describe(outcome: Trained) -> str:
    loss = outcome.metrics.get("loss")
    words = "diverged" if "diverged" in outcome.metrics else f"loss {loss:.4f}" if loss is not None else ""
    return f"{outcome.samples} samples" + (f", {words}" if words else "")
