"""The tables of tours and visits at an edge server: every row is reached, and no peer can cause an unknown event."""

from __future__ import annotations

import random
from collections.abc import Callable
from typing import NamedTuple

import msgspec
import pytest

from hierarchy.edge.gate import Failed, Passed, Wrap, Wrapped
from hierarchy.edge.merge import Merged, WaveMerge
from hierarchy.edge.site import RunningTour, RunningVisit
from hierarchy.edge.tables import TOUR, VISIT, TourEvent, TourStep, VisitEvent, VisitStep
from sojourn.errors import UnexpectedEvent
from sojourn.node.machine import (
    LinkUp,
    Present,
    Pull,
    Pulled,
    PullFailed,
    Received,
    Send,
    StartWork,
    TimerFired,
    WorkDone,
    WorkFailed,
)
from sojourn.parts import TourBounds, TourPolicy
from sojourn.protocol.messages import (
    Birth,
    Declined,
    Progress,
    Tour,
    TourAccepted,
    TourCancel,
    TourDiscarded,
    Visit,
    Visited,
)
from sojourn.protocol.registry import Message
from sojourn.protocol.wire import Epoch, TourId
from tests.hierarchy.edge.site_bench import (
    CLOUD,
    EPOCH,
    KIT,
    MODEL,
    PRESENCES,
    Bench,
    device,
    result,
    tour,
    tour_id,
    visit_id,
)
from tests.sojourn.node.table_rows import rows_taken
from tests.sojourn.protocol.examples import TASK


class PassedRows(NamedTuple):
    """The rows that the machine has taken."""

    tour: set[tuple[TourStep, TourEvent]]
    visit: set[tuple[VisitStep, VisitEvent]]


Dismissal = Callable[[TourId], TourCancel | TourAccepted | TourDiscarded]
KEY = "job/1/0"


@pytest.fixture
def passed_rows(monkeypatch: pytest.MonkeyPatch) -> PassedRows:
    return PassedRows(rows_taken(monkeypatch, TOUR), rows_taken(monkeypatch, VISIT))


class Site(Bench):
    """An edge server that can be brought into any state of a tour of one visit or one wave."""

    def restart(self) -> None:
        """Kill the edge server and start it again; it has not gathered yet."""
        self.edge = self.replayed()
        self.edge.start(0.0)

    @property
    def tour_state(self) -> TourStep:
        return self.edge.site.running[KEY].state

    @property
    def visit_state(self) -> VisitStep:
        return self.edge.site.running[KEY].visits[0].state

    def gathers(self) -> None:
        self.handle(Pulled(KIT.digest))
        self.handle(Pulled(MODEL.digest))

    def announces(self) -> None:
        """Report a result of the first visit's device."""
        self.receive(device("a"), Visited(visit_id(0), {"model": result("a")}, 5, {}))

    def merges(self, how) -> None:
        self.handle(WorkDone(self.work, how) if isinstance(how, Merged) else WorkFailed(self.work, how, "no"))


def whole_tour(**changes) -> Tour:
    bounds = TourBounds(deadline=90.0)
    return msgspec.structs.replace(tour(("a",), lease=60.0), **{"bounds": bounds, **changes})


def in_tour_state(state: TourStep) -> Site:
    """Return a site whose tour is in this state."""
    site = Site()
    small = msgspec.structs.replace(TASK, encoding="int8")
    wraps = state == TourStep.WRAPPING_UP
    site.receive(
        CLOUD,
        whole_tour(merges=1 if state in (TourStep.MERGING, TourStep.STALLED) else 0, task=small if wraps else TASK),
    )
    if state != TourStep.GATHERING:
        site.gathers()
    if state in (TourStep.MERGING, TourStep.STALLED, TourStep.WRAPPING_UP, TourStep.ENDED):
        site.visited("a", visit_id(0), encoding="int8" if wraps else "float32")
        site.passes("a")
    if state == TourStep.STALLED:
        site.merges("disk")
    assert site.tour_state == state
    return site


