"""The tables of tours and visits at an edge server: the machine goes every row, and no peer can get it off them."""

from __future__ import annotations

import random
from collections.abc import Callable

import msgspec
import pytest

from hierarchy.edge.gate import Failed, Passed, Wrap, Wrapped
from hierarchy.edge.merge import Merged, WaveMerge
from hierarchy.edge.running import RunningTour, RunningVisit
from hierarchy.edge.tour_table import ENDED, GATHERING, LEADING, MERGING, STALLED, TOUR, WRAPPING_UP
from hierarchy.edge.visit_table import CHECKING, DUE, FETCHING, HANDED, KEPT, MISSED, VISIT
from sojourn.errors import UnexpectedEvent
from sojourn.node.machine import Did, DidNot, Do, Linked, Present, Pull, Pulled, PullFailed, Received, Send, Woke
from sojourn.parts import TourBounds, TourPolicy
from sojourn.protocol.messages import (
    Birth,
    Declined,
    Message,
    Progress,
    Tour,
    TourAccepted,
    TourCancel,
    TourDiscarded,
    Visit,
    Visited,
)
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

Row = tuple[str, str]
Dismissal = Callable[[TourId], TourCancel | TourAccepted | TourDiscarded]
KEY = "job/1/0"


@pytest.fixture
def passed_rows(monkeypatch: pytest.MonkeyPatch) -> dict[str, set[Row]]:
    """The rows that the machine passes, by the table's name."""
    return {table.name: rows_taken(monkeypatch, table) for table in (TOUR, VISIT)}


class Site(Bench):
    """An edge server that is led into any state of a tour of one visit or one wave."""

    def restart(self) -> None:
        """Kill the edge server and start it again; it has not gathered yet."""
        self.edge = self.replayed()
        self.edge.start(0.0)

    @property
    def tour_state(self) -> str:
        return self.edge.site.running[KEY].state

    @property
    def visit_state(self) -> str:
        return self.edge.site.running[KEY].visits[0].state

    def gathers(self) -> None:
        self.tell(Pulled(KIT.digest))
        self.tell(Pulled(MODEL.digest))

    def announces(self) -> None:
        """The device of the first visit has a result."""
        self.hear(device("a"), Visited(visit_id(0), {"model": result("a")}, 5, {}))

    def merges(self, how) -> None:
        self.tell(Did(self.work, how) if isinstance(how, Merged) else DidNot(self.work, how, "no"))


def whole_tour(**changes) -> Tour:
    bounds = TourBounds(deadline=90.0)
    return msgspec.structs.replace(tour(("a",), lease=60.0), **{"bounds": bounds, **changes})


def in_tour_state(state: str) -> Site:
    """A site whose tour is in this state."""
    site = Site()
    small = msgspec.structs.replace(TASK, encoding="int8")
    wraps = state == WRAPPING_UP
    site.hear(CLOUD, whole_tour(merges=1 if state in (MERGING, STALLED) else 0, task=small if wraps else TASK))
    if state != GATHERING:
        site.gathers()
    if state in (MERGING, STALLED, WRAPPING_UP, ENDED):
        site.visited("a", visit_id(0), encoding="int8" if wraps else "float32")
        site.passes("a")
    if state == STALLED:
        site.merges("DiskFull")
    assert site.tour_state == state
    return site


def in_visit_state(state: str) -> Site:
    """A site whose first visit is in this state."""
    site = Site()
    site.hear(CLOUD, whole_tour(hops=("a", "b")))
    if state == DUE:  # it was handed before a restart
        site.gathers()
        site.restart()
        return site
    site.gathers()
    if state in (FETCHING, CHECKING, KEPT):
        site.announces()
    if state in (CHECKING, KEPT):
        site.tell(Pulled(result("a").digest))
    if state == KEPT:
        site.passes("a")
    elif state == MISSED:
        site.hear(device("a"), Declined(visit_id(0), "hot", ""))
    else:
        assert site.visit_state == state
    return site


