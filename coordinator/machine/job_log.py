"""Log lines about a job: plans and rounds for people; tours and visits as well for programs."""

from __future__ import annotations

from collections.abc import Collection, Iterable, Iterator
from math import isfinite
from typing import TYPE_CHECKING

from coordinator.fleet_records import VisitOutcome
from coordinator.jobs.goal import metric_of
from sojourn.logs import About
from sojourn.node.machine import Log
from sojourn.protocol.messages import Toured
from sojourn.protocol.metric_names import TASK_METRICS, called, finisher_names, metric_text, own_names
from sojourn.protocol.wire import RoundReport, TourId
from sojourn.text import quantity

if TYPE_CHECKING:
    from coordinator.job_state import JobState
    from coordinator.records import RoundClosed, RoundPlanned, TourPlan


def log_tour_sent(it: TourId, tour: TourPlan) -> Iterator[Log]:
    """Log that a tour is sent to its site, with a line for each visit, which has its id from then on."""
    yield Log(f"the tour goes to {tour.site}: {quantity(len(tour.hops), 'device')}", "step", it.about(site=tour.site))
    for hop, device in enumerate(tour.hops):
        yield Log("a visit is planned", "step", it.about(site=tour.site, hop=hop, device=device))


def log_tour_complete(toured: Toured, site: str) -> Log:
    """Log that a tour's result was received."""
    size = sum(ref.size for ref in toured.vectors.values())
    text = f"tour complete: {toured.samples} samples, {size} bytes"
    return Log(text, "step", toured.tour.about(site=site))


def outcomes(job: str, round_: int, visited: Iterable[VisitOutcome]) -> Iterator[Log]:
    """Log each visit of a round, or of an estimation before it."""
    for it in visited:
        about = About(job, round_, it.tour, it.hop, None, it.device, it.site)
        yield Log(f"visit {it.status}: {it.reason}" if it.reason else f"visit {it.status}", "step", about)


def closed_line(closed: RoundClosed) -> Log:
    """Log the result of a round's tours."""
    what = "merged" if closed.merged else "continue, each with its own model"
    text = f"{quantity(closed.report.visits, 'visit')} {what}"
    return Log(text, "step", About(closed.job, closed.report.round))


def failure_lines_of(closed: RoundClosed, known: Collection[str]) -> Iterator[Log]:
    """Log a warning for each visit and tour of a round that failed or was flagged, grouped by reason.

    known: lines that were logged before the round closed.
    """
    about = About(closed.job, closed.report.round)
    for line in closed.report.failures:
        if line not in known:
            yield Log(f"job {closed.job} round {closed.report.round}: {line}", "warning", about)


def plan_line(state: JobState, plan: RoundPlanned) -> str:
    """Return a log line that describes a plan."""
    if plan.phase == "estimate":
        return f"job {state.name}: estimating {quantity(len(plan.tours), 'device')}"
    quality = ", ".join(f"{name} {value:.3f}" for name, value in plan.quality.items())
    visits = sum(len(tour.hops) for tour in plan.tours)
    text = f"job {state.name} round {state.round}: {quantity(len(plan.tours), 'tour')}, {quantity(visits, 'visit')}"
    return f"{text} ({quality})" if quality else text


def round_line(state: JobState, it: RoundReport) -> str:
    """Return a log line that describes a round."""
    kind = state.settings.task.kind
    plain = f"accuracy {it.accuracy:.2%}, loss {it.loss:.4f}"
    names = [name for name in TASK_METRICS[kind] if isfinite(metric_of(it, name))]
    metrics = ", ".join(f"{called(name)} {metric_text(name, metric_of(it, name))}" for name in names)
    own = "".join(
        f", {called(name)} {metric_text(name, metric_of(it, name))}"
        for name in (*own_names(kind), *finisher_names(kind))
        if isfinite(metric_of(it, name))
    )
    return (
        f"job {state.name} round {it.round}: {plain if kind == 'classification' else metrics or 'not tested'}{own}, "
        f"{quantity(it.visits, 'visit')}, {it.lost} failed, {it.traffic / 1e6:.2f} MB, {it.seconds:.1f} s"
    )
