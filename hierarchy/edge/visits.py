"""Visits: the model is handed to a device, its result is fetched, checked, and kept or missed.

Each change of a visit is a step of `visit_table`.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from hierarchy.edge.gate import Check, unfit
from hierarchy.edge.records import VisitIssued, VisitKept, VisitMissed, key_of
from hierarchy.edge.rules import counted_samples, granted_samples
from hierarchy.edge.running import RunningVisit
from hierarchy.edge.signatures import given_to, signed_hop, unsigned
from hierarchy.edge.tour_table import GATHERING
from hierarchy.edge.visit_table import DUE, HANDED, KEPT, MISSED, VISIT, WAITING
from sojourn.node.machine import Pull, Say, Send
from sojourn.protocol.limits import MOST_SECONDS, TEXT
from sojourn.protocol.messages import Accepted, Cancel, Discarded, Prepare, Visit
from sojourn.protocol.topics import Address
from sojourn.protocol.visit_words import LATE, SILENT, WOULD_REFUSE, is_flagged
from sojourn.protocol.wire import DATA_NOTE, VisitReport, visit_steps, with_figures
from sojourn.randomness import derive

if TYPE_CHECKING:
    from collections.abc import Callable

    from hierarchy.edge.gate import Failed, Passed
    from hierarchy.edge.records import Key, TourState
    from hierarchy.edge.site import Site, VisitKey
    from hierarchy.edge.visit_table import VisitEvent
    from sojourn.about import About
    from sojourn.node.machine import Effect
    from sojourn.protocol.messages import Declined, Progress, Visited
    from sojourn.protocol.wire import VisitId, VisitStatus

    GoOn = Callable[[Key, float, int], list[Effect]]
    Report = Callable[[Key, float], list[Effect]]

UNFIT = "check the version of the agent on this device, and that it has the key that it joined with"
STALE = 3
"""How often a device may call an attempt stale before it costs the hop."""
_STATUS: dict[VisitEvent, VisitStatus] = {
    "declined": "declined",
    "lease over": "lost",
    "deadline over": "lost",
    "fetch failed": "lost",
    "unfit result": "refused",
    "refused": "refused",
    "not checked": "refused",
}
"""What the coordinator reads of a visit that came to nothing, by what ended it."""


class Visits:
    """The visits of all tours; `go_on` leads a tour on when a visit is over, `report` tells the coordinator of it."""

    def __init__(self, site: Site, go_on: GoOn, report: Report) -> None:
        self._site = site
        self._go_on = go_on
        self._report = report

    def hand(self, key: Key, hop: int, now: float) -> list[Effect]:
        """Hand the model to the device of a hop that is due and was not asked since we started."""
        tour, running = self._site.tour(key)
        if not tour.is_due(hop) or hop in running.visits:
            return []
        device = tour.route[tour.place(hop)]
        if self._site.at.get(device, (key, hop)) != (key, hop):  # at work for another visit: it would decline
            VISIT.step(DUE, "device busy")
            self._site.waiting.setdefault(device, {})[key, hop] = None
            return []
        effects: list[Effect] = []
        visit = tour.open_visits.get(hop)
        if visit is None or visit.device is None:
            effects.append(self._site.write(VisitIssued(key, device, hop - tour.hop)))
        self._site.at[device] = key, hop
        visit_now = running.visits[hop] = RunningVisit(tour.order.policy.lease, now, tour.bounds.deadline)
        self._site.alarm.set((key, hop), visit_now.lease_ends or now)
        handed = Say(f"the model goes to {device}", "step", self._about(key, hop))
        return [*effects, handed, *self._ask(key, hop, now)]

    def _ask(self, key: Key, hop: int, now: float) -> list[Effect]:
        tour, running = self._site.tour(key)
        it, device = tour.order, Address("device", str(tour.open_visits[hop].device))
        seed = derive(it.seed, device.name, tour.repeat(hop))
        _, earlier = running.before(tour)
        visit = Visit(
            tour.visit(hop), it.kit, given_to(tour), it.task, seed, it.policy.lease, earlier, it.mandate, it.size
        )
        return [*self._site.outbox.ask(("visit", key, hop), device, visit, now)]

    def _about(self, key: Key, hop: int) -> About:
        """A visit that was issued, for the log."""
        tour = self._site.state.tours[key]
        return tour.visit(hop).about(device=str(tour.open_visits[hop].device))

    def born(self, device: str, now: float) -> list[Effect]:
        """A device is here again: it may have forgotten that it was asked."""
        where = self._site.at.get(device)
        if where is None:
            return []
        visit = self._site.visit(where)
        state = VISIT.step(visit.state if visit else DUE, "device born again")
        return self._ask(*where, now) if state == HANDED else []

    def heard(self, device: str, traffic: int, now: float, *, spoke: bool) -> None:
        """Count bytes towards the tour that is at the device; speaking renews the lease."""
        if where := self._site.at.get(device):
            self._site.running[where[0]].traffic += traffic
            if spoke and (visit := self._site.visit(where)):
                visit.renew(now)

    def progress(self, sender: Address, message: Progress, now: float) -> list[Effect]:
        """A device gave a sign of life."""
        where = self._current(sender, message.visit)
        if where is None:
            # One that comes late must not cancel a result that counts: a cancel may overtake what was accepted.
            return self._answer_late(sender, message.visit, "progress", Cancel(message.visit))
        key, hop = where
        tour, running = self._site.tour(key)
        visit = running.visits[hop]
        visit.step("progress")
        self._site.outbox.answered(("visit", key, hop))
        visit.steps, running.latest = (message.step, message.steps), hop
        if message.stage != "training" or visit.prepared:
            return []
        visit.prepared = True
        return [*self._prepare_next(tour, hop, sender.name), *self._report(key, now)]

    def _prepare_next(self, tour: TourState, hop: int, device: str) -> list[Effect]:
        """While a device trains, the next one on the route gets ready, unless it is at work or the same one."""
        following = [] if tour.order.merges else tour.route[hop + 1 : hop + 2]
        if not following or following == [device] or following[0] in self._site.at:
            return []
        prepare = Prepare(tour.order.id.job, tour.order.kit, tour.order.task, tour.order.mandate, tour.order.size)
        return [Send(Address("device", following[0]), prepare)]

    def visited(self, sender: Address, message: Visited, now: float) -> list[Effect]:
        """A device has a result: fetch it, if it can be one."""
        where = self._current(sender, message.visit)
        if where is None:
            unwanted = Discarded(message.visit, "this attempt is no longer wanted")
            return self._answer_late(sender, message.visit, "result", unwanted)
        key, hop = where
        self._site.outbox.answered(("visit", key, hop))
        tour, running = self._site.tour(key)
        visit, it = running.visits[hop], tour.order
        if visit.state != HANDED:
            visit.step("result")
            return []
        visit.result = message
        size = sum(ref.size for ref in message.vectors.values())
        came = Say(
            f"{sender.name} has a result: {message.samples} samples, {size} bytes", "step", self._about(key, hop)
        )
        reason = unfit(message.vectors, it.task, it.vectors["model"]) or unsigned(tour, sender.name, message)
        if reason:
            return [came, *self.lose(where, "unfit result", f"{reason}; {UNFIT}", now)]
        needed = {ref.digest: ref for ref in message.vectors.values()}
        if not needed:
            visit.step("result without vectors")
            return [came, *self._check(where)]
        visit.step("result")
        self._site.fetches.wait(where, needed)
        return [came, *(Pull(ref, sender) for ref in needed.values())]

    def declined(self, sender: Address, message: Declined, now: float) -> list[Effect]:
        """A device will not do a visit, or cannot go on with it."""
        where = self._current(sender, message.visit)
        if where is None:
            state = VISIT.step(self._past(sender, message.visit), "declined")
            return [] if state == DUE else [Send(sender, Cancel(message.visit))]
        key, hop = where
        # The device has seen later attempts than we remember: that is not its fault, and the next number is new to it.
        behind = message.reason == "stale" and self._site.state.tours[key].open_visits[hop].tries < STALE
        reason = f"{message.reason}: {message.detail}"
        lost = self.lose(where, "declined", reason, now, "retry" if behind else None)
        return [Send(sender, Cancel(message.visit)), *lost]

    def _current(self, sender: Address, visit: VisitId) -> VisitKey | None:
        """The visit that is under way with this device and number, if there is one."""
        key = key_of(visit)
        tour = self._site.state.tours.get(key)
        asked = tour.open_visits.get(visit.hop) if tour and not tour.toured else None
        if tour is None or asked is None or asked.device != sender.name or tour.visit(visit.hop) != visit:
            return None
        return (key, visit.hop) if visit.hop in self._site.running[key].visits else None

    def _past(self, sender: Address, visit: VisitId) -> str:
        """The state of a visit that is not under way: due again once its tour has set out again, kept, or missed."""
        running = self._site.running.get(key_of(visit))
        if running is not None and running.state == GATHERING:
            return DUE
        return KEPT if self._site.state.was_accepted(visit, sender.name) else MISSED

    def _answer_late(
        self, sender: Address, visit: VisitId, event: VisitEvent, unwanted: Cancel | Discarded
    ) -> list[Effect]:
        """What a device sent of a visit that is not under way is ignored while it is due, else answered again."""
        state = VISIT.step(self._past(sender, visit), event)
        if state == DUE:
            return []
        return [Send(sender, Accepted(visit) if state == KEPT else unwanted)]

    def fetched(self, where: VisitKey) -> list[Effect]:
        """The result is here: have it checked."""
        key, hop = where
        self._site.running[key].visits[hop].step("fetched")
        return self._check(where)

    def _check(self, where: VisitKey) -> list[Effect]:
        key, hop = where
        tour, running = self._site.tour(key)
        visit, it = running.visits[hop], tour.order
        assert visit.result is not None  # noqa: S101  # it came a moment ago
        visit.lease_ends = None
        norms, earlier = running.before(tour)
        exemplars, result = it.vectors.get("gate"), visit.result
        work = Check(
            it.kit, result.vectors, tour.vectors, exemplars, it.gate, norms, it.task, result.samples, earlier,
            tour.bounds,
        )  # fmt: skip
        return self._site.do(where, tour.open_visits[hop].attempt, work)

    def keep(self, where: VisitKey, passed: Passed, now: float) -> list[Effect]:
        """The result is good: journal it, thank the device, go on."""
        key, hop = where
        tour, running = self._site.tour(key)
        visit, device = running.visits[hop], Address("device", str(tour.open_visits[hop].device))
        visit.step("passed")
        result = visit.result
        assert result is not None  # noqa: S101  # it was checked a moment ago
        task, samples = tour.order.task, counted_samples(result.samples, tour.bounds)
        report = VisitReport(
            device.name,
            hop,
            "done",
            self._note(passed, result),
            samples,
            passed.norm,
            self._measured(where, passed),
            result.signature if task.kind == "estimate" else None,
            _lasted(visit.began, now),
            signed_hop(tour, result, passed),
        )
        handed_on = tour.order.task.kind == "train" and not tour.order.merges
        record = VisitKept(key, passed.vectors, passed.handout if handed_on else {}, report)
        blobs = tuple(dict.fromkeys(ref.digest for ref in [*record.vectors.values(), *record.handout.values()]))
        flagged = is_flagged(report.status, report.reason)
        kept = Say(_verdict(report), "warning" if flagged else "step", self._about(key, hop))
        written = self._site.write(record, sync=True, blobs=blobs)
        return [written, kept, Send(device, Accepted(result.visit)), *self._leave(where, device.name, now)]

    @property
    def _by(self) -> str:
        return f"by edge server {self._site.name}"

    def _note(self, passed: Passed, result: Visited) -> str:
        """What people should know of a visit, by the gate and by the device."""
        flagged = f"{WOULD_REFUSE}{self._by}, because {passed.flagged}" if passed.flagged else ""
        own = f"{DATA_NOTE}{result.note}" if result.note else ""
        return "; ".join(filter(None, (flagged, passed.note, own)))[:TEXT]

    def _measured(self, where: VisitKey, judged: Passed | Failed) -> dict[str, float]:
        """A device's figures, with what is not left to it: its steps, and what the gate has found."""
        key, hop = where
        tour, running = self._site.tour(key)
        result, (_, earlier) = running.visits[hop].result, running.before(tour)
        assert result is not None  # noqa: S101  # it was checked a moment ago
        steps = visit_steps(tour.order.task, granted_samples(result.samples, tour.bounds), earlier)
        figures = {"steps": float(steps)} if judged.norm else {}
        return with_figures(result.metrics, figures if judged.rise is None else {**figures, "rise": judged.rise})

    def refuse(self, where: VisitKey, failed: Failed, now: float) -> list[Effect]:
        """The gate does not let a result pass: what it has measured is reported all the same."""
        measured = self._measured(where, failed)
        return self.lose(where, "refused", failed.reason, now, norm=failed.norm, metrics=measured)

    def lose(  # all that a visit that came to nothing leaves
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
        """A visit came to nothing: journal it and what is tried instead, tell the device, go on."""
        key, hop = where
        tour, running = self._site.tour(key)
        visit, device, number = running.visits[hop], str(tour.open_visits[hop].device), tour.visit(hop)
        visit.step(event)
        status, then = _STATUS[event], then or self._instead(key, hop)
        reason = f"{self._by}, because {reason}" if status == "refused" else reason
        report = VisitReport(
            device, hop, status, reason[:TEXT], 0, norm, metrics or {}, None, _lasted(visit.began, now)
        )
        effects = self._site.undo(where)
        if status != "declined":
            refusal = Discarded(number, reason[:TEXT]) if visit.result else Cancel(number)
            effects.append(Send(Address("device", device), refusal))
        missed = self._site.write(VisitMissed(key, report, then))
        text = f"tour {number}: {device} {status} ({reason}); {then}"
        warning = Say(text, "warning", number.about(device=device))
        return [missed, warning, *effects, *self._leave(where, device, now)]

    def _instead(self, key: Key, hop: int) -> str:
        """What the tour's policy tries when a visit came to nothing: the same device, a spare, or the next hop."""
        tour = self._site.state.tours[key]
        policy = tour.order.policy
        if policy.on_lost_visit == "retry" and tour.open_visits[hop].tries < policy.retries:
            return "retry"
        return "swap" if policy.on_lost_visit == "swap" and tour.spares else "skip"

    def _leave(self, where: VisitKey, device: str, now: float) -> list[Effect]:
        """The model has left a device: its tour goes on, and so does one that waited for the device."""
        self._forget(where, device)
        return [*self._go_on(where[0], now, where[1]), *self.free(device, now)]

    def _forget(self, where: VisitKey, device: str) -> None:
        """Nothing more is expected of a visit."""
        key, hop = where
        self._site.outbox.answered(("visit", key, hop))
        self._site.fetches.forget(where)
        self._site.alarm.forget(where)
        self._site.running[key].visits.pop(hop, None)
        if self._site.at.get(device) == where:
            del self._site.at[device]

    def call_off(self, key: Key) -> list[Effect]:
        """The tour is dropped, and with it every visit that was begun or waits."""
        tour, running = self._site.tour(key)
        undone: list[Effect] = []
        cancels: list[Effect] = []
        for hop, device in tour.visiting().items():
            if visit := running.visits.get(hop):
                visit.step("tour dropped")
                undone += self._site.undo((key, hop))
            else:
                VISIT.step(DUE, "tour dropped")
            cancels.append(Send(Address("device", device), Cancel(tour.visit(hop))))
            self._forget((key, hop), device)
        for hop in tour.wave:
            self._wait_no_more((key, hop), tour.route[tour.place(hop)])
        return [*undone, *cancels]

    def _wait_no_more(self, where: VisitKey, device: str) -> None:
        waiting = self._site.waiting.get(device, {})
        if where in waiting:
            VISIT.step(WAITING, "tour dropped")
            del waiting[where]
            if not waiting:
                del self._site.waiting[device]

    def free(self, device: str, now: float) -> list[Effect]:
        """Let those go on that waited for a device: the first gets it, the others wait again."""
        effects: list[Effect] = []
        for key, hop in self._site.waiting.pop(device, {}):
            VISIT.step(WAITING, "device free")
            effects += self._go_on(key, now, hop)
        return effects

    def overdue(self, where: VisitKey, now: float) -> list[Effect]:
        """The alarm went off for a visit: its lease or its deadline may be over."""
        visit = self._site.visit(where)
        if visit is None or visit.lease_ends is None:
            return []
        if visit.lease_ends > now:
            self._site.alarm.set(where, visit.lease_ends)
            return []
        if visit.past_deadline(now):
            return self.lose(where, "deadline over", f"{LATE} of {visit.deadline:g} s", now)
        return self.lose(where, "lease over", f"{SILENT} for {visit.lease:g} s", now)


def _verdict(report: VisitReport) -> str:
    """What the gate has said of a result that is kept."""
    text = f"the result of {report.device} is kept: norm {report.norm:.4g}"
    return f"{text}; {report.reason}" if report.reason else text


def _lasted(began: float, now: float) -> float:
    """How many seconds a visit took, as a report may say it."""
    return min(max(now - began, 0.0), MOST_SECONDS)