HELD = (GATHERING, LEADING, MERGING, STALLED, WRAPPING_UP, ENDED)
FROM_COORDINATOR = {
    "repeated order": lambda site: site.edge.state.tours[KEY].order,
    "old order": lambda _: whole_tour(id=tour_id(0)),
    "unfit order": lambda _: whole_tour(id=tour_id(2), vectors={}),
    "newer order": lambda _: whole_tour(id=tour_id(2)),
    "old dismissal": lambda _: TourCancel(tour_id(0)),
    "dismissed": lambda _: TourAccepted(tour_id(1)),
}
FROM_DEVICE = {
    "progress": Progress(visit_id(0), "training", 1, 5),
    "result": Visited(visit_id(0), {"model": result("a")}, 5, {}),
    "declined": Declined(visit_id(0), "hot", ""),
}


def what_a_coordinator_sends(site: Site) -> None:
    """All that it may send of a tour that is not here."""
    for message in (whole_tour(vectors={}), TourCancel(tour_id()), whole_tour(), TourCancel(tour_id()), whole_tour()):
        site.hear(CLOUD, message)


def tours_and_merges() -> None:
    """The ways of a tour that no message decides."""
    site = in_tour_state(GATHERING)
    site.tell(PullFailed(MODEL.digest, "gone"), 0.0)
    site.tell(Woke(), 5.0)
    in_tour_state(GATHERING).restart()
    in_tour_state(ENDED).restart()
    in_tour_state(MERGING).merges(Merged({"model": result("m")}, {"model": result("m")}))
    in_tour_state(MERGING).merges("InvalidBlob")
    in_tour_state(STALLED).tell(Woke(), 5.0)
    site = in_tour_state(WRAPPING_UP)
    site.tell(Did(site.work, Wrapped({"model": result("w")})))
    site = in_tour_state(WRAPPING_UP)
    site.tell(DidNot(site.work, "DiskFull", "no"))
    site = Site()
    site.take(whole_tour(merges=2))
    site.hear(device("a"), Declined(visit_id(0), "hot", ""))


def visits_and_their_devices() -> None:
    """The ways of a visit that no message decides."""
    site = in_visit_state(HANDED)
    site.take(whole_tour(id=tour_id(number=1)))  # the device is busy, then free
    site.hear(device("a"), Declined(visit_id(0), "hot", ""))
    site = in_visit_state(HANDED)
    site.take(whole_tour(id=tour_id(number=1)))  # and one that waits is called off
    site.hear(CLOUD, TourCancel(tour_id(number=1)))
    in_visit_state(HANDED).hear(device("a"), Visited(visit_id(0), {"model": result("a", "int8")}, 5, {}))
    site = Site()
    site.take(whole_tour(task=msgspec.structs.replace(TASK, kind="estimate")))
    site.hear(device("a"), Visited(visit_id(0), {}, 5, {}, (0.5,)))
    for state in (HANDED, FETCHING):
        in_visit_state(state).tell(Woke(), 60.0)
        site = in_visit_state(state)
        site.edge.heard(device("a"), 1, 50.0, spoke=True)
        site.tell(Woke(), 90.0)
    in_visit_state(FETCHING).tell(PullFailed(result("a").digest, "gone"))
    site = in_visit_state(CHECKING)
    site.tell(Did(site.work, Failed("not finite")))
    site = in_visit_state(CHECKING)
    site.tell(DidNot(site.work, "Fault", "no"))
    for state in (DUE, HANDED, FETCHING, CHECKING):
        in_visit_state(state).tell(Present(device("a"), Epoch(2, bytes(8)), Birth()))
        in_visit_state(state).hear(CLOUD, TourCancel(tour_id()))


