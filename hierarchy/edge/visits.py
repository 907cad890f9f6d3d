"""Visits: the edge server sends the model to a device, fetches and checks its result, and keeps or loses the visit.

Each change of a visit is a row of `hierarchy.edge.tables.VISIT`.
"""

from __future__ import annotations

from collections.abc import Callable

from hierarchy.edge.gate import Check, Failed, Passed, sent_vectors, signed_hop, unfit, unsigned
from hierarchy.edge.records import Key, TourState, VisitIssued, VisitKept, VisitMissed, key_of
from hierarchy.edge.site import RunningVisit, Site, VisitKey
from hierarchy.edge.tables import VISIT, TourStep, VisitEvent, VisitStep
from sojourn.logs import About
from sojourn.model.gate_rules import counted_samples, granted_samples
from sojourn.node.machine import Effect, Log, Pull, Send
from sojourn.protocol.limits import MAX_SECONDS, TEXT
from sojourn.protocol.messages import Accepted, Cancel, Declined, Discarded, Prepare, Progress, Visit, Visited
from sojourn.protocol.topics import Address
from sojourn.protocol.visit_outcomes import LATE, SILENT, WOULD_REFUSE, is_flagged
from sojourn.protocol.wire import DATA_NOTE, VisitId, VisitReport, VisitStatus, visit_steps, with_metrics
from sojourn.randomness import derive

Advance = Callable[[Key, float, int], list[Effect]]
Report = Callable[[Key, float], list[Effect]]

UNFIT_HINT = "check the version of the agent on this device, and that it has the key that it joined with"
MAX_STALE = 3
"""How often a device may report an attempt as stale before it costs the hop."""
_STATUS: dict[VisitEvent, VisitStatus] = {
    VisitEvent.DECLINED: "declined",
    VisitEvent.LEASE_OVER: "lost",
    VisitEvent.DEADLINE_OVER: "lost",
    VisitEvent.FETCH_FAILED: "lost",
    VisitEvent.UNFIT_RESULT: "refused",
    VisitEvent.REFUSED: "refused",
    VisitEvent.NOT_CHECKED: "refused",
}
"""The status that the coordinator reads of a failed visit, by the event that ended it."""


