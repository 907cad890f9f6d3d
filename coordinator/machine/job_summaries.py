"""What people read about a job in the coordinator's log: a plan, and a round."""

from __future__ import annotations

from math import isfinite
from typing import TYPE_CHECKING

from coordinator.jobs.goal import figure_of
from sojourn.protocol.figure_names import FIGURES, called, figure_text, finisher_names, own_names

if TYPE_CHECKING:
    from coordinator.records import RoundPlanned
    from coordinator.state import JobState
    from sojourn.protocol.wire import RoundReport


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
