"""What the coordinator's log says about a job: for people a plan and a round, for programs each tour and visit too."""

from __future__ import annotations

from math import isfinite
from typing import TYPE_CHECKING

from coordinator.jobs.goal import figure_of
from sojourn.about import About
from sojourn.node.machine import Say
from sojourn.protocol.figure_names import FIGURES, called, figure_text, finisher_names, own_names

if TYPE_CHECKING:
    from collections.abc import Collection, Iterable, Iterator

    from coordinator.fleet_records import VisitOutcome
    from coordinator.records import RoundClosed, RoundPlanned, TourPlan
    from coordinator.state import JobState
    from sojourn.protocol.messages import Toured
    from sojourn.protocol.wire import RoundReport, TourId


def departs(it: TourId, tour: TourPlan) -> Iterator[Say]:
    """A tour goes to its site: a line for it, and one for each visit, which has its id from here on."""
    yield Say(f"the tour goes to {tour.site}: {len(tour.hops)} devices", "step", it.about(site=tour.site))
    for hop, device in enumerate(tour.hops):
        yield Say("a visit is planned", "step", it.about(site=tour.site, hop=hop, device=device))


def comes_home(toured: Toured, site: str) -> Say:
    """A tour's result is here."""
    size = sum(ref.size for ref in toured.vectors.values())
    text = f"the tour is home: {toured.samples} samples, {size} bytes"
    return Say(text, "step", toured.tour.about(site=site))


def outcomes(job: str, round_: int, visited: Iterable[VisitOutcome]) -> Iterator[Say]:
    """A line for each visit of a round, or of an estimation before it."""
    for it in visited:
        about = About(job, round_, it.tour, it.hop, None, it.device, it.site)
        yield Say(f"visit {it.status}: {it.reason}" if it.reason else f"visit {it.status}", "step", about)


def closed_line(closed: RoundClosed) -> Say:
    """What the tours of a round have become."""
    what = "merged" if closed.merged else "go on, each model by itself"
    text = f"{closed.report.visits} visits {what}"
    return Say(text, "step", About(closed.job, closed.report.round))


def mishap_lines(closed: RoundClosed, known: Collection[str]) -> Iterator[Say]:
    """A warning for each visit and tour of a round that failed or was flagged, grouped by reason.

    known: lines that were logged before the round closed.
    """
    about = About(closed.job, closed.report.round)
    for line in closed.report.failures:
        if line not in known:
            yield Say(f"job {closed.job} round {closed.report.round}: {line}", "warning", about)


def plan_line(state: JobState, plan: RoundPlanned) -> str:
    """A plan in a line."""
    if plan.phase == "estimate":
        return f"job {state.name}: estimating {len(plan.tours)} devices"
    quality = ", ".join(f"{name} {value:.3f}" for name, value in plan.quality.items())
    visits = sum(len(tour.hops) for tour in plan.tours)
    text = f"job {state.name} round {state.round}: {len(plan.tours)} tours, {visits} visits"
    return f"{text} ({quality})" if quality else text


def round_line(state: JobState, it: RoundReport) -> str:
    """A round in a line."""
    kind = state.settings.task.kind
    plain = f"accuracy {it.accuracy:.2%}, loss {it.loss:.4f}"
    names = [name for name in FIGURES[kind] if isfinite(figure_of(it, name))]
    figures = ", ".join(f"{called(name)} {figure_text(name, figure_of(it, name))}" for name in names)
    own = "".join(
        f", {called(name)} {figure_text(name, figure_of(it, name))}"
        for name in (*own_names(kind), *finisher_names(kind))
        if isfinite(figure_of(it, name))
    )
    return (
        f"job {state.name} round {it.round}: {plain if kind == 'classification' else figures or 'not tested'}{own}, "
        f"{it.visits} visits, {it.lost} failed, {it.traffic / 1e6:.2f} MB, {it.seconds:.1f} s"
    )