def test_every_row_is_one_that_the_machine_goes(passed_rows: dict[str, set[Row]]) -> None:
    what_a_coordinator_sends(Site())
    for state in HELD:
        for event, message in FROM_COORDINATOR.items():
            site = in_tour_state(state)
            site.hear(CLOUD, message(site))
            assert (state, event) in passed_rows[TOUR.name]
    for state in (DUE, HANDED, FETCHING, CHECKING, KEPT, MISSED):
        for event, answer in FROM_DEVICE.items():
            in_visit_state(state).hear(device("a"), answer)
            assert (state, event) in passed_rows[VISIT.name]
    tours_and_merges()
    visits_and_their_devices()
    assert passed_rows == {TOUR.name: set(TOUR.rows), VISIT.name: set(VISIT.rows)}


def test_an_event_that_the_table_does_not_have_is_an_error_by_name() -> None:
    visit = RunningVisit(60.0, 0.0)
    with pytest.raises(UnexpectedEvent, match="visit at an edge server: passed while handed, which knows result"):
        visit.step("passed")
    assert visit.state == HANDED
    with pytest.raises(UnexpectedEvent, match="tour at an edge server: merged while gathering"):
        RunningTour(TourPolicy(), "order").step("merged")


def test_what_comes_late_is_ignored_or_answered_again() -> None:
    for state, kinds in {DUE: [], KEPT: ["Accepted", "Accepted"], MISSED: ["Cancel", "Discarded"]}.items():
        for event, kind in zip(("progress", "result"), kinds or ("", ""), strict=True):
            effects = in_visit_state(state).hear(device("a"), FROM_DEVICE[event])
            assert [type(each.message).__name__ for each in effects if isinstance(each, Send)] == (
                [kind] if kind else []
            )


class Peers:
    """Whom an edge server deals with: what it asked of them, and what each may say next, sensible or not."""

    def __init__(self, seed: int) -> None:
        self.draw = random.Random(seed)
        self.asked: dict[str, Visit] = {}
        self.works: list[Do] = []
        self.pulls: list[bytes] = []

    def see(self, effects: list[object]) -> None:
        for effect in effects:
            if isinstance(effect, Send) and isinstance(effect.message, Visit):
                self.asked[effect.to.name] = effect.message
            elif isinstance(effect, Do):
                self.works.append(effect)
            elif isinstance(effect, Pull):
                self.pulls.append(effect.ref.digest)

    def event(self) -> object:
        """Anything that a peer may send, of any attempt, or that the node itself may say."""
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
            return Linked()
        work, ref = self.draw.choice(self.works[-2:]), result(f"w{len(self.works)}")
        if self.draw.random() < 0.2:
            return DidNot(work.key, self.draw.choice(["Fault", "DiskFull"]), "no")
        match work.work:
            case WaveMerge():
                return Did(work.key, Merged({"model": ref}, {"model": ref}))
            case Wrap():
                return Did(work.key, Wrapped({"model": ref}))
            case _:
                good = Passed({"model": ref}, {"model": ref}, 1.0)
                return Did(work.key, self.draw.choice([good, good, good, Failed("no")]))

    def _node(self) -> object:
        draw = self.draw
        who, epoch = device(draw.choice("abs")), Epoch(draw.randint(1, 3), bytes(8))
        return draw.choice([Present(who, epoch, draw.choice(PRESENCES)), Woke(), Linked()])


def check_sane(site: Site) -> None:
    """What must hold between any two events."""
    for key, running in site.edge.site.running.items():
        held = site.edge.state.tours[key]
        assert (running.state == ENDED) == (held.toured is not None)
        assert running.state == LEADING or not running.visits
        waits = [where for each in site.edge.site.waiting.values() for where in each if where[0] == key]
        assert all(held.is_due(hop) and hop not in running.visits for _, hop in waits)


@pytest.mark.parametrize("seed", range(20))
def test_nothing_that_a_peer_may_send_is_unexpected(seed: int) -> None:
    peers, site = Peers(seed), Site()
    for step in range(250):
        if peers.draw.random() < 0.01:
            site.restart()
        peers.see(site.tell(peers.event(), step * 3.0))
        check_sane(site)