class Visits:
    """The visits of all tours; `advance` continues a tour after a visit, `report` reports it to the coordinator."""

    def __init__(self, site: Site, advance: Advance, report: Report) -> None:
        self._site = site
        self._advance = advance
        self._report = report

    def start(self, key: Key, hop: int, now: float) -> list[Effect]:
        """Send the model to the device of a hop that is due and was not asked since this process started."""
        tour, running = self._site.tour(key)
        if not tour.is_due(hop) or hop in running.visits:
            return []
        device = tour.route[tour.place(hop)]
        if self._site.at.get(device, (key, hop)) != (key, hop):  # busy with another visit: it would decline
            VISIT.step(VisitStep.DUE, VisitEvent.DEVICE_BUSY)
            self._site.waiting.setdefault(device, {})[key, hop] = None
            return []
        effects: list[Effect] = []
        visit = tour.open_visits.get(hop)
        if visit is None or visit.device is None:
            effects.append(self._site.write(VisitIssued(key, device, hop - tour.hop)))
        self._site.at[device] = key, hop
        visit_now = running.visits[hop] = RunningVisit(tour.order.policy.lease, now, tour.order.bounds.deadline)
        self._site.alarm.set((key, hop), visit_now.lease_ends or now)
        sent = Log(f"sending the model to {device}", "step", self._about(key, hop))
        return [*effects, sent, *self._ask(key, hop, now)]

    def _ask(self, key: Key, hop: int, now: float) -> list[Effect]:
        tour, running = self._site.tour(key)
        it, device = tour.order, Address("device", str(tour.open_visits[hop].device))
        seed = derive(it.seed, device.name, tour.repeat(hop))
        _, earlier = running.before(tour)
        visit = Visit(
            tour.visit(hop), it.kit, sent_vectors(tour), it.task, seed, it.policy.lease, earlier, it.mandate, it.size
        )
        return [*self._site.outbox.ask(("visit", key, hop), device, visit, now)]

    def _about(self, key: Key, hop: int) -> About:
        """Return what a log line about an issued visit refers to."""
        tour = self._site.state.tours[key]
        return tour.visit(hop).about(device=str(tour.open_visits[hop].device))

    def born(self, device: str, now: float) -> list[Effect]:
        """Ask a device again after its restart: it may have lost its order."""
        where = self._site.at.get(device)
        if where is None:
            return []
        visit = self._site.visit(where)
        state = VISIT.step(visit.state if visit else VisitStep.DUE, VisitEvent.DEVICE_RESTARTED)
        return self._ask(*where, now) if state == VisitStep.HANDED else []

    def on_traffic(self, device: str, traffic: int, now: float, *, sign_of_life: bool) -> None:
        """Count bytes towards the tour at the device; a sign of life renews the lease."""
        if where := self._site.at.get(device):
            self._site.running[where[0]].traffic += traffic
            if sign_of_life and (visit := self._site.visit(where)):
                visit.renew(now)

    def progress(self, sender: Address, message: Progress, now: float) -> list[Effect]:
        """Take a device's sign of life."""
        where = self._current(sender, message.visit)
        if where is None:
            # Late progress must not cancel a result that counts: a cancel may overtake the acceptance.
            return self._answer_late(sender, message.visit, VisitEvent.PROGRESS, Cancel(message.visit))
        key, hop = where
        tour, running = self._site.tour(key)
        visit = running.visits[hop]
        visit.step(VisitEvent.PROGRESS)
        self._site.outbox.answered(("visit", key, hop))
        visit.steps, running.latest = (message.step, message.steps), hop
        if message.stage != "training" or visit.prepared:
            return []
        visit.prepared = True
        return [*self._prepare_next(tour, hop, sender.name), *self._report(key, now)]

    def _prepare_next(self, tour: TourState, hop: int, device: str) -> list[Effect]:
        """While a device trains, let the next one on the route prepare, unless it is busy or the same device."""
        following = [] if tour.order.merges else tour.route[hop + 1 : hop + 2]
        if not following or following == [device] or following[0] in self._site.at:
            return []
        prepare = Prepare(tour.order.id.job, tour.order.kit, tour.order.task, tour.order.mandate, tour.order.size)
        return [Send(Address("device", following[0]), prepare)]

    def visited(self, sender: Address, message: Visited, now: float) -> list[Effect]:
        """Fetch a device's result, if it is plausible."""
        where = self._current(sender, message.visit)
        if where is None:
            unwanted = Discarded(message.visit, "this attempt is no longer wanted")
            return self._answer_late(sender, message.visit, VisitEvent.RESULT, unwanted)
        key, hop = where
        self._site.outbox.answered(("visit", key, hop))
        tour, running = self._site.tour(key)
        visit, it = running.visits[hop], tour.order
        if visit.state != VisitStep.HANDED:
            visit.step(VisitEvent.RESULT)
            return []
        visit.result = message
        size = sum(ref.size for ref in message.vectors.values())
        arrived = Log(
            f"{sender.name} has a result: {message.samples} samples, {size} bytes", "step", self._about(key, hop)
        )
        reason = unfit(message.vectors, it.task, it.vectors["model"]) or unsigned(tour, sender.name, message)
        if reason:
            return [arrived, *self.lose(where, VisitEvent.UNFIT_RESULT, f"{reason}; {UNFIT_HINT}", now)]
        needed = {ref.digest: ref for ref in message.vectors.values()}
        if not needed:
            visit.step(VisitEvent.RESULT_WITHOUT_VECTORS)
            return [arrived, *self._check(where)]
        visit.step(VisitEvent.RESULT)
        self._site.fetches.wait(where, needed)
        return [arrived, *(Pull(ref, sender) for ref in needed.values())]

    def declined(self, sender: Address, message: Declined, now: float) -> list[Effect]:
        """Take a device's refusal to do a visit, or to continue it."""
        where = self._current(sender, message.visit)
        if where is None:
            state = VISIT.step(self._past(sender, message.visit), VisitEvent.DECLINED)
            return [] if state == VisitStep.DUE else [Send(sender, Cancel(message.visit))]
        key, hop = where
        # The device has seen later attempts than this site remembers: not its fault, and the next number is new to it.
        behind = message.reason == "stale" and self._site.state.tours[key].open_visits[hop].tries < MAX_STALE
        reason = f"{message.reason}: {message.detail}"
        lost = self.lose(where, VisitEvent.DECLINED, reason, now, "retry" if behind else None)
        return [Send(sender, Cancel(message.visit)), *lost]

    def _current(self, sender: Address, visit: VisitId) -> VisitKey | None:
        """Return the running visit with this device and number, or None."""
        key = key_of(visit)
        tour = self._site.state.tours.get(key)
        asked = tour.open_visits.get(visit.hop) if tour and not tour.toured else None
        if tour is None or asked is None or asked.device != sender.name or tour.visit(visit.hop) != visit:
            return None
        return (key, visit.hop) if visit.hop in self._site.running[key].visits else None

    def _past(self, sender: Address, visit: VisitId) -> VisitStep:
        """Return the state of a visit that is not running: due once its tour has started again, kept, or missed."""
        running = self._site.running.get(key_of(visit))
        if running is not None and running.state == TourStep.GATHERING:
            return VisitStep.DUE
        return VisitStep.KEPT if self._site.state.was_accepted(visit, sender.name) else VisitStep.MISSED

    def _answer_late(
        self, sender: Address, visit: VisitId, event: VisitEvent, unwanted: Cancel | Discarded
    ) -> list[Effect]:
        """Ignore a message about a visit that is due; answer again if the visit has ended."""
        state = VISIT.step(self._past(sender, visit), event)
        if state == VisitStep.DUE:
            return []
        return [Send(sender, Accepted(visit) if state == VisitStep.KEPT else unwanted)]

    def fetched(self, where: VisitKey) -> list[Effect]:
        """Check a fetched result."""
        key, hop = where
        self._site.running[key].visits[hop].step(VisitEvent.FETCHED)
        return self._check(where)

    def _check(self, where: VisitKey) -> list[Effect]:
        key, hop = where
        tour, running = self._site.tour(key)
        visit, it = running.visits[hop], tour.order
        assert visit.result is not None  # noqa: S101  # it arrived before this call
        visit.lease_ends = None
        norms, earlier = running.before(tour)
        exemplars, result = it.vectors.get("gate"), visit.result
        work = Check(
            it.kit, result.vectors, tour.vectors, exemplars, it.gate, norms, it.task, result.samples, earlier,
            tour.order.bounds,
        )  # fmt: skip
        return self._site.start_work(where, tour.open_visits[hop].attempt, work)

    def keep(self, where: VisitKey, passed: Passed, now: float) -> list[Effect]:
        """Journal an accepted result, confirm it to the device, and continue the tour."""
        key, hop = where
        tour, running = self._site.tour(key)
        visit, device = running.visits[hop], Address("device", str(tour.open_visits[hop].device))
        visit.step(VisitEvent.PASSED)
        result = visit.result
        assert result is not None  # noqa: S101  # it was checked before
        task, samples = tour.order.task, counted_samples(result.samples, tour.order.bounds)
        report = VisitReport(
            device.name,
            hop,
            "done",
            self._note(passed, result),
            samples,
            passed.norm,
            self._metrics(where, passed),
            result.signature if task.kind == "estimate" else None,
            _duration(visit.began, now),
            signed_hop(tour, result, passed),
        )
        passed_on = tour.order.task.kind == "train" and not tour.order.merges
        record = VisitKept(key, passed.vectors, passed.wire_vectors if passed_on else {}, report)
        blobs = tuple(dict.fromkeys(ref.digest for ref in [*record.vectors.values(), *record.wire_vectors.values()]))
        flagged = is_flagged(report.status, report.reason)
        kept = Log(_verdict(report), "warning" if flagged else "step", self._about(key, hop))
        written = self._site.write(record, sync=True, blobs=blobs)
        return [written, kept, Send(device, Accepted(result.visit)), *self._leave(where, device.name, now)]

    @property
    def _by(self) -> str:
        return f"by edge server {self._site.name}"

    def _note(self, passed: Passed, result: Visited) -> str:
        """Return the remarks of the gate and of the device about a visit."""
        flagged = f"{WOULD_REFUSE}{self._by}, because {passed.flagged}" if passed.flagged else ""
        own = f"{DATA_NOTE}{result.note}" if result.note else ""
        return "; ".join(filter(None, (flagged, passed.note, own)))[:TEXT]

    def _metrics(self, where: VisitKey, judged: Passed | Failed) -> dict[str, float]:
        """Return a device's metrics, with those that the edge server determines: steps, and the gate's measurements."""
        key, hop = where
        tour, running = self._site.tour(key)
        result, (_, earlier) = running.visits[hop].result, running.before(tour)
        assert result is not None  # noqa: S101  # it was checked before
        steps = visit_steps(tour.order.task, granted_samples(result.samples, tour.order.bounds), earlier)
        metrics = {"steps": float(steps)} if judged.norm else {}
        return with_metrics(result.metrics, metrics if judged.rise is None else {**metrics, "rise": judged.rise})

    def refuse(self, where: VisitKey, failed: Failed, now: float) -> list[Effect]:
        """Refuse a result at the gate; its measurements are reported nevertheless."""
        measured = self._metrics(where, failed)
        return self.lose(where, VisitEvent.REFUSED, failed.reason, now, norm=failed.norm, metrics=measured)

    def lose(  # everything that a failed visit leaves
        self,
        where: VisitKey,
        event: VisitEvent,
        reason: str,
        now: float,
        then: str | None = None,
        *,
        norm: float = 0.0,
        metrics: dict[str, float] | None = None,
    ) -> list[Effect]:
        """Journal a failed visit and what is tried next, inform the device, and continue the tour."""
        key, hop = where
        tour, running = self._site.tour(key)
        visit, device, number = running.visits[hop], str(tour.open_visits[hop].device), tour.visit(hop)
        visit.step(event)
        status, then = _STATUS[event], then or self._next_try(key, hop)
        reason = f"{self._by}, because {reason}" if status == "refused" else reason
        report = VisitReport(
            device, hop, status, reason[:TEXT], 0, norm, metrics or {}, None, _duration(visit.began, now)
        )
        effects = self._site.cancel_work(where)
        if status != "declined":
            refusal = Discarded(number, reason[:TEXT]) if visit.result else Cancel(number)
            effects.append(Send(Address("device", device), refusal))
        missed = self._site.write(VisitMissed(key, report, then))
        text = f"tour {number}: {device} {status} ({reason}); {then}"
        warning = Log(text, "warning", number.about(device=device))
        return [missed, warning, *effects, *self._leave(where, device, now)]

    def _next_try(self, key: Key, hop: int) -> str:
        """Return what the tour's policy tries after a failed visit: the same device, a spare, or the next hop."""
        tour = self._site.state.tours[key]
        policy = tour.order.policy
        if policy.on_lost_visit == "retry" and tour.open_visits[hop].tries < policy.retries:
            return "retry"
        return "swap" if policy.on_lost_visit == "swap" and tour.spares else "skip"

    def _leave(self, where: VisitKey, device: str, now: float) -> list[Effect]:
        """Continue the tour after a visit, and a tour that waited for the device."""
        self._forget(where, device)
        return [*self._advance(where[0], now, where[1]), *self.free(device, now)]

    def _forget(self, where: VisitKey, device: str) -> None:
        """Forget a visit: nothing more is expected of it."""
        key, hop = where
        self._site.outbox.answered(("visit", key, hop))
        self._site.fetches.forget(where)
        self._site.alarm.forget(where)
        self._site.running[key].visits.pop(hop, None)
        if self._site.at.get(device) == where:
            del self._site.at[device]

    def cancel(self, key: Key) -> list[Effect]:
        """Cancel every visit of a dropped tour that has begun or waits."""
        tour, running = self._site.tour(key)
        cancelled: list[Effect] = []
        cancels: list[Effect] = []
        for hop, device in tour.visiting().items():
            if visit := running.visits.get(hop):
                visit.step(VisitEvent.TOUR_DROPPED)
                cancelled += self._site.cancel_work((key, hop))
            else:
                VISIT.step(VisitStep.DUE, VisitEvent.TOUR_DROPPED)
            cancels.append(Send(Address("device", device), Cancel(tour.visit(hop))))
            self._forget((key, hop), device)
        for hop in tour.wave:
            self._stop_waiting((key, hop), tour.route[tour.place(hop)])
        return [*cancelled, *cancels]

    def _stop_waiting(self, where: VisitKey, device: str) -> None:
        waiting = self._site.waiting.get(device, {})
        if where in waiting:
            VISIT.step(VisitStep.WAITING, VisitEvent.TOUR_DROPPED)
            del waiting[where]
            if not waiting:
                del self._site.waiting[device]

    def free(self, device: str, now: float) -> list[Effect]:
        """Continue the tours that waited for a device: the first gets it, the others wait again."""
        effects: list[Effect] = []
        for key, hop in self._site.waiting.pop(device, {}):
            VISIT.step(VisitStep.WAITING, VisitEvent.DEVICE_FREE)
            effects += self._advance(key, now, hop)
        return effects

    def overdue(self, where: VisitKey, now: float) -> list[Effect]:
        """Handle a timer of a visit: its lease or its deadline may be over."""
        visit = self._site.visit(where)
        if visit is None or visit.lease_ends is None:
            return []
        if visit.lease_ends > now:
            self._site.alarm.set(where, visit.lease_ends)
            return []
        if visit.past_deadline(now):
            return self.lose(where, VisitEvent.DEADLINE_OVER, f"{LATE} of {visit.deadline:g} s", now)
        return self.lose(where, VisitEvent.LEASE_OVER, f"{SILENT} for {visit.lease:g} s", now)


def _verdict(report: VisitReport) -> str:
    """Return the gate's verdict on a kept result, for the log."""
    text = f"kept the result of {report.device}: norm {report.norm:.4g}"
    return f"{text}; {report.reason}" if report.reason else text


def _duration(began: float, now: float) -> float:
    """Return the seconds that a visit took, within the range of a report."""
    return min(max(now - began, 0.0), MAX_SECONDS)
