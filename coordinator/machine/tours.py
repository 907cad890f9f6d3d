"""The tours of the current round: sent, followed, and received; all of it is recovered after a restart."""

from __future__ import annotations

import math
from collections import Counter
from collections.abc import Callable, Iterable, Mapping

from coordinator.aggregators.contributions import weighting_of
from coordinator.job_state import JobState
from coordinator.machine.job_log import log_tour_sent
from coordinator.records import TourPlan
from coordinator.rounds.orders import Leg, task_of, waves_of
from coordinator.rounds.results import REPORT_BYTES
from coordinator.state import CoordinatorState
from sojourn.errors import Fault
from sojourn.model.vectors import MAX_REPORTED_BYTES
from sojourn.node.machine import Effect, Log, Pull, Send
from sojourn.node.pending import Fetches, Outbox, TimerHeap
from sojourn.parts import TourBounds
from sojourn.protocol.limits import SHORTEST
from sojourn.protocol.messages import (
    MOST_KEYS,
    Tour,
    TourAccepted,
    TourCancel,
    TourDiscarded,
    Toured,
    TourProgress,
    TourSigning,
)
from sojourn.protocol.topics import Address
from sojourn.protocol.wire import HopEnds, TourId
from sojourn.randomness import derive

KeysOf = Callable[[Iterable[str]], dict[str, bytes]]


def tour_message(state: JobState, tour: TourPlan, bounds: TourBounds, keys: Mapping[str, bytes] | None = None) -> Tour:
    """Return the message that sends a planned tour to its site, with its devices' keys if they are few enough."""
    if state.kit is None:
        raise Fault(f"{state.name} has tours but was not compiled")
    job, strategy = state.settings, state.strategy
    vectors = {name: state.travelling_vector(held) for name, held in tour.start.items()}
    seed = derive(job.seed, state.phase, state.round if state.phase == "train" else 0)
    if state.phase == "estimate":
        on_device = getattr(strategy.estimator, "where", "server") == "device"
        if state.exemplars and on_device and strategy.estimator.exemplars:
            vectors["exemplars"] = state.exemplars
    elif job.gate.on and state.exemplars:
        vectors["gate"] = state.exemplars
    norms = state.norms if state.phase == "train" else ()
    return Tour(
        state.tour_id(tour), state.kit, vectors, tour.hops, tour.spares, task_of(state, tour), seed, job.tours.policy,
        job.gate.rules, norms, waves_of(state), weighting_of(strategy.aggregator), bounds,
        _signing(state, keys or {}), state.size,
    )  # fmt: skip


def _signing(state: JobState, keys: Mapping[str, bytes]) -> TourSigning | None:
    """Return the job's mandate and the keys of the devices' signatures; unset if there are none."""
    few_keys = dict(sorted(keys.items())) if 0 < len(keys) <= MOST_KEYS else {}
    return TourSigning(state.mandate, few_keys) if state.mandate or few_keys else None


FLOAT32 = 4
"""Maximum ratio of a model's size in float32 to its size in the smallest encoding."""


