"""The tours of the round under way: asked for, heard of, on their way back. A restart finds all of it out again."""

from __future__ import annotations

import math
from collections import Counter
from typing import TYPE_CHECKING

from coordinator.machine.job_summaries import departs
from coordinator.machine.tour_messages import tour_message
from coordinator.rounds.orders import Leg
from coordinator.rounds.results import REPORT_BYTES
from sojourn.model.lengths import TOLD_BYTES
from sojourn.node.alarm import Alarm
from sojourn.node.fetches import Fetches
from sojourn.node.machine import Pull, Say, Send
from sojourn.protocol.limits import SHORTEST
from sojourn.protocol.messages import TourAccepted, TourCancel, TourDiscarded
from sojourn.protocol.topics import Address

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable

    from coordinator.records import TourPlan
    from coordinator.state import CoordinatorState, JobState
    from sojourn.node.machine import Effect
    from sojourn.node.outbox import Outbox
    from sojourn.protocol.messages import Toured, TourProgress
    from sojourn.protocol.wire import TourId, TourTold

    KeysOf = Callable[[Iterable[str]], dict[str, bytes]]

FLOAT32 = 4
"""How many times as many bytes a model takes in float32 as in the smallest encoding, at most."""


class RoundTours:
    """What a coordinator knows of tours and may forget: leases, progress, results that are being fetched."""

    def __init__(self, outbox: Outbox, keys: KeysOf = lambda _devices: {}) -> None:
        """`keys` says with which keys some devices sign."""
        self._keys = keys
        self.progress: dict[int, TourProgress] = {}
        self.moves = 0
        """How often a tour was heard of that had got on since the last time."""
        self.told: dict[int, TourTold] = {}
        """What became of the hops of the present round's tours, also of those that are home."""
        self._outbox = outbox
        self._leases: dict[int, float] = {}
        """When each tour's lease ends, unless its site has spoken since."""
        self._lease_lengths: dict[int, float] = {}
        """How many seconds each lease is long."""
        self._deadlines: dict[int, float] = {}
        """When each tour must be home, however often its site speaks."""
        self._alarm: Alarm[int] = Alarm()
        self._coming: dict[int, tuple[str, Toured]] = {}
        """The results that are being fetched, and from which site."""
        self._heard: dict[str, float] = {}
        """When each site last spoke."""
        self._fetches: Fetches[int] = Fetches()
        self._numbered: tuple[TourPlan, ...] = ()
        self._plans: dict[int, TourPlan] = {}
        self._legs: Counter[int] = Counter()

    def plan(self, state: JobState, number: int) -> TourPlan | None:
        """The tour of this number, if the present round has it."""
        self._number_tours(state)
        return self._plans.get(number)

    def gathered(self, state: JobState) -> bool:
        """Whether every tour of the present leg is home or given up; mostly their number alone tells that it is not."""
        self._number_tours(state)
        out = sum(count for leg, count in self._legs.items() if leg <= state.leg)
        return len(state.arrived) + len(state.given_up) >= out and state.gathered

    def _number_tours(self, state: JobState) -> None:
        """Number the tours of the job's round, whenever there are others."""
        if state.tours is not self._numbered:
            self._numbered = state.tours
            self.told.clear()
            self._plans = {tour.number: tour for tour in state.tours}
            self._legs = Counter(tour.leg for tour in state.tours)

    def ask(self, state: JobState, tour: TourPlan, now: float) -> list[Effect]:
        """Ask a site to lead a tour; all the time that it may take begins now."""
        self._deadlines.pop(tour.number, None)
        self.told.pop(tour.number, None)
        return self._ask(state, tour, Leg(state, tour.leg), now)

    def _ask(self, state: JobState, tour: TourPlan, leg: Leg, now: float) -> list[Effect]:
        self._deadlines.setdefault(tour.number, now + leg.deadline(tour))
        self._lease(tour.number, now, state.settings.tours.site_lease)
        message = tour_message(state, tour, leg.bounds(tour), self._keys({*tour.hops, *tour.spares}))
        ask = self._outbox.ask(("tour", tour.number), Address("edge", tour.site), message, now)
        return [*departs(message.id, tour), *ask]

    def ask_all(self, state: JobState, now: float) -> list[Effect]:
        """Ask for every tour that is still out."""
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
        """A site was born again and may have forgotten its tours, if it lost its store or its power."""
        out = [tour for tour in state.tours if tour.site == site and tour.number in self._leases]
        asked = [tour for tour in out if not self._outbox.open(("tour", tour.number))]
        legs = {number: Leg(state, number) for number in {tour.leg for tour in asked}}
        return [effect for tour in asked for effect in self._ask(state, tour, legs[tour.leg], now)]

    def past_deadline(self, number: int, now: float) -> bool:
        """Whether a tour has taken all the time that it may."""
        return self._deadlines.get(number, math.inf) <= now

    def progressed(self, state: JobState | None, sender: Address, message: TourProgress, now: float) -> list[Effect]:
        """A site says how far a tour of the job whose turn it is has come."""
        found = self._current(state, sender, message.tour)
        if found is None:
            return [Send(sender, TourCancel(message.tour))]
        self.heard_of(*found, message, now)
        return []

    def toured(
        self, durable: CoordinatorState, current: JobState | None, sender: Address, message: Toured
    ) -> list[Effect]:
        """A site says that a tour has ended; `current` is the job whose turn it is."""
        found = self._current(current, sender, message.tour)
        if found is None:
            if _counted(durable, message.tour):
                return [Send(sender, TourAccepted(message.tour))]
            return [Send(sender, TourDiscarded(message.tour, "this attempt is no longer wanted"))]
        state, tour = found
        if tour.number in state.arrived:
            return [Send(sender, TourAccepted(message.tour))]
        if reason := _unfit(state, tour, message):
            about = message.tour.about(site=sender.name)
            warning = Say(f"site {sender.name}, tour {message.tour}: {reason}", "warning", about)
            return [Send(sender, TourDiscarded(message.tour, reason)), warning]
        return self.fetch(tour, message)

    def _current(self, state: JobState | None, sender: Address, tour_id: TourId) -> tuple[JobState, TourPlan] | None:
        """The job and tour that are meant, if this is the attempt that counts."""
        if state is None or state.name != tour_id.job:
            return None
        tour = self.plan(state, tour_id.number)
        if tour is None or tour.site != sender.name or state.tour_id(tour) != tour_id:
            return None
        wanted = tour.leg <= state.leg and tour.number not in state.given_up
        return (state, tour) if wanted else None

    def heard_of(self, state: JobState, tour: TourPlan, message: TourProgress, now: float) -> None:
        """A site gave a sign of life from a tour."""
        self._outbox.answered(("tour", tour.number))
        before = self.progress.get(tour.number)
        self.moves += before is None or (before.hop, before.step) != (message.hop, message.step)
        self.progress[tour.number] = message
        if message.told:
            self.told[tour.number] = message.told
        self._renew(state, tour.number, now)

    def heard_from(self, site: str, now: float) -> None:
        """A site spoke: while its results are fetched, that is a sign of life too."""
        self._heard[site] = now

    def fetch(self, tour: TourPlan, message: Toured) -> list[Effect]:
        """A tour has ended: get its result, unless that is under way."""
        self._outbox.answered(("tour", tour.number))
        if tour.number in self._coming:
            return []
        self._coming[tour.number] = tour.site, message
        needed = dict.fromkeys([*message.vectors.values(), message.reports])
        self._fetches.wait(tour.number, [ref.digest for ref in needed])
        return [Pull(ref, Address("edge", tour.site)) for ref in needed]

    def pulled(self, digest: bytes) -> list[Toured]:
        """A blob is here; returns the results that are complete now."""
        complete = []
        for number in self._fetches.arrived(digest):
            complete.append(self._coming[number][1])
            self.forget(number)
        return complete

    def pull_failed(self, digest: bytes) -> None:
        """A blob cannot be had; the site offers its result again until it is accepted, and then it is fetched again."""
        for number in self._fetches.waiting(digest):
            self._fetch_no_more(number)

    def forget(self, number: int) -> None:
        """Nothing more is expected of a tour."""
        self._outbox.answered(("tour", number))
        self._fetch_no_more(number)
        self._alarm.forget(number)
        self._leases.pop(number, None)
        self._lease_lengths.pop(number, None)
        self._deadlines.pop(number, None)
        self.progress.pop(number, None)

    def overdue(self, now: float) -> list[int]:
        """The tours whose sites were silent for too long; each is returned once, until it is asked for again."""
        found = []
        for number in self._alarm.due(now):
            ends = self._leases[number] = self._ends(number)
            if ends > now:
                self._alarm.set(number, ends)
            else:
                found.append(number)
        return sorted(found)

    def wake_at(self) -> float | None:
        """When a lease may end next."""
        return self._alarm.wake_at()

    def live(self) -> set[bytes]:
        """The blobs that are being fetched."""
        return {ref.digest for _, it in self._coming.values() for ref in [*it.vectors.values(), it.reports]}

    def _renew(self, state: JobState, number: int, now: float) -> None:
        if number in self._leases:
            self._lease(number, now, state.settings.tours.site_lease)

    def _lease(self, number: int, now: float, term: float) -> None:
        term = max(term, SHORTEST)
        ends = min(now + term, self._deadlines[number])
        self._leases[number], self._lease_lengths[number] = ends, term
        self._alarm.set(number, ends)

    def _ends(self, number: int) -> float:
        """When a tour's lease ends: while its result is fetched, every word of its site renews it."""
        ends, coming = self._leases[number], self._coming.get(number)
        heard = self._heard.get(coming[0]) if coming else None
        renewed = ends if heard is None else max(ends, heard + self._lease_lengths[number])
        return min(renewed, self._deadlines[number])

    def _fetch_no_more(self, number: int) -> None:
        self._fetches.forget(number)
        if number in self._leases:
            self._leases[number] = self._ends(number)
        self._coming.pop(number, None)


def _unfit(state: JobState, tour: TourPlan, message: Toured) -> str | None:
    """Why a result is not worth fetching: reports or vectors that cannot be of this tour."""
    if message.reports.size > REPORT_BYTES:
        return f"the reports are {message.reports.size} bytes, more than {REPORT_BYTES}"
    most = FLOAT32 * state.travelling_vector(tour.start["model"]).size
    for name, ref in message.vectors.items():
        objective = state.strategy.objective
        if name not in {"model", *objective.returns, *objective.tells}:
            return f"nobody asked for the vector {name!r}"
        if ref.size > (room := TOLD_BYTES if name in objective.tells else most):
            return f"{name!r} is {ref.size} bytes, more than the {room} that it may take"
    return None


def _counted(durable: CoordinatorState, tour_id: TourId) -> bool:
    """Whether the tour belongs to a round that was closed: its edge server did not hear that it was accepted."""
    state, number = durable.jobs.get(tour_id.job), tour_id.number
    return state is not None and number < state.next_tour and all(tour.number != number for tour in state.tours)
