"""Tours: take them from the coordinator, lead them from visit to visit or merge to merge, report and end them."""

from __future__ import annotations

from hierarchy.edge.gate import Wrap
from hierarchy.edge.merge import Merged, merge_of, objection
from hierarchy.edge.records import Key, TourDropped, TourEnded, TourState, TourTaken, WaveMerged, key_of
from hierarchy.edge.site import RunningTour, Site
from hierarchy.edge.tables import TOUR, TourEvent, TourStep
from hierarchy.edge.visits import Visits
from sojourn.node.machine import Effect, Log, Pull, Send, StoreBlob, WorkFailed
from sojourn.protocol.envelope import pack_blob
from sojourn.protocol.limits import LABEL, MAX_BYTES, MAX_COUNT
from sojourn.protocol.messages import Tour, TourAccepted, TourCancel, TourDiscarded, Toured, TourProgress
from sojourn.protocol.wire import HopEnd, HopEnds, Ref
from sojourn.store.blobs import ref_of

MAX_HOP_ENDS = 50
"""At most this many hop ends are reported, the newest: a sign of life is a small message."""


def hop_ends_of(tour: TourState) -> HopEnds | None:
    """Return how the tour's hops ended; None if all went as planned, which the plan and the hop count show."""
    merges, hops = tour.order.merges, tour.order.hops
    if not merges and not tour.lost:
        return None
    ended = [
        HopEnd(it.hop, it.device, it.status, it.reason[:LABEL])
        for it in tour.reports
        if (it.hop >= tour.wave.start if merges else it.status != "done" or it.device != hops[it.hop])
    ]
    return HopEnds(tuple(ended[-MAX_HOP_ENDS:]), min(merges, MAX_COUNT))


# Each change of a tour is a row of `hierarchy.edge.tables.TOUR`.

RETRY_SECONDS = 5.0
"""Seconds until a failed fetch or merge is retried."""
MAX_NAMED_DEVICES = 12
"""At most this many devices of a tour are named in the log."""


