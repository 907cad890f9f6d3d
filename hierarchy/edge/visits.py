"""Visits: the model is handed to a device, its result is fetched, checked, and kept or missed."""

from __future__ import annotations

from typing import TYPE_CHECKING

from hierarchy.edge.gate import Check, unfit
from hierarchy.edge.records import VisitIssued, VisitKept, VisitMissed, key_of
from hierarchy.edge.running import Stay
from sojourn.node.machine import Pull, Say, Send
from sojourn.protocol.messages import Accepted, Cancel, Discarded, Prepare, Visit
from sojourn.protocol.topics import Address
from sojourn.protocol.wire import VisitReport
from sojourn.randomness import derive

if TYPE_CHECKING:
    from collections.abc import Callable

    from hierarchy.edge.gate import Passed
    from hierarchy.edge.records import Key
    from hierarchy.edge.site import Site, Where
    from sojourn.node.machine import Effect
    from sojourn.protocol.messages import Progress, Visited
    from sojourn.protocol.wire import VisitId, VisitStatus

    GoOn = Callable[[Key, float, int], list[Effect]]
    Tell = Callable[[Key, float], list[Effect]]


class Visits:
    """The visits of all tours. `go_on` is told of every visit that is over, `tell` gives a sign of life of a tour."""

    def __init__(self, site: Site, go_on: GoOn, tell: Tell) -> None:
        self._site = site
        self._go_on = go_on
        self._tell = tell

    def hand(self, key: Key, hop: int, now: float) -> list[Effect]:
        """Hand the model to the device of a hop that is due and was not begun since we started."""
        tour, leg = self._site.tour(key)
        if not tour.is_due(hop) or hop in leg.stays:
            return []
        device = tour.route[tour.place(hop)]
        if self._site.at.get(device, (key, hop)) != (key, hop):  # at work for another visit: it would decline
            self._site.waiting.setdefault(device, {})[key, hop] = None
            return []
        effects: list[Effect] = []
        stop = tour.stops.get(hop)
        if stop is None or stop.device is None:
            effects.append(self._site.write(VisitIssued(key, device, hop - tour.hop)))
        self._site.at[device] = key, hop
        leg.stays[hop] = Stay(tour.order.policy.lease, now)
        self._site.alarm.set((key, hop), now + tour.order.policy.lease)
        return [*effects, *self._ask(key, hop, now)]

    def _ask(self, key: Key, hop: int, now: float) -> list[Effect]:
        tour, leg = self._site.tour(key)
        it, device = tour.order, Address("device", str(tour.stops[hop].device))
        seed = derive(it.seed, device.name, tour.repeat(hop))
        vectors = {name: ref for name, ref in tour.handout.items() if name != "gate"}
        _, earlier = leg.before(tour)
        visit = Visit(tour.visit(hop), it.kit, vectors, it.task, seed, it.policy.lease, earlier)
        return [*self._site.outbox.ask(("visit", key, hop), device, visit, now)]

    def born(self, device: str, now: float) -> list[Effect]:
        """A device is here again: it may have forgotten that it was asked."""
        where = self._site.at.get(device)
        if where is None or (stay := self._stay(where)) is None or stay.result is not None:
            return []
        return self._ask(*where, now)

    def heard(self, device: str, traffic: int, now: float, *, spoke: bool) -> None:
        """Count bytes towards the tour that is at the device; speaking renews the lease."""
        if where := self._site.at.get(device):
            self._site.legs[where[0]].traffic += traffic
            if spoke and (stay := self._stay(where)):
                stay.renew(now)

    def current(self, sender: Address, visit: VisitId) -> Where | None:
        """The visit that is under way with this device and number, if there is one."""
        key = key_of(visit)
        tour = self._site.state.tours.get(key)
        stop = tour.stops.get(visit.hop) if tour and not tour.toured else None
        if tour is None or stop is None or stop.device != sender.name or tour.visit(visit.hop) != visit:
            return None
        return (key, visit.hop) if visit.hop in self._site.legs[key].stays else None

    def unready(self, visit: VisitId) -> bool:
        """Whether we have just started and lack what an answer is judged by: it is asked for again soon."""
        leg = self._site.legs.get(key_of(visit))
        return leg is not None and leg.gathering

    def progress(self, sender: Address, message: Progress, now: float) -> list[Effect]:
        """A device gave a sign of life."""
        where = self.current(sender, message.visit)
        if where is None:
            # One that comes late must not cancel a result that counts: a cancel may overtake what was accepted.
            counted = self._site.state.was_accepted(message.visit, sender.name)
            return [Send(sender, Accepted(message.visit) if counted else Cancel(message.visit))]
        key, hop = where
        tour, leg = self._site.tour(key)
        stay = leg.stays[hop]
        self._site.outbox.answered(("visit", key, hop))
        stay.steps, leg.latest = (message.step, message.steps), hop
        if message.stage != "training" or stay.prepared:
            return []
        stay.prepared = True
        effects: list[Effect] = []
        following = [] if tour.order.merges else tour.route[hop + 1 : hop + 2]
        if following and following != [sender.name] and following[0] not in self._site.at:
            prepare = Prepare(message.visit.job, tour.order.kit, tour.order.task)
            effects.append(Send(Address("device", following[0]), prepare))
        return [*effects, *self._tell(key, now)]

    def visited(self, sender: Address, message: Visited, now: float) -> list[Effect]:
        """A device has answered: fetch its result, if it can be one."""
        where = self.current(sender, message.visit)
        if where is None:
            if self._site.state.was_accepted(message.visit, sender.name):
                return [Send(sender, Accepted(message.visit))]
            return [Send(sender, Discarded(message.visit, "this attempt is no longer wanted"))]
        key, hop = where
        self._site.outbox.answered(("visit", key, hop))
        tour, leg = self._site.tour(key)
        stay, it = leg.stays[hop], tour.order
        if stay.result is not None:
            return []
        stay.result = message
        if reason := unfit(message.vectors, it.task, it.vectors["model"]):
            return self.lose(where, "refused", reason, now)
        needed = {ref.digest: ref for ref in message.vectors.values()}
        if not needed:
            return self.check(where)
        self._site.fetches.wait(where, needed)
        return [Pull(ref, sender) for ref in needed.values()]

    def check(self, where: Where) -> list[Effect]:
        """The result is here: have it checked."""
        key, hop = where
        tour, leg = self._site.tour(key)
        stay, it = leg.stays[hop], tour.order
        assert stay.result is not None  # noqa: S101  # it was fetched a moment ago
        stay.lease_ends = None
        norms, _ = leg.before(tour)
        exemplars = it.vectors.get("gate")
        work = Check(it.kit, stay.result.vectors, tour.vectors, exemplars, it.gate, norms, it.task, stay.result.metrics)
        return self._site.do(where, tour.stops[hop].attempt, work)

    def keep(self, where: Where, passed: Passed, now: float) -> list[Effect]:
        """The result is good: journal it, thank the device, go on."""
        key, hop = where
        tour, leg = self._site.tour(key)
        stay, device = leg.stays[hop], Address("device", str(tour.stops[hop].device))
        result = stay.result
        assert result is not None  # noqa: S101  # it was checked a moment ago
        report = VisitReport(
            device.name, hop, "done", "", result.samples, passed.norm, result.metrics, result.signature,
            now - stay.began,
        )  # fmt: skip
        handed_on = tour.order.task.kind == "train" and not tour.order.merges
        record = VisitKept(key, passed.vectors, passed.handout if handed_on else {}, report)
        blobs = tuple(dict.fromkeys(ref.digest for ref in [*record.vectors.values(), *record.handout.values()]))
        written = self._site.write(record, sync=True, blobs=blobs)
        return [written, Send(device, Accepted(result.visit)), *self._leave(where, device.name, now)]

    def lose(self, where: Where, status: VisitStatus, reason: str, now: float, then: str | None = None) -> list[Effect]:
        """A visit came to nothing."""
        key, hop = where
        tour, leg = self._site.tour(key)
        stay, device, visit = leg.stays[hop], str(tour.stops[hop].device), tour.visit(hop)
        then = then or self._instead(key, hop)
        report = VisitReport(device, hop, status, reason[:2000], 0, 0.0, {}, None, now - stay.began)
        effects = self._site.undo(where)
        if status != "declined":
            told = Discarded(visit, reason[:2000]) if stay.result else Cancel(visit)
            effects.append(Send(Address("device", device), told))
        missed = self._site.write(VisitMissed(key, report, then))
        said = Say(f"tour {tour.order.id} hop {hop}: {device} {status} ({reason}); {then}", "warning")
        return [missed, said, *effects, *self._leave(where, device, now)]

    def _instead(self, key: Key, hop: int) -> str:
        """What the tour's policy tries when a visit came to nothing: the same device, a spare, or the next hop."""
        tour = self._site.state.tours[key]
        policy = tour.order.policy
        if policy.on_lost_visit == "retry" and tour.stops[hop].tries < policy.retries:
            return "retry"
        return "swap" if policy.on_lost_visit == "swap" and tour.spares else "skip"

    def _leave(self, where: Where, device: str, now: float) -> list[Effect]:
        """The model has left a device: its tour goes on, and so does one that waited for the device."""
        self.release(where, device)
        return [*self._go_on(where[0], now, where[1]), *self.free(device, now)]

    def release(self, where: Where, device: str) -> None:
        """Nothing more is expected of a visit."""
        key, hop = where
        self._site.outbox.answered(("visit", key, hop))
        self._site.fetches.forget(where)
        self._site.alarm.forget(where)
        self._site.legs[key].stays.pop(hop, None)
        if self._site.at.get(device) == where:
            del self._site.at[device]

    def free(self, device: str, now: float) -> list[Effect]:
        """Let those go on that waited for a device."""
        effects: list[Effect] = []
        for key, hop in self._site.waiting.pop(device, {}):
            tour = self._site.state.tours.get(key)
            if tour and tour.is_due(hop):
                effects += self._go_on(key, now, hop)
        return effects

    def overdue(self, where: Where, now: float) -> list[Effect]:
        """The alarm went off for a visit: its lease may have run out."""
        stay = self._stay(where)
        if stay is None or stay.lease_ends is None:
            return []
        if stay.lease_ends > now:
            self._site.alarm.set(where, stay.lease_ends)
            return []
        return self.lose(where, "lost", f"no sign of life for {stay.lease:g} s", now)

    def _stay(self, where: Where) -> Stay | None:
        leg = self._site.legs.get(where[0])
        return leg.stays.get(where[1]) if leg else None
