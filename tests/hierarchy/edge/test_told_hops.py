"""What a tour tells of its hops: nothing while all goes as planned, and then who failed and who stepped in."""

from __future__ import annotations

import pytest
from msgspec import UNSET

from hierarchy.edge.records import TourState
from hierarchy.edge.told_hops import ENDED, told_of
from sojourn.protocol.limits import LABEL
from sojourn.protocol.messages import Declined, TourProgress
from sojourn.protocol.wire import HopEnd, TourTold, VisitReport
from tests.hierarchy.edge.site_bench import Bench, device, tour, visit_id
from tests.sojourn.store.replays import sends


def report(hop: int, name: str, status: str = "done", reason: str = "") -> VisitReport:
    return VisitReport(name, hop, status, reason, 5, 1.0, {}, None, 1.0)  # type: ignore[arg-type]


def state(*reports: VisitReport, lost: int = 0, **order) -> TourState:
    found = TourState.of(tour(("a", "b"), ("s",), **order), 0)
    found.reports, found.lost = list(reports), lost
    return found


def test_while_all_goes_as_planned_nothing_is_told_and_bytes_stay_as_they_were() -> None:
    assert told_of(state(report(0, "a"), report(1, "b"))) is UNSET


def test_failures_and_spares_are_told_with_short_reasons() -> None:
    told = told_of(state(report(0, "a"), report(1, "b", "lost", "x" * 5000), report(1, "s"), lost=1))
    assert told == TourTold((HopEnd(1, "b", "lost", "x" * LABEL), HopEnd(1, "s", "done")))


def test_of_many_the_newest_are_told() -> None:
    told = told_of(state(*(report(0, "a", "lost", str(at)) for at in range(200)), lost=200))
    assert told is not UNSET
    assert [it.reason for it in told.ended] == [str(at) for at in range(200 - ENDED, 200)]


@pytest.mark.parametrize(("policy", "then"), [("swap", "s"), ("skip", "b")])
def test_a_decline_reaches_the_coordinator_with_the_next_sign_of_life(policy: str, then: str) -> None:
    bench = Bench()
    bench.take(tour(("a", "b"), ("s",), on_lost_visit=policy))
    effects = bench.hear(device("a"), Declined(visit_id(), "hot", "82 C"), 50.0)
    (said,) = [it for it in sends(effects) if isinstance(it, TourProgress)]
    assert (said.device, said.lost) == (then, 1)
    assert said.told == TourTold((HopEnd(0, "a", "declined", "hot: 82 C"),))


def test_how_the_last_hop_ended_is_told_though_the_tour_is_over() -> None:
    bench = Bench()
    bench.take(tour(("a",), on_lost_visit="skip"))
    effects = bench.hear(device("a"), Declined(visit_id(), "hot", "82 C"), 0.1)
    (said,) = [it for it in sends(effects) if isinstance(it, TourProgress)]
    assert said.told == TourTold((HopEnd(0, "a", "declined", "hot: 82 C"),))