def in_visit_state(state: VisitStep) -> Site:
    """Return a site whose first visit is in this state."""
    site = Site()
    site.receive(CLOUD, whole_tour(hops=("a", "b")))
    if state == VisitStep.DUE:  # it was handed before a restart
        site.gathers()
        site.restart()
        return site
    site.gathers()
    if state in (VisitStep.FETCHING, VisitStep.CHECKING, VisitStep.KEPT):
        site.announces()
    if state in (VisitStep.CHECKING, VisitStep.KEPT):
        site.handle(Pulled(result("a").digest))
    if state == VisitStep.KEPT:
        site.passes("a")
    elif state == VisitStep.MISSED:
        site.receive(device("a"), Declined(visit_id(0), "hot", ""))
    else:
        assert site.visit_state == state
    return site


HELD = [step for step in TourStep if step not in (TourStep.NOT_HERE, TourStep.DROPPED)]
FROM_COORDINATOR = {
    TourEvent.REPEATED_ORDER: lambda site: site.edge.state.tours[KEY].order,
    TourEvent.OLD_ORDER: lambda _: whole_tour(id=tour_id(0)),
    TourEvent.UNFIT_ORDER: lambda _: whole_tour(id=tour_id(2), vectors={}),
    TourEvent.NEWER_ORDER: lambda _: whole_tour(id=tour_id(2)),
    TourEvent.OLD_DISMISSAL: lambda _: TourCancel(tour_id(0)),
    TourEvent.DISMISSED: lambda _: TourAccepted(tour_id(1)),
}
FROM_DEVICE = {
    VisitEvent.PROGRESS: Progress(visit_id(0), "training", 1, 5),
    VisitEvent.RESULT: Visited(visit_id(0), {"model": result("a")}, 5, {}),
    VisitEvent.DECLINED: Declined(visit_id(0), "hot", ""),
}


def what_a_coordinator_sends(site: Site) -> None:
    """Send everything that a coordinator may send about a tour that is not held."""
    for message in (whole_tour(vectors={}), TourCancel(tour_id()), whole_tour(), TourCancel(tour_id()), whole_tour()):
        site.receive(CLOUD, message)


def tours_and_merges() -> None:
    """Take the transitions of a tour that no message causes."""
    site = in_tour_state(TourStep.GATHERING)
    site.handle(PullFailed(MODEL.digest, "gone"), 0.0)
    site.handle(TimerFired(), 5.0)
    in_tour_state(TourStep.GATHERING).restart()
    in_tour_state(TourStep.ENDED).restart()
    in_tour_state(TourStep.MERGING).merges(Merged({"model": result("m")}, {"model": result("m")}))
    in_tour_state(TourStep.MERGING).merges("failed")
    in_tour_state(TourStep.STALLED).handle(TimerFired(), 5.0)
    site = in_tour_state(TourStep.WRAPPING_UP)
    site.handle(WorkDone(site.work, Wrapped({"model": result("w")})))
    site = in_tour_state(TourStep.WRAPPING_UP)
    site.handle(WorkFailed(site.work, "disk", "no"))
    site = Site()
    site.take(whole_tour(merges=2))
    site.receive(device("a"), Declined(visit_id(0), "hot", ""))


