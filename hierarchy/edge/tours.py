"""Tours: taken from the coordinator, led on from visit to visit or from merge to merge, and ended.

Each change of a tour is a step of `tour_table`.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from hierarchy.edge.gate import Wrap
from hierarchy.edge.merge import merge_of, objection
from hierarchy.edge.records import TourDropped, TourEnded, TourTaken, WaveMerged, key_of
from hierarchy.edge.running import RunningTour
from hierarchy.edge.told_hops import told_of
from hierarchy.edge.tour_table import GATHERING, LEADING, MERGING, NOT_HERE, TOUR
from hierarchy.edge.visits import Visits
from sojourn.node.machine import Keep, Pull, Say, Send
from sojourn.protocol.envelope import pack_blob
from sojourn.protocol.limits import MOST, MOST_BYTES
from sojourn.protocol.messages import TourAccepted, Toured, TourProgress
from sojourn.store.blobs import ref_of

if TYPE_CHECKING:
    from hierarchy.edge.merge import Merged
    from hierarchy.edge.records import Key
    from hierarchy.edge.site import Site
    from hierarchy.edge.tour_table import TourEvent
    from sojourn.node.machine import DidNot, Effect
    from sojourn.protocol.messages import Tour, TourCancel, TourDiscarded
    from sojourn.protocol.wire import Ref

RETRY = 5.0
"""Seconds until what could not be fetched or merged is tried again."""
DEVICES_NAMED = 12
"""At most this many devices of a tour are named in the log."""


class TourLeader:
    """Leads the tours of a site; `visits` are the visits that they are made of."""

    def __init__(self, site: Site) -> None:
        self._site = site
        self.visits = Visits(site, self.go_on, self._report_news)

    def resume(self, now: float) -> list[Effect]:
        """Take up every tour where its checkpoint is."""
        effects: list[Effect] = []
        tours = self._site.state.tours
        for key, tour in tours.items():
            event: TourEvent = "resumed at its end" if tour.toured else "resumed"
            self._site.running[key] = RunningTour(tour.order.policy, event)
            for hop, device in tour.visiting().items():  # tours that wait for a device find it taken
                self._site.at[device] = key, hop
        for key, tour in tours.items():
            if tour.toured:
                ask = self._site.outbox.ask(("toured", key), self._site.cloud, tour.toured, now)
                effects += [*ask, *self.report(key, now)]
            else:
                effects += self._gather(key, now)
        return effects

    def take(self, message: Tour, now: float) -> list[Effect]:
        """The coordinator asks for a tour."""
        key, event = key_of(message.id), self._order_event(message)
        self._step(key, event)
        match event:
            case "unfit order":
                return [Say(f"tour {message.id}: {_unfit(message)}", "warning", message.id.about())]
            case "repeated order":
                return self.report(key, now)
            case "newer order":
                return [*self._drop(key, now), *self._begin(message, now)]
            case "order":
                return self._begin(message, now)
            case _:
                return []

    def _order_event(self, message: Tour) -> TourEvent:
        """What an order is to the tour that is here, or to what is remembered of those that were."""
        key, attempt = key_of(message.id), message.id.attempt
        held = self._site.state.tours.get(key)
        if _unfit(message):
            return "unfit order"
        if held is None:
            return "order" if attempt > self._site.state.fences.get(key, -1) else "old order"
        # An order that asks for something else under the same number takes the place of one that has not set out: the
        # coordinator knows best, and what the first one needs may not be there.
        other = message.id == held.order.id and message != held.order and self._site.running[key].state == GATHERING
        if attempt > held.order.id.attempt or other:
            return "newer order"
        return "repeated order" if message.id == held.order.id else "old order"

    def _step(self, key: Key, event: TourEvent) -> None:
        """An event for a tour that may not be here."""
        if running := self._site.running.get(key):
            running.step(event)
        else:
            TOUR.step(NOT_HERE, event)

    def _begin(self, message: Tour, now: float) -> list[Effect]:
        """Journal a new tour, report it, and get what its devices will need."""
        key = key_of(message.id)
        taken = self._site.write(TourTaken(message))
        self._site.running[key] = RunningTour(message.policy, "order")
        taken_up = Say(_description(message), about=message.id.about())
        return [taken, taken_up, *self.report(key, now), *self._gather(key, now)]

    def _gather(self, key: Key, now: float) -> list[Effect]:
        """Get what the tour's devices will need, then set out."""
        tour, running = self._site.tour(key)
        running.heartbeat_at, running.gather_at = now, None
        self._site.alarm.set((key, None), now)
        needed = {ref.digest: ref for ref in [tour.order.kit, *tour.order.vectors.values()]}
        self._site.fetches.wait((key, None), needed)
        return [Pull(ref, self._site.cloud) for ref in needed.values()]

    def gathered(self, key: Key, now: float) -> list[Effect]:
        """All is here: set out."""
        running = self._site.running[key]
        running.step("fetched")
        running.gather_at = None
        return self.go_on(key, now)

    def not_gathered(self, key: Key, reason: str, now: float) -> list[Effect]:
        """Something that the tour's devices will need cannot be had now."""
        self._site.running[key].step("fetch failed")
        return self._gather_later(key, f"what it needs could not be fetched ({reason})", now)

    def _gather_later(self, key: Key, reason: str, now: float) -> list[Effect]:
        self._site.running[key].gather_at = now + RETRY
        self._site.alarm.set((key, None), now + RETRY)
        it = self._site.state.tours[key].order.id
        return [Say(f"tour {it}: {reason}", "warning", it.about())]

    def dismissed(self, message: TourCancel | TourAccepted | TourDiscarded, now: float) -> list[Effect]:
        """The coordinator has what it wants of a tour, or wants it no more."""
        key = key_of(message.tour)
        tour = self._site.state.tours.get(key)
        if tour is None or tour.order.id.attempt > message.tour.attempt:
            self._step(key, "old dismissal")
            return []
        self._step(key, "dismissed")
        home = isinstance(message, TourAccepted)
        text = "the tour is accepted" if home else "the tour is wanted no more"
        return [Say(text, "step", message.tour.about()), *self._drop(key, now)]

    def _drop(self, key: Key, now: float) -> list[Effect]:
        """Forget a tour, call its visits off, and let those go on that waited for its devices."""
        devices = list(self._site.state.tours[key].visiting().values())
        effects = [*self._site.undo((key, None)), *self.visits.call_off(key)]
        del self._site.running[key]
        self._site.outbox.answered(("toured", key))
        self._site.fetches.forget((key, None))
        self._site.alarm.forget((key, None))
        effects.append(self._site.write(TourDropped(key)))
        for device in devices:
            effects += self.visits.free(device, now)
        return effects

    def go_on(self, key: Key, now: float, after: int | None = None) -> list[Effect]:
        """Hand the model to the devices that are due (after one visit: to those that it kept waiting), or end."""
        tour, running = self._site.tour(key)
        if running.state != LEADING:
            return []
        if tour.finished:
            return self._wrap_up(key, now)
        if tour.complete:
            return self._merge(key, now)
        hops = tour.wave if after is None or after not in tour.wave else (after,)
        effects = [effect for hop in hops for effect in self.visits.hand(key, hop, now)]
        return [*effects, *self._report_news(key, now)] if effects or tour.results else []

    def _merge(self, key: Key, now: float) -> list[Effect]:
        """A wave is over: merge what its devices made, or go on with the model as it was if no visit was kept."""
        tour, running = self._site.tour(key)
        if work := merge_of(tour):
            running.step("wave over")
            return self._site.do((key, None), tour.attempts, work)
        running.step("wave lost")
        return [self._site.write(WaveMerged(key, {}, {})), *self.go_on(key, now)]

    def merged(self, key: Key, merged: Merged, now: float) -> list[Effect]:
        """The mean is the tour's checkpoint: journal it, begin the next wave."""
        self._site.running[key].step("merged")
        blobs = tuple(dict.fromkeys(ref.digest for ref in [*merged.vectors.values(), *merged.handout.values()]))
        record, it = WaveMerged(key, merged.vectors, merged.handout), self._site.state.tours[key].order.id
        said = Say("a wave is merged", "step", it.about())
        return [self._site.write(record, sync=True, blobs=blobs), said, *self.go_on(key, now)]

    def failed(self, key: Key, event: DidNot, now: float) -> list[Effect]:
        """The work for a tour as a whole came to nothing."""
        if self._site.running[key].state == MERGING:
            return self._not_merged(key, event, now)
        it = self._site.state.tours[key].order.id
        warning = Say(f"tour {it}: {event.detail}", "warning", it.about())
        # It could not be made smaller for its way up: it goes as it is.
        return [warning, *self._end(key, "not wrapped", self._results(key), now)]

    def _not_merged(self, key: Key, event: DidNot, now: float) -> list[Effect]:
        """A wave could not be merged: that is tried again when the disk was full, and costs the wave otherwise."""
        tour, running = self._site.tour(key)
        if event.reason == "DiskFull":
            running.step("no room to merge")
            return self._gather_later(key, f"its models could not be merged ({event.detail})", now)
        running.step("merge failed")
        text = f"tour {tour.order.id}: a wave is lost, its models cannot be merged: {event.detail}"
        error = Say(text, "error", tour.order.id.about())
        return [self._site.write(WaveMerged(key, {}, {})), error, *self.go_on(key, now)]

    def _wrap_up(self, key: Key, now: float) -> list[Effect]:
        """The last visit is over: encode the result for its way to the coordinator, if it needs that, and end."""
        tour, running = self._site.tour(key)
        it, vectors = tour.order, self._results(key)
        running.step("last visit over")
        if not vectors or it.task.encoding == "float32":
            return self._end(key, "nothing to wrap", vectors, now)
        return self._site.do((key, None), tour.attempts, Wrap(it.kit, it.vectors["model"], vectors, it.task))

    def _results(self, key: Key) -> dict[str, Ref]:
        """What the tour has made; nothing when no visit was done, or only signatures were made."""
        tour = self._site.state.tours[key]
        task, start = tour.order.task, tour.order.vectors["model"]
        done = any(report.status == "done" for report in tour.reports)
        if not done or (task.kind == "estimate" and tour.vectors["model"] == start):
            return {}
        named = {"model", *task.objective.returns, *task.objective.tells}
        return {name: ref for name, ref in tour.vectors.items() if name in named}

    def wrapped(self, key: Key, vectors: dict[str, Ref], now: float) -> list[Effect]:
        """The result is ready for its way to the coordinator."""
        return self._end(key, "wrapped", vectors, now)

    def _end(self, key: Key, event: TourEvent, vectors: dict[str, Ref], now: float) -> list[Effect]:
        """The tour is over: journal its result, and offer it until it is accepted."""
        tour, running = self._site.tour(key)
        running.step(event)
        data = pack_blob(tour.reports)
        reports = ref_of(data)
        toured = Toured(tour.order.id, vectors, tour.samples, reports, min(running.traffic, MOST_BYTES))
        blobs = (reports.digest, *(ref.digest for ref in vectors.values()))
        ended = self._site.write(TourEnded(key, toured), sync=True, blobs=blobs)
        ask = self._site.outbox.ask(("toured", key), self._site.cloud, toured, now)
        done = len(tour.reports) - tour.lost
        text = f"tour {tour.order.id} ended: {done} of {tour.visits} visits done"
        summary = Say(text, about=tour.order.id.about())
        # Whoever watches sees how the last hop ended, too; where all went as planned there is nothing to see.
        last = self.report(key, now) if tour.lost else []
        return [Keep(reports.digest, data), ended, *last, *ask, summary]

    def overdue(self, key: Key, now: float) -> list[Effect]:
        """The alarm went off for a tour: it may be time to fetch again, or to give a sign of life."""
        running = self._site.running.get(key)
        if running is None:
            return []
        effects: list[Effect] = []
        if running.gather_at is not None and running.gather_at <= now:
            running.step("time to fetch again")
            effects += self._gather(key, now)
        if running.heartbeat_at is not None and running.heartbeat_at <= now:
            effects += self.report(key, now)
        for when in (running.gather_at, running.heartbeat_at):
            if when is not None:
                self._site.alarm.set((key, None), when)
        return effects

    def _report_news(self, key: Key, now: float) -> list[Effect]:
        """Something has changed: the coordinator hears of it now, or soon if it has just heard of the tour."""
        running = self._site.running[key]
        if running.reported_at is None or running.reported_at + running.pause <= now:
            return self.report(key, now)
        running.heartbeat_at = running.reported_at + running.pause
        self._site.alarm.set((key, None), running.heartbeat_at)
        return []

    def report(self, key: Key, now: float) -> list[Effect]:
        """A sign of life to the coordinator: with waves, of the device that was heard of last."""
        tour, running = self._site.tour(key)
        running.reported_at, running.heartbeat_at = now, now + running.heartbeat
        self._site.alarm.set((key, None), running.heartbeat_at)
        hop = running.latest if tour.order.merges else tour.hop
        asked, visit = (tour.open_visits.get(hop), running.visits.get(hop)) if hop is not None else (None, None)
        progress = TourProgress(
            tour.order.id,
            tour.over,
            tour.visits,
            asked.device if asked else None,
            *(visit.steps if visit else (0, 0)),
            min(tour.lost, MOST),
            min(running.traffic, MOST_BYTES),
            told_of(tour),
        )
        return [Send(self._site.cloud, progress)]


def _unfit(tour: Tour) -> str | None:
    """Why an order cannot be followed at all."""
    return "there is no model to lead along" if "model" not in tour.vectors else objection(tour)


def _description(tour: Tour) -> str:
    """A tour for the log: its devices, and how often they are merged."""
    between, more = (", ", f", merged {tour.merges} times") if tour.merges else (" > ", "")
    shown = between.join(tour.hops[:DEVICES_NAMED]) + (" ..." if len(tour.hops) > DEVICES_NAMED else "")
    return f"tour {tour.id}: {shown}{more}"