class RoundTours:
    """The volatile state of tours: leases, progress, results that are being fetched."""

    def __init__(self, outbox: Outbox, keys: KeysOf = lambda _devices: {}) -> None:
        """`keys` returns the keys with which devices sign."""
        self._keys = keys
        self.progress: dict[int, TourProgress] = {}
        self.moves = 0
        """How often a site reported progress of a tour."""
        self.ends: dict[int, HopEnds] = {}
        """The outcomes of the hops of the current round's tours, including completed tours."""
        self._outbox = outbox
        self._leases: dict[int, float] = {}
        """When each tour's lease ends, unless its site has sent something since."""
        self._lease_lengths: dict[int, float] = {}
        """The length of each lease in seconds."""
        self._deadlines: dict[int, float] = {}
        """When each tour must be complete, even if its site is alive."""
        self._alarm: TimerHeap[int] = TimerHeap()
        self._fetching: dict[int, tuple[str, Toured]] = {}
        """The results that are being fetched, and from which site."""
        self._received: dict[str, float] = {}
        """When each site last sent something."""
        self._fetches: Fetches[int] = Fetches()
        self._numbered: tuple[TourPlan, ...] = ()
        self._plans: dict[int, TourPlan] = {}
        self._legs: Counter[int] = Counter()

    def plan(self, state: JobState, number: int) -> TourPlan | None:
        """Return the tour with this number, if the current round has it."""
        self._number_tours(state)
        return self._plans.get(number)

    def gathered(self, state: JobState) -> bool:
        """Return whether every tour of the current leg is complete or given up; usually their count alone decides."""
        self._number_tours(state)
        out = sum(count for leg, count in self._legs.items() if leg <= state.leg)
        return len(state.arrived) + len(state.given_up) >= out and state.gathered

    def _number_tours(self, state: JobState) -> None:
        """Index the tours of the job's round, whenever they change."""
        if state.tours is not self._numbered:
            self._numbered = state.tours
            self.ends.clear()
            self._plans = {tour.number: tour for tour in state.tours}
            self._legs = Counter(tour.leg for tour in state.tours)

    def ask(self, state: JobState, tour: TourPlan, now: float) -> list[Effect]:
        """Ask a site to lead a tour; its deadline starts now."""
        self._deadlines.pop(tour.number, None)
        self.ends.pop(tour.number, None)
        return self._ask(state, tour, Leg(state, tour.leg), now)

    def _ask(self, state: JobState, tour: TourPlan, leg: Leg, now: float) -> list[Effect]:
        self._deadlines.setdefault(tour.number, now + leg.deadline(tour))
        self._lease(tour.number, now, state.settings.tours.site_lease)
        message = tour_message(state, tour, leg.bounds(tour), self._keys({*tour.hops, *tour.spares}))
        ask = self._outbox.ask(("tour", tour.number), Address("edge", tour.site), message, now)
        return [*log_tour_sent(message.id, tour), *ask]

    def ask_all(self, state: JobState, now: float) -> list[Effect]:
        """Request every tour that is still out."""
        out = [
            tour
            for tour in state.tours
            if tour.leg == state.leg and tour.number not in state.arrived and tour.number not in state.given_up
        ]
        for tour in out:
            self._deadlines.pop(tour.number, None)
        leg = Leg(state)
        return [effect for tour in out for effect in self._ask(state, tour, leg, now)]

    def ask_again(self, state: JobState, site: str, now: float) -> list[Effect]:
        """Request a reborn site's tours again, since it may have lost them."""
        out = [tour for tour in state.tours if tour.site == site and tour.number in self._leases]
        asked = [tour for tour in out if not self._outbox.open(("tour", tour.number))]
        legs = {number: Leg(state, number) for number in {tour.leg for tour in asked}}
        return [effect for tour in asked for effect in self._ask(state, tour, legs[tour.leg], now)]

    def past_deadline(self, number: int, now: float) -> bool:
        """Return whether a tour has exceeded its deadline."""
        return self._deadlines.get(number, math.inf) <= now

    def progressed(self, state: JobState | None, sender: Address, message: TourProgress, now: float) -> list[Effect]:
        """Handle a site's progress report about a tour of the current job."""
        found = self._current(state, sender, message.tour)
        if found is None:
            return [Send(sender, TourCancel(message.tour))]
        self.on_progress(*found, message, now)
        return []

    def toured(
        self, durable: CoordinatorState, current: JobState | None, sender: Address, message: Toured
    ) -> list[Effect]:
        """Handle a site's report that a tour has ended; `current` is the current job."""
        found = self._current(current, sender, message.tour)
        if found is None:
            if _counted(durable, message.tour):
                return [Send(sender, TourAccepted(message.tour))]
            return [Send(sender, TourDiscarded(message.tour, "this attempt is no longer wanted"))]
        state, tour = found
        if tour.number in state.arrived:
            return [Send(sender, TourAccepted(message.tour))]
        if reason := _mismatch(state, tour, message):
            about = message.tour.about(site=sender.name)
            warning = Log(f"site {sender.name}, tour {message.tour}: {reason}", "warning", about)
            return [Send(sender, TourDiscarded(message.tour, reason)), warning]
        return self.fetch(tour, message)

    def _current(self, state: JobState | None, sender: Address, tour_id: TourId) -> tuple[JobState, TourPlan] | None:
        """Return the job and tour that are meant, if this is the attempt that counts."""
        if state is None or state.name != tour_id.job:
            return None
        tour = self.plan(state, tour_id.number)
        if tour is None or tour.site != sender.name or state.tour_id(tour) != tour_id:
            return None
        wanted = tour.leg <= state.leg and tour.number not in state.given_up
        return (state, tour) if wanted else None

    def on_progress(self, state: JobState, tour: TourPlan, message: TourProgress, now: float) -> None:
        """Handle a sign of life from a site about a tour."""
        self._outbox.answered(("tour", tour.number))
        before = self.progress.get(tour.number)
        self.moves += before is None or (before.hop, before.step) != (message.hop, message.step)
        self.progress[tour.number] = message
        if message.ends:
            self.ends[tour.number] = message.ends
        if tour.number in self._leases:
            self._lease(tour.number, now, state.settings.tours.site_lease)

    def received_from(self, site: str, now: float) -> None:
        """Record that a site sent something: while its results are fetched, that renews their leases."""
        self._received[site] = now

    def fetch(self, tour: TourPlan, message: Toured) -> list[Effect]:
        """Fetch a tour's result, unless that is in progress."""
        self._outbox.answered(("tour", tour.number))
        if tour.number in self._fetching:
            return []
        self._fetching[tour.number] = tour.site, message
        needed = dict.fromkeys([*message.vectors.values(), message.reports])
        self._fetches.wait(tour.number, [ref.digest for ref in needed])
        return [Pull(ref, Address("edge", tour.site)) for ref in needed]

    def pulled(self, digest: bytes) -> list[Toured]:
        """Handle a fetched blob; returns the results that are complete now."""
        complete = []
        for number in self._fetches.arrived(digest):
            complete.append(self._fetching[number][1])
            self.forget(number)
        return complete

    def pull_failed(self, digest: bytes) -> None:
        """Drop a fetch that failed: the site offers its result until it is accepted, and then it is fetched again."""
        for number in self._fetches.waiting(digest):
            self._stop_fetch(number)

    def forget(self, number: int) -> None:
        """Forget a tour that is over."""
        self._outbox.answered(("tour", number))
        self._stop_fetch(number)
        self._alarm.forget(number)
        self._leases.pop(number, None)
        self._lease_lengths.pop(number, None)
        self._deadlines.pop(number, None)
        self.progress.pop(number, None)

    def overdue(self, now: float) -> list[int]:
        """Return the tours whose sites were silent for too long; each is returned once, until it is requested again."""
        found = []
        for number in self._alarm.due(now):
            ends = self._leases[number] = self._ends(number)
            if ends > now:
                self._alarm.set(number, ends)
            else:
                found.append(number)
        return sorted(found)

    def wake_at(self) -> float | None:
        """When the next lease may end."""
        return self._alarm.wake_at()

    def live(self) -> set[bytes]:
        """The blobs that are being fetched."""
        return {ref.digest for _, it in self._fetching.values() for ref in [*it.vectors.values(), it.reports]}

    def _lease(self, number: int, now: float, term: float) -> None:
        term = max(term, SHORTEST)
        ends = min(now + term, self._deadlines[number])
        self._leases[number], self._lease_lengths[number] = ends, term
        self._alarm.set(number, ends)

    def _ends(self, number: int) -> float:
        """Return when a tour's lease ends: while its result is fetched, every message from its site renews it."""
        ends, coming = self._leases[number], self._fetching.get(number)
        received = self._received.get(coming[0]) if coming else None
        renewed = ends if received is None else max(ends, received + self._lease_lengths[number])
        return min(renewed, self._deadlines[number])

    def _stop_fetch(self, number: int) -> None:
        self._fetches.forget(number)
        if number in self._leases:
            self._leases[number] = self._ends(number)
        self._fetching.pop(number, None)


def _mismatch(state: JobState, tour: TourPlan, message: Toured) -> str | None:
    """Return why a result cannot belong to this tour, or None."""
    if message.reports.size > REPORT_BYTES:
        return f"the reports are {message.reports.size} bytes, more than {REPORT_BYTES}"
    most = FLOAT32 * state.travelling_vector(tour.start["model"]).size
    for name, ref in message.vectors.items():
        objective = state.strategy.objective
        if name not in {"model", *objective.returns, *objective.reports}:
            return f"the vector {name!r} was not requested"
        if ref.size > (room := MAX_REPORTED_BYTES if name in objective.reports else most):
            return f"{name!r} is {ref.size} bytes, more than the maximum of {room}"
    return None


def _counted(durable: CoordinatorState, tour_id: TourId) -> bool:
    """Return whether the tour belongs to a closed round: its edge server did not get the acknowledgement."""
    state, number = durable.jobs.get(tour_id.job), tour_id.number
    return state is not None and number < state.next_tour and all(tour.number != number for tour in state.tours)