def visits_and_their_devices() -> None:
    """Take the transitions of a visit that no message causes."""
    site = in_visit_state(VisitStep.HANDED)
    site.take(whole_tour(id=tour_id(number=1)))  # the device is busy, then free
    site.receive(device("a"), Declined(visit_id(0), "hot", ""))
    site = in_visit_state(VisitStep.HANDED)
    site.take(whole_tour(id=tour_id(number=1)))  # and one that waits is called off
    site.receive(CLOUD, TourCancel(tour_id(number=1)))
    in_visit_state(VisitStep.HANDED).receive(device("a"), Visited(visit_id(0), {"model": result("a", "int8")}, 5, {}))
    site = Site()
    site.take(whole_tour(task=msgspec.structs.replace(TASK, kind="estimate")))
    site.receive(device("a"), Visited(visit_id(0), {}, 5, {}, (0.5,)))
    for state in (VisitStep.HANDED, VisitStep.FETCHING):
        in_visit_state(state).handle(TimerFired(), 60.0)
        site = in_visit_state(state)
        site.edge.on_traffic(device("a"), 1, 50.0, sign_of_life=True)
        site.handle(TimerFired(), 90.0)
    in_visit_state(VisitStep.FETCHING).handle(PullFailed(result("a").digest, "gone"))
    site = in_visit_state(VisitStep.CHECKING)
    site.handle(WorkDone(site.work, Failed("not finite")))
    site = in_visit_state(VisitStep.CHECKING)
    site.handle(WorkFailed(site.work, "failed", "no"))
    for state in (VisitStep.DUE, VisitStep.HANDED, VisitStep.FETCHING, VisitStep.CHECKING):
        in_visit_state(state).handle(Present(device("a"), Epoch(2, bytes(8)), Birth()))
        in_visit_state(state).receive(CLOUD, TourCancel(tour_id()))


def test_every_table_row_is_reached(passed_rows: PassedRows) -> None:
    what_a_coordinator_sends(Site())
    for held in HELD:
        for event, message in FROM_COORDINATOR.items():
            site = in_tour_state(held)
            site.receive(CLOUD, message(site))
            assert (held, event) in passed_rows.tour
    for state in [step for step in VisitStep if step is not VisitStep.WAITING]:
        for sent, answer in FROM_DEVICE.items():
            in_visit_state(state).receive(device("a"), answer)
            assert (state, sent) in passed_rows.visit
    tours_and_merges()
    visits_and_their_devices()
    assert passed_rows == (set(TOUR.rows), set(VISIT.rows))


def test_unexpected_event_raises_an_error_with_its_name() -> None:
    visit = RunningVisit(60.0, 0.0)
    with pytest.raises(UnexpectedEvent, match="visit at an edge server: passed in state handed, which allows result"):
        visit.step(VisitEvent.PASSED)
    assert visit.state == VisitStep.HANDED
    with pytest.raises(UnexpectedEvent, match="tour at an edge server: merged in state gathering"):
        RunningTour(TourPolicy(), TourEvent.ORDER).step(TourEvent.MERGED)


def test_late_messages_are_ignored_or_answered_again() -> None:
    answers = {VisitStep.DUE: [], VisitStep.KEPT: ["Accepted", "Accepted"], VisitStep.MISSED: ["Cancel", "Discarded"]}
    for state, kinds in answers.items():
        for event, kind in zip((VisitEvent.PROGRESS, VisitEvent.RESULT), kinds or ("", ""), strict=True):
            effects = in_visit_state(state).receive(device("a"), FROM_DEVICE[event])
            assert [type(each.message).__name__ for each in effects if isinstance(each, Send)] == (
                [kind] if kind else []
            )


