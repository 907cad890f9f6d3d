"""The edge server: leads a model along the devices of a tour, one visit after another.

A machine without I/O (`sojourn.machine`): an agent to the coordinator, a coordinator to its devices. A visit that is
lost, declined or stopped by the gate costs one hop, never the tour. What is durable changes only in `apply`.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import msgspec

from hierarchy.edge_records import (
    EdgeState,
    Key,
    Record,
    TourDropped,
    TourEnded,
    TourTaken,
    VisitIssued,
    VisitKept,
    VisitMissed,
    key_of,
)  # fmt: skip
from hierarchy.gate import Check, Failed, Passed, Wrap, Wrapped, unfit
from hierarchy.leg import Leg
from hierarchy.roster import SiteRoster
from sojourn.blobs import ref_of
from sojourn.envelope import pack_blob
from sojourn.machine import (
    Append,
    Did,
    DidNot,
    Do,
    Keep,
    Linked,
    Present,
    Pull,
    Pulled,
    PullFailed,
    Received,
    Say,
    Send,
    Undo,
    Woke,
)  # fmt: skip
from sojourn.messages import (
    Accepted,
    Cancel,
    Declined,
    Discarded,
    Prepare,
    Progress,
    RosterAsk,
    RosterSeen,
    Tour,
    TourAccepted,
    TourCancel,
    TourDiscarded,
    Toured,
    TourProgress,
    Visit,
    Visited,
)
from sojourn.outbox import Outbox
from sojourn.randomness import derive
from sojourn.topics import Address
from sojourn.wire import VisitReport, VisitStatus

if TYPE_CHECKING:
    from collections.abc import Set as AbstractSet

    from sojourn.machine import Effect, Event
    from sojourn.messages import Message
    from sojourn.topics import Role
    from sojourn.wire import Offer, Ref, VisitId

RETRY_PULL = 5.0
STALE = 3
"""How often a device may say that an attempt is stale before it costs the hop."""


class EdgeServer:
    """The state machine of a site."""

    def __init__(self, name: str, cloud: str) -> None:
        self.address = Address("edge", name)
        self.offer: Offer | None = None
        self.watches: tuple[Role, ...] = ("device",)
        self.record_form: Any = Record
        self.state = EdgeState()
        self.roster = SiteRoster()
        self._cloud = Address("cloud", cloud)
        self._outbox = Outbox()
        self._legs: dict[Key, Leg] = {}
        self._at: dict[str, Key] = {}
        """Which tour is at which device."""

    def role_of(self, sender: str) -> Role | None:
        """The coordinator is known by name; everybody else who may write here is a device."""
        return "cloud" if sender == self._cloud.name else "device"

    def restore(self, snapshot: bytes) -> None:
        """Take the durable state from a snapshot."""
        self.state = msgspec.msgpack.decode(snapshot, type=EdgeState)

    def snapshot(self) -> bytes:
        """The durable state."""
        return msgspec.msgpack.encode(self.state)

    def apply(self, record: Record) -> None:
        """Change the durable state by one record."""
        self.state.apply(record)

    def live(self) -> AbstractSet[bytes]:
        """All that a tour, a result on its way, or the roster refers to."""
        live = {self.roster.blob} if self.roster.blob else set()
        for key, tour in self.state.tours.items():
            live |= tour.live() | self._legs[key].live()
        return live

    def heard(self, peer: Address, traffic: int, now: float, *, spoke: bool) -> None:
        """Count bytes towards the tour that is at the device; speaking renews its lease."""
        if peer.role == "device" and (key := self._at.get(peer.name)):
            leg = self._legs[key]
            leg.traffic += traffic
            if spoke:
                leg.renew(now)

    def wake_at(self) -> float | None:
        """The next resend, lease, heartbeat or roster."""
        times = [self._outbox.wake_at(), self.roster.tell_at]
        for leg in self._legs.values():
            times += [leg.lease_ends, leg.heartbeat_at, leg.pull_again_at]
        return min((when for when in times if when is not None), default=None)

    def start(self, now: float) -> list[Effect]:
        """Take up every tour where its checkpoint is."""
        self.roster.tell_soon(now)
        effects: list[Effect] = []
        for key, tour in self.state.tours.items():
            self._legs[key] = Leg(tour.tour.policy)
            if tour.visiting:  # tours that wait for a device find it taken
                self._at[tour.visiting] = key
        for key, tour in self.state.tours.items():
            if tour.toured:
                ask = self._outbox.ask(("toured", key), self._cloud, tour.toured, now)
                effects += [*ask, *self._report(key, now)]
            else:
                effects += self._gather(key, now)
        return effects

    def handle(self, event: Event, now: float) -> list[Effect]:
        """React."""
        match event:
            case Received():
                return self._receive(event.sender, event.message, now)
            case Present():
                return self._present(event, now)
            case Pulled():
                return self._pulled(event.digest, now)
            case PullFailed():
                return self._pull_failed(event, now)
            case Did():
                return self._did(event, now)
            case DidNot():
                return self._did_not(event, now)
            case Linked():
                return [*self._outbox.hasten(now)]
            case Woke():
                return self._woke(now)
            case _:
                return []

    def _receive(self, sender: Address, message: Message, now: float) -> list[Effect]:
        match message:
            case Tour():
                return self._tour(message, now)
            case TourCancel() | TourAccepted() | TourDiscarded():
                return self._settle(message, now)
            case RosterAsk():
                self.roster.tell_soon(now)
            case RosterSeen() if message.revision == self.roster.revision:
                self._outbox.settle("roster")
            case Visited():
                return self._visited(sender, message, now)
            case Progress():
                return self._progress(sender, message, now)
            case Declined():
                heard: list[Effect] = [Send(sender, Cancel(message.visit))]
                key = self._current(sender, message.visit)
                return [*heard, *(self._declined(key, message, now) if key else [])]
        return []

    def _present(self, event: Present, now: float) -> list[Effect]:
        born = self.roster.present(event, now)
        key = self._at.get(event.node.name)
        if not born or key is None or self._legs[key].result is not None:
            return []
        return self._ask_visit(key, now)

    # --- taking and ending tours

    def _tour(self, message: Tour, now: float) -> list[Effect]:
        key = key_of(message.tour)
        if "model" not in message.vectors:
            return [Say(f"tour {message.tour} has no model to lead along", "warning")]
        if held := self.state.tours.get(key):
            if message.tour.attempt <= held.tour.tour.attempt:
                return self._report(key, now) if message.tour == held.tour.tour else []
        elif message.tour.attempt <= self.state.fences.get(key, -1):
            return []
        effects = self._drop(key, now) if held else []
        record = TourTaken(message)
        self.apply(record)
        self._legs[key] = Leg(message.policy)
        said = f"tour {message.tour}: {' > '.join(message.hops[:12])}{' ...' if len(message.hops) > 12 else ''}"
        return [*effects, Append(record), Say(said), *self._report(key, now), *self._gather(key, now)]

    def _gather(self, key: Key, now: float) -> list[Effect]:
        """Get what the tour's devices will need, then set out."""
        tour, leg = self.state.tours[key], self._legs[key]
        leg.heartbeat_at = now
        needed = dict.fromkeys([tour.tour.kit, *tour.tour.vectors.values()])
        leg.lacking = {ref.digest for ref in needed}
        leg.pull_again_at = None
        return [Pull(ref, self._cloud) for ref in needed]

    def _settle(self, message: TourCancel | TourAccepted | TourDiscarded, now: float) -> list[Effect]:
        key = key_of(message.tour)
        tour = self.state.tours.get(key)
        return self._drop(key, now) if tour and tour.tour.tour.attempt <= message.tour.attempt else []

    def _drop(self, key: Key, now: float) -> list[Effect]:
        tour, effects = self.state.tours[key], self._undo(key)
        if tour.visiting:
            effects.append(Send(Address("device", tour.visiting), Cancel(tour.visit)))
        record = TourDropped(key)
        self.apply(record)
        del self._legs[key]
        self._outbox.settle(("toured", key))
        return [*effects, Append(record), *self._leave(key, tour.visiting, now)]

    # --- leading the model along

    def _go_on(self, key: Key, now: float) -> list[Effect]:
        """Hand the model to the device of the present hop, or end the tour."""
        tour = self.state.tours[key]
        if tour.finished:
            return self._wrap_up(key, now)
        device = tour.route[tour.hop]
        if self._at.get(device, key) != key:  # at work for another tour of ours: wait, it would decline
            self._legs[key].waits_for = device
            return []
        effects: list[Effect] = []
        if tour.visiting is None:
            record = VisitIssued(key, device)
            self.apply(record)
            effects.append(Append(record))
        self._at[device] = key
        self._legs[key].set_out(now)
        return [*effects, *self._ask_visit(key, now), *self._report(key, now)]

    def _ask_visit(self, key: Key, now: float) -> list[Effect]:
        tour = self.state.tours[key]
        it, device = tour.tour, Address("device", str(tour.visiting))
        repeat = tour.route[: tour.hop].count(device.name)
        seed = derive(it.seed, device.name, repeat)
        vectors = dict(tour.handout)
        vectors.pop("gate", None)
        visit = Visit(tour.visit, it.kit, vectors, it.task, seed, it.policy.lease)
        return [*self._outbox.ask(("visit", key), device, visit, now)]

    def _current(self, sender: Address, visit: VisitId) -> Key | None:
        """The tour whose present visit this is, if it is one."""
        key = key_of(visit)
        tour = self.state.tours.get(key)
        return key if tour and tour.visiting == sender.name and tour.visit == visit and not tour.toured else None

    def _progress(self, sender: Address, message: Progress, now: float) -> list[Effect]:
        key = self._current(sender, message.visit)
        if key is None:
            return [Send(sender, Cancel(message.visit))]
        tour, leg = self.state.tours[key], self._legs[key]
        self._outbox.settle(("visit", key))
        leg.steps = (message.step, message.steps)
        effects: list[Effect] = []
        if message.stage == "training" and not leg.prepared:
            leg.prepared = True
            following = tour.route[tour.hop + 1 : tour.hop + 2]
            if following and following != [tour.visiting] and following[0] not in self._at:
                prepare = Prepare(message.visit.job, tour.tour.kit, tour.tour.task)
                effects.append(Send(Address("device", following[0]), prepare))
            effects += self._report(key, now)
        return effects

    def _visited(self, sender: Address, message: Visited, now: float) -> list[Effect]:
        key = self._current(sender, message.visit)
        if key is None:
            if self.state.was_accepted(message.visit, sender.name):
                return [Send(sender, Accepted(message.visit))]
            return [Send(sender, Discarded(message.visit, "this attempt is no longer wanted"))]
        self._outbox.settle(("visit", key))
        leg = self._legs[key]
        if leg.result is not None:
            return []
        leg.result = message
        it = self.state.tours[key].tour
        if reason := unfit(message.vectors, it.task, it.vectors["model"]):
            return self._lose(key, "refused", reason, now)
        leg.lacking = {ref.digest for ref in message.vectors.values()}
        if not leg.lacking:
            return self._check(key)
        return [Pull(ref, sender) for ref in message.vectors.values()]

    def _pulled(self, digest: bytes, now: float) -> list[Effect]:
        effects: list[Effect] = []
        for key, leg in list(self._legs.items()):
            if digest not in leg.lacking:
                continue
            leg.lacking.discard(digest)
            if not leg.lacking:
                leg.pull_again_at = None
                effects += self._check(key) if leg.result else self._go_on(key, now)
        return effects

    def _pull_failed(self, event: PullFailed, now: float) -> list[Effect]:
        effects: list[Effect] = []
        for key, leg in list(self._legs.items()):
            if event.digest not in leg.lacking:
                continue
            if leg.result:
                effects += self._lose(key, "lost", f"the result could not be fetched ({event.reason})", now)
            else:
                leg.pull_again_at = now + RETRY_PULL
                said = f"tour {self.state.tours[key].tour.tour}: what it needs could not be fetched ({event.reason})"
                effects.append(Say(said, "warning"))
        return effects

    def _check(self, key: Key) -> list[Effect]:
        tour, leg = self.state.tours[key], self._legs[key]
        assert leg.result is not None  # noqa: S101  # callers have looked
        leg.lease_ends = None
        norms = (*tour.tour.norms, *(r.norm for r in tour.reports if r.status == "done" and r.norm > 0))
        it = tour.tour
        exemplars = it.vectors.get("gate")
        return self._do(key, Check(it.kit, leg.result.vectors, tour.vectors, exemplars, it.gate, norms, it.task))

    def _do(self, key: Key, work: Check | Wrap) -> list[Effect]:
        """Have work done, under a key of its own: what comes of it after it was undone is nobody's."""
        tour, leg = self.state.tours[key], self._legs[key]
        leg.working = f"{key}/{tour.tour.tour.attempt}.{tour.attempts} {type(work).__name__}"
        return [Do(leg.working, work)]

    def _undo(self, key: Key) -> list[Effect]:
        leg = self._legs[key]
        undone, leg.working = leg.working, None
        return [Undo(undone)] if undone else []

    def _worked(self, event: Did | DidNot) -> Key | None:
        """The tour whose work has ended."""
        key = next((key for key, leg in self._legs.items() if leg.working == event.key), None)
        if key is not None:
            self._legs[key].working = None
        return key

    def _did_not(self, event: DidNot, now: float) -> list[Effect]:
        key = self._worked(event)
        if key is None:
            return []
        if self._legs[key].result:
            return self._lose(key, "refused", event.detail, now)
        # It could not be made smaller for its way up: it goes as it is.
        said = Say(f"tour {self.state.tours[key].tour.tour}: {event.detail}", "warning")
        return [said, *self._end(key, self._results(key), now)]

    def _did(self, event: Did, now: float) -> list[Effect]:
        key = self._worked(event)
        if key is None:
            return []
        match event.outcome:
            case Passed():
                return self._keep(key, event.outcome, now)
            case Failed():
                return self._lose(key, "refused", event.outcome.reason, now)
            case Wrapped():
                return self._end(key, event.outcome.vectors, now)
            case _:
                return []

    def _keep(self, key: Key, passed: Passed, now: float) -> list[Effect]:
        """The result is the tour's checkpoint: journal it, thank the device, go on."""
        tour, leg = self.state.tours[key], self._legs[key]
        result, device = leg.result, Address("device", str(tour.visiting))
        assert result is not None  # noqa: S101  # it was checked a moment ago
        report = VisitReport(
            device.name, tour.hop, "done", "", result.samples, passed.norm, result.metrics, result.signature,
            now - leg.began,
        )  # fmt: skip
        handout = passed.handout if tour.tour.task.kind == "train" else {}
        record = VisitKept(key, passed.vectors, handout, report)
        self.apply(record)
        blobs = tuple(ref.digest for ref in passed.vectors.values())
        effects: list[Effect] = [Append(record, sync=True, blobs=blobs), Send(device, Accepted(result.visit))]
        return [*effects, *self._leave(key, device.name, now)]

    def _declined(self, key: Key, message: Declined, now: float) -> list[Effect]:
        tour = self.state.tours[key]
        # The device has seen later attempts than we remember: that is not its fault, and the next number is new to it.
        behind = message.reason == "stale" and tour.tries < STALE
        then = "retry" if behind else self._instead(key)
        return self._lose(key, "declined", f"{message.reason}: {message.detail}", now, then)

    def _instead(self, key: Key) -> str:
        """What the tour's policy tries when a visit came to nothing: the same device, a spare, or the next hop."""
        tour = self.state.tours[key]
        policy = tour.tour.policy
        if policy.on_lost_visit == "retry" and tour.tries < policy.retries:
            return "retry"
        return "swap" if policy.on_lost_visit == "swap" and tour.spares else "skip"

    def _lose(
        self, key: Key, status: VisitStatus, reason: str, now: float, then: str | None = None
    ) -> list[Effect]:
        """A visit came to nothing."""
        tour, leg = self.state.tours[key], self._legs[key]
        device, then = tour.visiting or tour.route[tour.hop], then or self._instead(key)
        report = VisitReport(device, tour.hop, status, reason[:2000], 0, 0.0, {}, None, now - leg.began)
        effects = self._undo(key)
        if tour.visiting and status != "declined":
            done = Discarded(tour.visit, reason[:2000]) if leg.result else Cancel(tour.visit)
            effects.append(Send(Address("device", device), done))
        record = VisitMissed(key, report, then)
        self.apply(record)
        said = Say(f"tour {tour.tour.tour} hop {report.hop}: {device} {status} ({reason}); {then}", "warning")
        return [Append(record), said, *effects, *self._leave(key, device, now)]

    def _leave(self, key: Key, device: str | None, now: float) -> list[Effect]:
        """The model has left a device: this tour goes on, unless it was dropped, and so does one that waited."""
        self._outbox.settle(("visit", key))
        if device and self._at.get(device) == key:
            del self._at[device]
        effects: list[Effect] = []
        if leg := self._legs.get(key):
            leg.leave()
            effects += self._go_on(key, now)
        for waiting in [other for other, leg in self._legs.items() if device and leg.waits_for == device]:
            effects += self._go_on(waiting, now)
        return effects

    # --- the end of a tour

    def _wrap_up(self, key: Key, now: float) -> list[Effect]:
        it, vectors = self.state.tours[key].tour, self._results(key)
        if not vectors or it.task.encoding == "float32":
            return self._end(key, vectors, now)
        return self._do(key, Wrap(it.kit, it.vectors["model"], vectors, it.task))

    def _results(self, key: Key) -> dict[str, Ref]:
        """What the tour has made; nothing when no visit was done, or only signatures were made."""
        tour = self.state.tours[key]
        start = tour.tour.vectors
        done = any(report.status == "done" for report in tour.reports)
        if not done or tour.vectors.get("model") == start.get("model"):
            return {}
        return {name: ref for name, ref in tour.vectors.items() if name not in start or name == "model"}

    def _end(self, key: Key, vectors: dict[str, Ref], now: float) -> list[Effect]:
        tour = self.state.tours[key]
        data = pack_blob(tour.reports)
        reports = ref_of(data)
        toured = Toured(tour.tour.tour, vectors, tour.samples, reports, self._legs[key].traffic)
        record = TourEnded(key, toured)
        self.apply(record)
        blobs = (reports.digest, *(ref.digest for ref in vectors.values()))
        effects: list[Effect] = [Keep(reports.digest, data), Append(record, sync=True, blobs=blobs)]
        ask = self._outbox.ask(("toured", key), self._cloud, toured, now)
        done = sum(report.status == "done" for report in tour.reports)
        return [*effects, *ask, Say(f"tour {tour.tour.tour} ended: {done} of {len(tour.route)} visits done")]

    def _woke(self, now: float) -> list[Effect]:
        effects: list[Effect] = [*self._outbox.due(now), *self.roster.tell(self._cloud, self._outbox, now)]
        for key, leg in list(self._legs.items()):
            if leg.lease_ends is not None and leg.lease_ends <= now:
                effects += self._lose(key, "lost", f"no sign of life for {leg.lease:g} s", now)
            if leg.pull_again_at is not None and leg.pull_again_at <= now:
                effects += self._gather(key, now)
            if leg.heartbeat_at is not None and leg.heartbeat_at <= now:
                effects += self._report(key, now)
        return effects

    def _report(self, key: Key, now: float) -> list[Effect]:
        """A sign of life to the coordinator."""
        tour, leg = self.state.tours[key], self._legs[key]
        leg.heartbeat_at = now + leg.heartbeat
        lost = sum(report.status != "done" for report in tour.reports)
        progress = TourProgress(
            tour.tour.tour, tour.hop, len(tour.route), tour.visiting, *leg.steps, lost, leg.traffic
        )  # fmt: skip
        return [Send(self._cloud, progress)]
