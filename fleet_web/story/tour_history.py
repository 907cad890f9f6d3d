"""The current and past tours of a round, hop by hop, with every attempt of every hop."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass, replace
from itertools import groupby
from operator import attrgetter
from typing import Literal

from sojourn.protocol.operator_messages import VisitNote
from sojourn.protocol.wire import TourView

TryState = Literal["here", "done", "declined", "lost", "refused"]
HopState = Literal["waiting", "here", "done", "skipped"]
WORDS: dict[str, str] = {
    "waiting": "waiting for the model",
    "here": "has the model now",
    "done": "done",
    "declined": "declined",
    "lost": "lost",
    "refused": "refused by the gate",
    "skipped": "skipped",
}
"""Display names of the hop states."""


def plain_reason(reason: str) -> str:
    """Return why a visit failed, without a prefix that repeats its kind."""
    return reason.removeprefix("failed: ").removeprefix("data: ")


@dataclass(frozen=True, slots=True)
class HopTry:
    """One device that received a hop's model. spare: whether it replaced another device."""

    device: str
    state: TryState
    reason: str = ""
    seconds: float = 0.0
    spare: bool = False


@dataclass(frozen=True, slots=True)
class TravelHop:
    """One hop of a tour: the planned device, and every device that was tried."""

    planned: str
    tries: tuple[HopTry, ...] = ()
    over: bool = False

    @property
    def state(self) -> HopState:
        """The current state of the hop."""
        if self.tries and self.tries[-1].state == "here":
            return "here"
        if not self.over:
            return "waiting"
        return "done" if not self.tries or any(it.state == "done" for it in self.tries) else "skipped"

    @property
    def device(self) -> str:
        """The device of the hop: the last one that was tried."""
        return self.tries[-1].device if self.tries else self.planned

    @property
    def spare(self) -> bool:
        """Whether a spare device replaced the planned one."""
        return self.device != self.planned

    @property
    def mark(self) -> TryState | HopState:
        """The symbol of the hop; a failed hop has that of its last attempt."""
        return self.tries[-1].state if self.state == "skipped" else self.state


@dataclass(frozen=True, slots=True)
class Travel:
    """A model on its tour. step, steps: the progress of the current visit; merges: how often a wave is merged."""

    number: int
    site: str
    hops: tuple[TravelHop, ...]
    step: int = 0
    steps: int = 0
    done: bool = False
    lost: int = 0
    merges: int = 0

    @property
    def at(self) -> int | None:
        """The hop that has the model now."""
        return next((place for place, hop in enumerate(self.hops) if hop.state == "here"), None)

    @property
    def over(self) -> int:
        """The number of finished hops."""
        return sum(hop.over for hop in self.hops)

    @property
    def share(self) -> float:
        """The finished share of the current visit."""
        return min(1.0, self.step / self.steps) if self.steps else 0.0


@dataclass(frozen=True, slots=True)
class RoundTravel:
    """The tours of a round. left_out: how many are not included; gap: what is unknown about them, and why."""

    round: int
    tours: tuple[Travel, ...]
    under_way: bool = False
    left_out: int = 0
    gap: str = ""

    @property
    def side_by_side(self) -> bool:
        """Whether each model visits only one device, all in parallel."""
        return bool(self.tours) and all(len(tour.hops) <= 1 for tour in self.tours)


def past_round(number: int, visits: Iterable[VisitNote], tours: int | None = None) -> RoundTravel:
    """Return the tours of a finished round, built from its visits in the order in which they ended.

    tours: the number of tours. If there are more, the first ones only estimated devices.
    """
    ordered = sorted(visits, key=attrgetter("tour", "hop"))
    by_tour = {tour: list(mine) for tour, mine in groupby(ordered, attrgetter("tour"))}
    wanted = sorted(by_tour)[-tours:] if tours else sorted(by_tour)
    return RoundTravel(number, tuple(_past_tour(tour, by_tour[tour]) for tour in wanted))


def _past_tour(number: int, visits: Sequence[VisitNote]) -> Travel:
    """Return one tour, built from its visits by hop."""
    by_hop = {hop: list(mine) for hop, mine in groupby(visits, attrgetter("hop"))}
    hops = [_past_hop(by_hop[at]) for at in sorted(by_hop)]
    lost = sum(visit.status != "done" for visit in visits)
    return Travel(number, visits[-1].site, tuple(hops), done=True, lost=lost)


def _past_hop(tries: Sequence[VisitNote]) -> TravelHop:
    planned = tries[0].device
    attempts = [HopTry(it.device, it.status, it.reason, it.seconds, spare=it.device != planned) for it in tries]
    return TravelHop(planned, tuple(attempts), over=True)


def present_tour(view: TourView) -> Travel:
    """Return a current tour, as reported by the coordinator."""
    ends = view.ends
    merges = ends.merges if ends else 0
    ended: dict[int, list[HopTry]] = {}
    for end in ends.ended if ends else ():
        planned = view.hops[end.hop % len(view.hops)] if view.hops else end.device
        tried = HopTry(end.device, end.status, end.reason, spare=end.device != planned)
        ended.setdefault(end.hop, []).append(tried)
    first = _wave(view, merges)
    hops = [
        _present_hop(view, first + place, planned, tuple(ended.get(first + place, ())), merges=merges)
        for place, planned in enumerate(view.hops)
    ]
    return Travel(view.number, view.site, tuple(hops), view.step, view.steps, view.done, view.lost, merges)


def _wave(view: TourView, merges: int) -> int:
    """Return the first hop of the current wave; a sequential tour is a single wave."""
    if not merges or not view.hops:
        return 0
    return min(view.hop // len(view.hops), merges - 1) * len(view.hops)


def _present_hop(view: TourView, hop: int, planned: str, tries: tuple[HopTry, ...], *, merges: int) -> TravelHop:
    if merges:  # all devices of a wave have the model at once, and each finished one is reported
        over = view.done or any(it.state == "done" for it in tries)
        here = () if over else (HopTry(planned, "here"),)
        return TravelHop(planned, (*tries, *here), over=over)
    if view.done or hop < view.hop:
        return TravelHop(planned, tries, over=True)
    if hop == view.hop and view.device:
        return TravelHop(planned, (*tries, HopTry(view.device, "here", spare=view.device != planned)))
    return TravelHop(planned, tries)


def replayed(travel: RoundTravel, seconds: float) -> RoundTravel:
    """Return a finished round as it was the given number of seconds after its tours started."""
    return replace(travel, tours=tuple(_replayed_tour(tour, seconds) for tour in travel.tours), under_way=True)


def length(travel: RoundTravel) -> float:
    """Return the duration of a round's longest tour in seconds, including the time between visits."""
    return max((sum(it.seconds for hop in tour.hops for it in hop.tries) for tour in travel.tours), default=0.0)


def _replayed_tour(tour: Travel, seconds: float) -> Travel:
    hops, left = [], seconds
    share = 0.0
    for hop in tour.hops:
        tries: list[HopTry] = []
        for it in hop.tries:
            if left < 0:
                break
            if left < it.seconds:
                tries.append(replace(it, state="here", reason=""))
                share = left / it.seconds
            else:
                tries.append(it)
            left -= it.seconds
        hops.append(TravelHop(hop.planned, tuple(tries), over=len(tries) == len(hop.tries) and left >= 0))
    return replace(tour, hops=tuple(hops), step=round(100 * share), steps=100, done=all(hop.over for hop in hops))