class Peers:
    """The peers of an edge server: what it asked of them, and what each may send next, valid or not."""

    def __init__(self, seed: int) -> None:
        self.draw = random.Random(seed)
        self.asked: dict[str, Visit] = {}
        self.works: list[StartWork] = []
        self.pulls: list[bytes] = []

    def see(self, effects: list[object]) -> None:
        for effect in effects:
            if isinstance(effect, Send) and isinstance(effect.message, Visit):
                self.asked[effect.to.name] = effect.message
            elif isinstance(effect, StartWork):
                self.works.append(effect)
            elif isinstance(effect, Pull):
                self.pulls.append(effect.ref.digest)

    def event(self) -> object:
        """Return anything that a peer, or the node itself, may send, of any attempt."""
        kinds = [self._device] * 4 + [self._pull] * 4 + [self._work] * 3 + [self._coordinator, self._node]
        return self.draw.choice(kinds)()

    def _coordinator(self) -> object:
        draw, number, attempt = self.draw, self.draw.randint(0, 1), self.draw.choice([0, 1, 1, 1, 1, 2])
        policy, encoding = draw.choice(["skip", "retry", "swap"]), "int8" if number else "float32"
        order = tour(("a", "b"), ("s",), attempt, number, encoding=encoding, on_lost_visit=policy)
        dismissals: list[Dismissal] = [TourCancel, TourAccepted, lambda it: TourDiscarded(it, "late")]
        dismissal = draw.choice(dismissals)
        tours = [msgspec.structs.replace(order, merges=merges) for merges in (0, 1, 2)] * 2
        unfit, dismissed = msgspec.structs.replace(order, vectors={}), dismissal(tour_id(attempt, number))
        messages: list[Message] = [*tours, unfit, dismissed]
        return Received(CLOUD, EPOCH, draw.choice(messages))

    def _device(self) -> object:
        draw, name = self.draw, self.draw.choice("abs")
        strange = visit_id(draw.randint(0, 4), (draw.randint(1, 2), draw.randint(1, 6)), draw.randint(0, 1))
        visit = self.asked[name].id if name in self.asked and draw.random() < 0.8 else strange
        model = result(f"{name}{visit.hop}", "int8" if visit.tour else draw.choice(["float32"] * 5 + ["int8"]))
        good = Visited(visit, {"model": model}, 5, {})
        others: list[Message] = [
            Visited(visit, {}, 5, {}),
            Progress(visit, draw.choice(["fetching", "training"]), 1, 2),
            Declined(visit, draw.choice(["hot", "stale"]), ""),
        ]
        return Received(device(name), EPOCH, draw.choice([good, good, good, *others]))

    def _pull(self) -> object:
        digest = self.draw.choice(self.pulls[-3:] or [MODEL.digest])
        return PullFailed(digest, "gone") if self.draw.random() < 0.05 else Pulled(digest)

    def _work(self) -> object:
        if not self.works:
            return LinkUp()
        work, ref = self.draw.choice(self.works[-2:]), result(f"w{len(self.works)}")
        if self.draw.random() < 0.2:
            return WorkFailed(work.key, self.draw.choice(["failed", "disk"]), "no")
        match work.work:
            case WaveMerge():
                return WorkDone(work.key, Merged({"model": ref}, {"model": ref}))
            case Wrap():
                return WorkDone(work.key, Wrapped({"model": ref}))
            case _:
                good = Passed({"model": ref}, {"model": ref}, 1.0)
                return WorkDone(work.key, self.draw.choice([good, good, good, Failed("no")]))

    def _node(self) -> object:
        draw = self.draw
        who, epoch = device(draw.choice("abs")), Epoch(draw.randint(1, 3), bytes(8))
        return draw.choice([Present(who, epoch, draw.choice(PRESENCES)), TimerFired(), LinkUp()])


def check_sane(site: Site) -> None:
    """Check the invariants between any two events."""
    for key, running in site.edge.site.running.items():
        held = site.edge.state.tours[key]
        assert (running.state == TourStep.ENDED) == (held.toured is not None)
        assert running.state == TourStep.LEADING or not running.visits
        waits = [where for each in site.edge.site.waiting.values() for where in each if where[0] == key]
        assert all(held.is_due(hop) and hop not in running.visits for _, hop in waits)


@pytest.mark.parametrize("seed", range(20))
def test_no_peer_message_is_unexpected(seed: int) -> None:
    peers, site = Peers(seed), Site()
    for step in range(250):
        if peers.draw.random() < 0.01:
            site.restart()
        peers.see(site.handle(peers.event(), step * 3.0))
        check_sane(site)
