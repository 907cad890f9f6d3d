"""What a tour reports of its hops: nothing while all goes as planned, then failures and replacements."""

from __future__ import annotations

import pytest

from hierarchy.edge.records import TourState
from hierarchy.edge.tours import MAX_HOP_ENDS, hop_ends_of
from sojourn.protocol.limits import LABEL
from sojourn.protocol.messages import Declined, TourProgress
from sojourn.protocol.wire import HopEnd, HopEnds, VisitReport
from tests.hierarchy.edge.site_bench import Bench, device, tour, visit_id
from tests.sojourn.store.replays import sends


def report(hop: int, name: str, status: str = "done", reason: str = "") -> VisitReport:
    return VisitReport(name, hop, status, reason, 5, 1.0, {}, None, 1.0)  # type: ignore[arg-type]


def state(*reports: VisitReport, lost: int = 0, **order) -> TourState:
    found = TourState.of(tour(("a", "b"), ("s",), **order), 0)
    found.reports, found.lost = list(reports), lost
    return found


def test_progress_without_failures_has_no_hop_report() -> None:
    assert hop_ends_of(state(report(0, "a"), report(1, "b"))) is None


def test_failures_and_spares_are_reported_with_short_reasons() -> None:
    found = hop_ends_of(state(report(0, "a"), report(1, "b", "lost", "x" * 5000), report(1, "s"), lost=1))
    assert found == HopEnds((HopEnd(1, "b", "lost", "x" * LABEL), HopEnd(1, "s", "done")))


def test_only_the_newest_failures_are_reported() -> None:
    found = hop_ends_of(state(*(report(0, "a", "lost", str(at)) for at in range(200)), lost=200))
    assert found is not None
    assert [it.reason for it in found.ended] == [str(at) for at in range(200 - MAX_HOP_ENDS, 200)]


@pytest.mark.parametrize(("policy", "then"), [("swap", "s"), ("skip", "b")])
def test_decline_is_reported_with_the_next_heartbeat(policy: str, then: str) -> None:
    bench = Bench()
    bench.take(tour(("a", "b"), ("s",), on_lost_visit=policy))
    effects = bench.receive(device("a"), Declined(visit_id(), "hot", "82 C"), 50.0)
    (progress,) = [it for it in sends(effects) if isinstance(it, TourProgress)]
    assert (progress.device, progress.lost) == (then, 1)
    assert progress.ends == HopEnds((HopEnd(0, "a", "declined", "hot: 82 C"),))


def test_end_of_the_last_hop_is_reported_after_the_tour() -> None:
    bench = Bench()
    bench.take(tour(("a",), on_lost_visit="skip"))
    effects = bench.receive(device("a"), Declined(visit_id(), "hot", "82 C"), 0.1)
    (progress,) = [it for it in sends(effects) if isinstance(it, TourProgress)]
    assert progress.ends == HopEnds((HopEnd(0, "a", "declined", "hot: 82 C"),))
