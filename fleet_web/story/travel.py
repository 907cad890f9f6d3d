"""Where models are and were: the tours of a round, hop by hop, with every try of every hop."""

from __future__ import annotations

from dataclasses import dataclass, replace
from itertools import groupby
from operator import attrgetter
from typing import TYPE_CHECKING, Literal

if TYPE_CHECKING:
    from collections.abc import Iterable, Sequence

    from sojourn.protocol.fleet_messages import VisitNote
    from sojourn.protocol.wire import TourView

TryState = Literal["here", "done", "declined", "lost", "refused"]
HopState = Literal["waiting", "here", "done", "skipped"]
WORDS: dict[str, str] = {
    "waiting": "waits for the model",
    "here": "has the model now",
    "done": "done",
    "declined": "declined",
    "lost": "lost",
    "refused": "refused by the gate",
    "skipped": "skipped",
}
"""What a hop's state is called."""


def plain_reason(reason: str) -> str:
    """Why a visit came to nothing, without the word for its kind where that says no more."""
    return reason.removeprefix("failed: ").removeprefix("data: ")


@dataclass(frozen=True, slots=True)
class HopTry:
    """One device that a hop's model was handed to. spare: whether it stepped in for another."""

    device: str
    state: TryState
    reason: str = ""
    seconds: float = 0.0
    spare: bool = False


@dataclass(frozen=True, slots=True)
class TravelHop:
    """One hop of a tour: the device that was planned, and everyone who was tried.

    told: False where it is over and nobody says how it ended.
    """

    planned: str
    tries: tuple[HopTry, ...] = ()
    over: bool = False
    told: bool = True

    @property
    def state(self) -> HopState:
        """How it stands."""
        if self.tries and self.tries[-1].state == "here":
            return "here"
        if not self.over:
            return "waiting"
        return "done" if not self.tries or any(it.state == "done" for it in self.tries) else "skipped"

    @property
    def device(self) -> str:
        """Whose hop it is: the last that was tried."""
        return self.tries[-1].device if self.tries else self.planned

    @property
    def spare(self) -> bool:
        """Whether another than the planned device has it."""
        return self.device != self.planned

    @property
    def mark(self) -> TryState | HopState:
        """The one word for its picture: of a hop that came to nothing, how its last try ended."""
        return self.tries[-1].state if self.state == "skipped" else self.state


@dataclass(frozen=True, slots=True)
class Travel:
    """A model on its tour. step, steps: how far the device that has it has come; merges: how often a wave is merged."""

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
        """How many hops are over."""
        return sum(hop.over for hop in self.hops)

    @property
    def share(self) -> float:
        """How much of the present visit is done."""
        return min(1.0, self.step / self.steps) if self.steps else 0.0


@dataclass(frozen=True, slots=True)
class RoundTravel:
    """The tours of a round. left_out: how many there are besides. gap: what is not known of them, and why."""

    round: int
    tours: tuple[Travel, ...]
    under_way: bool = False
    left_out: int = 0
    gap: str = ""

    @property
    def side_by_side(self) -> bool:
        """Whether no model travels on: each goes to one device, and all at the same time."""
        return bool(self.tours) and all(len(tour.hops) <= 1 for tour in self.tours)


def past_round(number: int, visits: Iterable[VisitNote], tours: int | None = None) -> RoundTravel:
    """The tours of a round that is over, from its visits in the order in which they ended.

    tours: how many the round had. Where there are more, the first ones only estimated devices: numbers go on and on.
    """
    ordered = sorted(visits, key=attrgetter("tour", "hop"))
    by_tour = {tour: list(mine) for tour, mine in groupby(ordered, attrgetter("tour"))}
    wanted = sorted(by_tour)[-tours:] if tours else sorted(by_tour)
    return RoundTravel(number, tuple(_past_tour(tour, by_tour[tour]) for tour in wanted))


def _past_tour(number: int, visits: Sequence[VisitNote]) -> Travel:
    """One tour, from its visits by hop."""
    by_hop = {hop: list(mine) for hop, mine in groupby(visits, attrgetter("hop"))}
    hops = [_past_hop(by_hop[at]) for at in sorted(by_hop)]
    lost = sum(visit.status != "done" for visit in visits)
    return Travel(number, visits[-1].site, tuple(hops), done=True, lost=lost)


def _past_hop(tries: Sequence[VisitNote]) -> TravelHop:
    planned = tries[0].device
    told = [HopTry(it.device, it.status, it.reason, it.seconds, spare=it.device != planned) for it in tries]
    return TravelHop(planned, tuple(told), over=True)


def present_tour(view: TourView) -> Travel:
    """A tour of the round under way, as the coordinator tells it."""
    told = view.told or None
    merges = told.merges if told else 0
    ended: dict[int, list[HopTry]] = {}
    for end in told.ended if told else ():
        planned = view.hops[end.hop % len(view.hops)] if view.hops else end.device
        tried = HopTry(end.device, end.status, end.reason, spare=end.device != planned)
        ended.setdefault(end.hop, []).append(tried)
    # A coordinator that tells of no hop although some were lost is older than these words.
    known = bool(told) or not view.lost
    first = _wave(view, merges)
    hops = [
        _present_hop(view, first + place, planned, tuple(ended.get(first + place, ())), merges=merges, known=known)
        for place, planned in enumerate(view.hops)
    ]
    return Travel(view.number, view.site, tuple(hops), view.step, view.steps, view.done, view.lost, merges)


def _wave(view: TourView, merges: int) -> int:
    """The first hop of the present wave; with one visit after another there is one wave."""
    if not merges or not view.hops:
        return 0
    return min(view.hop // len(view.hops), merges - 1) * len(view.hops)


def _present_hop(
    view: TourView, hop: int, planned: str, tries: tuple[HopTry, ...], *, merges: int, known: bool
) -> TravelHop:
    if merges:  # all devices of a wave have it at once, and each that is over is told
        over = view.done or any(it.state == "done" for it in tries)
        here = () if over else (HopTry(planned, "here"),)
        return TravelHop(planned, (*tries, *here), over=over)
    if view.done or hop < view.hop:
        return TravelHop(planned, tries, over=True, told=known)
    if hop == view.hop and view.device:
        return TravelHop(planned, (*tries, HopTry(view.device, "here", spare=view.device != planned)))
    return TravelHop(planned, tries)


def replayed(travel: RoundTravel, seconds: float) -> RoundTravel:
    """A round that is over, as it stood so many seconds after its tours set out: each visit took as long as it did."""
    return replace(travel, tours=tuple(_replayed_tour(tour, seconds) for tour in travel.tours), under_way=True)


def length(travel: RoundTravel) -> float:
    """The seconds of a round's longest tour, from one visit to the next."""
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