class TourLeader:
    """Leads the tours of a site; `visits` leads their visits."""

    def __init__(self, site: Site) -> None:
        self._site = site
        self.visits = Visits(site, self.advance, self._report_news)

    def resume(self, now: float) -> list[Effect]:
        """Resume every tour at its checkpoint."""
        effects: list[Effect] = []
        tours = self._site.state.tours
        for key, tour in tours.items():
            event = TourEvent.RESUMED_AT_ITS_END if tour.toured else TourEvent.RESUMED
            self._site.running[key] = RunningTour(tour.order.policy, event)
            for hop, device in tour.visiting().items():  # tours that wait for a device see that it is busy
                self._site.at[device] = key, hop
        for key, tour in tours.items():
            if tour.toured:
                ask = self._site.outbox.ask(("toured", key), self._site.cloud, tour.toured, now)
                effects += [*ask, *self.report(key, now)]
            else:
                effects += self._gather(key, now)
        return effects

    def take(self, message: Tour, now: float) -> list[Effect]:
        """Take an order for a tour from the coordinator."""
        key, event = key_of(message.id), self._order_event(message)
        self._step(key, event)
        match event:
            case TourEvent.UNFIT_ORDER:
                return [Log(f"tour {message.id}: {_unfit(message)}", "warning", message.id.about())]
            case TourEvent.REPEATED_ORDER:
                return self.report(key, now)
            case TourEvent.NEWER_ORDER:
                return [*self._drop(key, now), *self._begin(message, now)]
            case TourEvent.ORDER:
                return self._begin(message, now)
            case _:
                return []

    def _order_event(self, message: Tour) -> TourEvent:
        """Return the event that an order is to the tour held, or to remembered past tours."""
        key, attempt = key_of(message.id), message.id.attempt
        held = self._site.state.tours.get(key)
        if _unfit(message):
            return TourEvent.UNFIT_ORDER
        if held is None:
            return TourEvent.ORDER if attempt > self._site.state.fences.get(key, -1) else TourEvent.OLD_ORDER
        # An order with the same number but other content replaces a tour that has not started: the coordinator's latest
        # order counts, and inputs of the first one may be unavailable.
        same_number, waits = message.id == held.order.id, self._site.running[key].state == TourStep.GATHERING
        other = same_number and message != held.order and waits
        if attempt > held.order.id.attempt or other:
            return TourEvent.NEWER_ORDER
        return TourEvent.REPEATED_ORDER if same_number else TourEvent.OLD_ORDER

    def _step(self, key: Key, event: TourEvent) -> None:
        """Apply an event to a tour that may not be held."""
        if running := self._site.running.get(key):
            running.step(event)
        else:
            TOUR.step(TourStep.NOT_HERE, event)

    def _begin(self, message: Tour, now: float) -> list[Effect]:
        """Journal a new tour, report it, and fetch its inputs."""
        key = key_of(message.id)
        taken = self._site.write(TourTaken(message))
        self._site.running[key] = RunningTour(message.policy, TourEvent.ORDER)
        taken_up = Log(_description(message), about=message.id.about())
        return [taken, taken_up, *self.report(key, now), *self._gather(key, now)]

    def _gather(self, key: Key, now: float) -> list[Effect]:
        """Fetch the tour's inputs, then start."""
        tour, running = self._site.tour(key)
        running.heartbeat_at, running.gather_at = now, None
        self._site.alarm.set((key, None), now)
        needed = {ref.digest: ref for ref in [tour.order.kit, *tour.order.vectors.values()]}
        self._site.fetches.wait((key, None), needed)
        return [Pull(ref, self._site.cloud) for ref in needed.values()]

    def gathered(self, key: Key, now: float) -> list[Effect]:
        """Start a tour whose inputs are fetched."""
        running = self._site.running[key]
        running.step(TourEvent.FETCHED)
        running.gather_at = None
        return self.advance(key, now)

    def not_gathered(self, key: Key, reason: str, now: float) -> list[Effect]:
        """Retry later after a failed fetch of the tour's inputs."""
        self._site.running[key].step(TourEvent.FETCH_FAILED)
        return self._gather_later(key, f"cannot fetch its inputs ({reason})", now)

    def _gather_later(self, key: Key, reason: str, now: float) -> list[Effect]:
        self._site.running[key].gather_at = now + RETRY_SECONDS
        self._site.alarm.set((key, None), now + RETRY_SECONDS)
        it = self._site.state.tours[key].order.id
        return [Log(f"tour {it}: {reason}", "warning", it.about())]

    def dismissed(self, message: TourCancel | TourAccepted | TourDiscarded, now: float) -> list[Effect]:
        """Drop a tour that the coordinator has accepted or no longer wants."""
        key = key_of(message.tour)
        tour = self._site.state.tours.get(key)
        if tour is None or tour.order.id.attempt > message.tour.attempt:
            self._step(key, TourEvent.OLD_DISMISSAL)
            return []
        self._step(key, TourEvent.DISMISSED)
        accepted = isinstance(message, TourAccepted)
        text = "the coordinator accepted the tour" if accepted else "the coordinator cancelled the tour"
        return [Log(text, "step", message.tour.about()), *self._drop(key, now)]

    def _drop(self, key: Key, now: float) -> list[Effect]:
        """Forget a tour, cancel its visits, and continue tours that waited for its devices."""
        devices = list(self._site.state.tours[key].visiting().values())
        effects = [*self._site.cancel_work((key, None)), *self.visits.cancel(key)]
        del self._site.running[key]
        self._site.outbox.answered(("toured", key))
        self._site.fetches.forget((key, None))
        self._site.alarm.forget((key, None))
        effects.append(self._site.write(TourDropped(key)))
        for device in devices:
            effects += self.visits.free(device, now)
        return effects

    def advance(self, key: Key, now: float, after: int | None = None) -> list[Effect]:
        """Send the model to the devices that are due (after one visit: to those that it kept waiting), or end."""
        tour, running = self._site.tour(key)
        if running.state != TourStep.LEADING:
            return []
        if tour.finished:
            return self._wrap_up(key, now)
        if tour.complete:
            return self._merge(key, now)
        hops = tour.wave if after is None or after not in tour.wave else (after,)
        effects = [effect for hop in hops for effect in self.visits.start(key, hop, now)]
        return [*effects, *self._report_news(key, now)] if effects or tour.results else []

    def _merge(self, key: Key, now: float) -> list[Effect]:
        """Merge a complete wave, or continue with the unchanged model if no visit was kept."""
        tour, running = self._site.tour(key)
        if work := merge_of(tour):
            running.step(TourEvent.WAVE_OVER)
            return self._site.start_work((key, None), tour.attempts, work)
        running.step(TourEvent.WAVE_LOST)
        return [self._site.write(WaveMerged(key, {}, {})), *self.advance(key, now)]

    def merged(self, key: Key, merged: Merged, now: float) -> list[Effect]:
        """Journal the mean as the tour's checkpoint and begin the next wave."""
        self._site.running[key].step(TourEvent.MERGED)
        blobs = tuple(dict.fromkeys(ref.digest for ref in [*merged.vectors.values(), *merged.wire_vectors.values()]))
        record, it = WaveMerged(key, merged.vectors, merged.wire_vectors), self._site.state.tours[key].order.id
        logged = Log("merged a wave", "step", it.about())
        return [self._site.write(record, sync=True, blobs=blobs), logged, *self.advance(key, now)]

    def failed(self, key: Key, event: WorkFailed, now: float) -> list[Effect]:
        """Handle failed work for a tour as a whole."""
        if self._site.running[key].state == TourStep.MERGING:
            return self._not_merged(key, event, now)
        it = self._site.state.tours[key].order.id
        warning = Log(f"tour {it}: {event.detail}", "warning", it.about())
        # The result could not be compressed: it is sent as it is.
        return [warning, *self._end(key, TourEvent.NOT_WRAPPED, self._results(key), now)]

    def _not_merged(self, key: Key, event: WorkFailed, now: float) -> list[Effect]:
        """Handle a failed merge: retry it if the disk was full, otherwise lose the wave."""
        tour, running = self._site.tour(key)
        if event.reason == "disk":
            running.step(TourEvent.NO_ROOM_TO_MERGE)
            return self._gather_later(key, f"cannot merge its models ({event.detail})", now)
        running.step(TourEvent.MERGE_FAILED)
        text = f"tour {tour.order.id}: a wave is lost, its models cannot be merged: {event.detail}"
        error = Log(text, "error", tour.order.id.about())
        return [self._site.write(WaveMerged(key, {}, {})), error, *self.advance(key, now)]

    def _wrap_up(self, key: Key, now: float) -> list[Effect]:
        """Encode the result for the coordinator after the last visit, if needed, and end."""
        tour, running = self._site.tour(key)
        it, vectors = tour.order, self._results(key)
        running.step(TourEvent.LAST_VISIT_OVER)
        if not vectors or it.task.encoding == "float32":
            return self._end(key, TourEvent.NOTHING_TO_WRAP, vectors, now)
        return self._site.start_work((key, None), tour.attempts, Wrap(it.kit, it.vectors["model"], vectors, it.task))

    def _results(self, key: Key) -> dict[str, Ref]:
        """Return the tour's vectors; empty if no visit was done, or only signatures were made."""
        tour = self._site.state.tours[key]
        task, start = tour.order.task, tour.order.vectors["model"]
        done = any(report.status == "done" for report in tour.reports)
        if not done or (task.kind == "estimate" and tour.vectors["model"] == start):
            return {}
        named = {"model", *task.objective.returns, *task.objective.reports}
        return {name: ref for name, ref in tour.vectors.items() if name in named}

    def wrapped(self, key: Key, vectors: dict[str, Ref], now: float) -> list[Effect]:
        """End a tour whose result is encoded."""
        return self._end(key, TourEvent.WRAPPED, vectors, now)

    def _end(self, key: Key, event: TourEvent, vectors: dict[str, Ref], now: float) -> list[Effect]:
        """Journal the tour's result, and offer it until it is accepted."""
        tour, running = self._site.tour(key)
        running.step(event)
        data = pack_blob(tour.reports)
        reports = ref_of(data)
        toured = Toured(tour.order.id, vectors, tour.samples, reports, min(running.traffic, MAX_BYTES))
        blobs = (reports.digest, *(ref.digest for ref in vectors.values()))
        ended = self._site.write(TourEnded(key, toured), sync=True, blobs=blobs)
        ask = self._site.outbox.ask(("toured", key), self._site.cloud, toured, now)
        done = len(tour.reports) - tour.lost
        text = f"tour {tour.order.id} ended: {done} of {tour.visits} visits done"
        summary = Log(text, about=tour.order.id.about())
        # Observers also see how the last hop ended; if all went as planned, there is nothing to add.
        last = self.report(key, now) if tour.lost else []
        return [StoreBlob(reports.digest, data), ended, *last, *ask, summary]

    def overdue(self, key: Key, now: float) -> list[Effect]:
        """Handle a timer of a tour: retry a fetch, or send a sign of life, if due."""
        running = self._site.running.get(key)
        if running is None:
            return []
        effects: list[Effect] = []
        if running.gather_at is not None and running.gather_at <= now:
            running.step(TourEvent.TIME_TO_FETCH_AGAIN)
            effects += self._gather(key, now)
        if running.heartbeat_at is not None and running.heartbeat_at <= now:
            effects += self.report(key, now)
        for when in (running.gather_at, running.heartbeat_at):
            if when is not None:
                self._site.alarm.set((key, None), when)
        return effects

    def _report_news(self, key: Key, now: float) -> list[Effect]:
        """Report a change to the coordinator now, or soon if the tour was just reported."""
        running = self._site.running[key]
        if running.reported_at is None or running.reported_at + running.pause <= now:
            return self.report(key, now)
        running.heartbeat_at = running.reported_at + running.pause
        self._site.alarm.set((key, None), running.heartbeat_at)
        return []

    def report(self, key: Key, now: float) -> list[Effect]:
        """Send a sign of life to the coordinator: with waves, about the device of the latest message."""
        tour, running = self._site.tour(key)
        running.reported_at, running.heartbeat_at = now, now + running.heartbeat
        self._site.alarm.set((key, None), running.heartbeat_at)
        hop = running.latest if tour.order.merges else tour.hop
        asked, visit = (tour.open_visits.get(hop), running.visits.get(hop)) if hop is not None else (None, None)
        progress = TourProgress(
            tour.order.id,
            tour.ended_visits,
            tour.visits,
            asked.device if asked else None,
            *(visit.steps if visit else (0, 0)),
            min(tour.lost, MAX_COUNT),
            min(running.traffic, MAX_BYTES),
            hop_ends_of(tour),
        )
        return [Send(self._site.cloud, progress)]


def _unfit(tour: Tour) -> str | None:
    """Return why an order cannot be followed at all."""
    return "the order has no model" if "model" not in tour.vectors else objection(tour)


def _description(tour: Tour) -> str:
    """Describe a tour for the log: its devices, and how often they are merged."""
    between, more = (", ", f", merged {tour.merges} times") if tour.merges else (" > ", "")
    shown = between.join(tour.hops[:MAX_NAMED_DEVICES]) + (" ..." if len(tour.hops) > MAX_NAMED_DEVICES else "")
    return f"tour {tour.id}: {shown}{more}"
