"""Tours: taken from the coordinator, led on from visit to visit or from merge to merge, and ended."""

from __future__ import annotations

from typing import TYPE_CHECKING

from hierarchy.edge.gate import Wrap
from hierarchy.edge.merge import merge_of, objection
from hierarchy.edge.records import TourDropped, TourEnded, TourTaken, WaveMerged, key_of
from hierarchy.edge.running import Leg
from hierarchy.edge.visits import Visits
from sojourn.node.machine import Keep, Pull, Say, Send
from sojourn.protocol.envelope import pack_blob
from sojourn.protocol.messages import Cancel, Toured, TourProgress
from sojourn.protocol.topics import Address
from sojourn.store.blobs import ref_of

if TYPE_CHECKING:
    from hierarchy.edge.merge import Merged
    from hierarchy.edge.records import Key
    from hierarchy.edge.site import Site
    from sojourn.node.machine import DidNot, Effect
    from sojourn.protocol.messages import Tour, TourAccepted, TourCancel, TourDiscarded
    from sojourn.protocol.wire import Ref

RETRY = 5.0
"""Seconds until what could not be fetched or merged is tried again."""
SHOWN = 12


class Tours:
    """The tours of a site, and the visits that they are made of."""

    def __init__(self, site: Site) -> None:
        self._site = site
        self.visits = Visits(site, self.go_on, self._tell_news)

    def resume(self, now: float) -> list[Effect]:
        """Take up every tour where its checkpoint is."""
        effects: list[Effect] = []
        tours = self._site.state.tours
        for key, tour in tours.items():
            self._site.legs[key] = Leg(tour.order.policy)
            for hop, device in tour.visiting().items():  # tours that wait for a device find it taken
                self._site.at[device] = key, hop
        for key, tour in tours.items():
            if tour.toured:
                ask = self._site.outbox.ask(("toured", key), self._site.cloud, tour.toured, now)
                effects += [*ask, *self.tell(key, now)]
            else:
                effects += self._gather(key, now)
        return effects

    def take(self, message: Tour, now: float) -> list[Effect]:
        """The coordinator asks for a tour."""
        key = key_of(message.id)
        refusal = "there is no model to lead along" if "model" not in message.vectors else objection(message)
        if refusal:
            return [Say(f"tour {message.id}: {refusal}", "warning")]
        if held := self._site.state.tours.get(key):
            if message.id.attempt <= held.order.id.attempt:
                return self.tell(key, now) if message.id == held.order.id else []
        elif message.id.attempt <= self._site.state.fences.get(key, -1):
            return []
        effects = self._drop(key, now) if held else []
        taken = self._site.write(TourTaken(message))
        self._site.legs[key] = Leg(message.policy)
        return [*effects, taken, Say(_told(message)), *self.tell(key, now), *self._gather(key, now)]

    def _gather(self, key: Key, now: float) -> list[Effect]:
        """Get what the tour's devices will need, then set out."""
        tour, leg = self._site.tour(key)
        leg.heartbeat_at, leg.gather_at, leg.gathering = now, None, True
        self._site.alarm.set((key, None), now)
        needed = {ref.digest: ref for ref in [tour.order.kit, *tour.order.vectors.values()]}
        self._site.fetches.wait((key, None), needed)
        return [Pull(ref, self._site.cloud) for ref in needed.values()]

    def gathered(self, key: Key, now: float) -> list[Effect]:
        """All is here: set out."""
        leg = self._site.legs[key]
        leg.gathering, leg.gather_at = False, None
        return self.go_on(key, now)

    def gather_again(self, key: Key, reason: str, now: float) -> list[Effect]:
        """Something that the tour needs cannot be had now."""
        self._site.legs[key].gather_at = now + RETRY
        self._site.alarm.set((key, None), now + RETRY)
        return [Say(f"tour {self._site.state.tours[key].order.id}: {reason}", "warning")]

    def settle(self, message: TourCancel | TourAccepted | TourDiscarded, now: float) -> list[Effect]:
        """The coordinator has what it wants of a tour."""
        key = key_of(message.tour)
        tour = self._site.state.tours.get(key)
        return self._drop(key, now) if tour and tour.order.id.attempt <= message.tour.attempt else []

    def _drop(self, key: Key, now: float) -> list[Effect]:
        tour, leg = self._site.tour(key)
        visiting = tour.visiting()
        effects = self._site.undo((key, None))
        for hop in list(leg.stays):
            effects += self._site.undo((key, hop))
        effects += [Send(Address("device", device), Cancel(tour.visit(hop))) for hop, device in visiting.items()]
        for hop, device in visiting.items():
            self.visits.release((key, hop), device)
        del self._site.legs[key]
        self._site.outbox.answered(("toured", key))
        self._site.fetches.forget((key, None))
        self._site.alarm.forget((key, None))
        effects.append(self._site.write(TourDropped(key)))
        for device in visiting.values():
            effects += self.visits.free(device, now)
        return effects

    def go_on(self, key: Key, now: float, after: int | None = None) -> list[Effect]:
        """Hand the model to the devices that are due (after one visit: to those that it kept waiting), or end."""
        tour, leg = self._site.tour(key)
        if leg.gathering:
            return []
        if tour.finished:
            return self._wrap_up(key, now)
        if tour.complete:
            return self._merge(key, now)
        hops = tour.wave if after is None or after not in tour.wave else (after,)
        effects = [effect for hop in hops for effect in self.visits.hand(key, hop, now)]
        return [*effects, *self._tell_news(key, now)] if effects or tour.results else []

    def _merge(self, key: Key, now: float) -> list[Effect]:
        tour = self._site.state.tours[key]
        if work := merge_of(tour):
            return self._site.do((key, None), tour.attempts, work)
        return [self._site.write(WaveMerged(key, {}, {})), *self.go_on(key, now)]

    def merged(self, key: Key, merged: Merged, now: float) -> list[Effect]:
        """The mean is the tour's checkpoint: journal it, begin the next wave."""
        blobs = tuple(dict.fromkeys(ref.digest for ref in [*merged.vectors.values(), *merged.handout.values()]))
        record = WaveMerged(key, merged.vectors, merged.handout)
        return [self._site.write(record, sync=True, blobs=blobs), *self.go_on(key, now)]

    def failed(self, key: Key, event: DidNot, now: float) -> list[Effect]:
        """A tour's own work came to nothing."""
        tour = self._site.state.tours[key]
        if not tour.complete:  # it could not be made smaller for its way up: it goes as it is
            said = Say(f"tour {tour.order.id}: {event.detail}", "warning")
            return [said, *self.end(key, self._results(key), now)]
        if event.reason == "DiskFull":
            return self.gather_again(key, f"its models could not be merged ({event.detail})", now)
        said = Say(f"tour {tour.order.id}: a wave is lost, its models cannot be merged: {event.detail}", "error")
        return [self._site.write(WaveMerged(key, {}, {})), said, *self.go_on(key, now)]

    def _wrap_up(self, key: Key, now: float) -> list[Effect]:
        tour, vectors = self._site.state.tours[key], self._results(key)
        it = tour.order
        if not vectors or it.task.encoding == "float32":
            return self.end(key, vectors, now)
        return self._site.do((key, None), tour.attempts, Wrap(it.kit, it.vectors["model"], vectors, it.task))

    def _results(self, key: Key) -> dict[str, Ref]:
        """What the tour has made; nothing when no visit was done, or only signatures were made."""
        tour = self._site.state.tours[key]
        task, start = tour.order.task, tour.order.vectors["model"]
        done = any(report.status == "done" for report in tour.reports)
        if not done or (task.kind == "estimate" and tour.vectors["model"] == start):
            return {}
        return {name: ref for name, ref in tour.vectors.items() if name in {"model", *task.objective.returns}}

    def end(self, key: Key, vectors: dict[str, Ref], now: float) -> list[Effect]:
        """The tour is over: journal its result, and offer it until it is accepted."""
        tour, leg = self._site.tour(key)
        data = pack_blob(tour.reports)
        reports = ref_of(data)
        toured = Toured(tour.order.id, vectors, tour.samples, reports, leg.traffic)
        blobs = (reports.digest, *(ref.digest for ref in vectors.values()))
        ended = self._site.write(TourEnded(key, toured), sync=True, blobs=blobs)
        ask = self._site.outbox.ask(("toured", key), self._site.cloud, toured, now)
        done = len(tour.reports) - tour.lost
        said = Say(f"tour {tour.order.id} ended: {done} of {tour.visits} visits done")
        return [Keep(reports.digest, data), ended, *ask, said]

    def overdue(self, key: Key, now: float) -> list[Effect]:
        """The alarm went off for a tour: it may be time to fetch again, or to give a sign of life."""
        leg = self._site.legs.get(key)
        if leg is None:
            return []
        effects: list[Effect] = []
        if leg.gather_at is not None and leg.gather_at <= now:
            effects += self._gather(key, now)
        if leg.heartbeat_at is not None and leg.heartbeat_at <= now:
            effects += self.tell(key, now)
        for when in (leg.gather_at, leg.heartbeat_at):
            if when is not None:
                self._site.alarm.set((key, None), when)
        return effects

    def _tell_news(self, key: Key, now: float) -> list[Effect]:
        """Something has changed: the coordinator hears of it now, or soon if it has just heard of the tour."""
        leg = self._site.legs[key]
        if leg.told_at is None or leg.told_at + leg.pause <= now:
            return self.tell(key, now)
        leg.heartbeat_at = leg.told_at + leg.pause
        self._site.alarm.set((key, None), leg.heartbeat_at)
        return []

    def tell(self, key: Key, now: float) -> list[Effect]:
        """A sign of life to the coordinator: with waves, of the device that was heard of last."""
        tour, leg = self._site.tour(key)
        leg.told_at, leg.heartbeat_at = now, now + leg.heartbeat
        self._site.alarm.set((key, None), leg.heartbeat_at)
        hop = leg.latest if tour.order.merges else tour.hop
        stop, stay = (tour.stops.get(hop), leg.stays.get(hop)) if hop is not None else (None, None)
        progress = TourProgress(
            tour.order.id, tour.over, tour.visits, stop.device if stop else None, *(stay.steps if stay else (0, 0)),
            tour.lost, leg.traffic,
        )  # fmt: skip
        return [Send(self._site.cloud, progress)]


def _told(tour: Tour) -> str:
    between, more = (", ", f", merged {tour.merges} times") if tour.merges else (" > ", "")
    shown = between.join(tour.hops[:SHOWN]) + (" ..." if len(tour.hops) > SHOWN else "")
    return f"tour {tour.id}: {shown}{more}"
