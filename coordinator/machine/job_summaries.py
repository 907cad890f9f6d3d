"""What people read about a job in the coordinator's log: a plan, and a round."""

from __future__ import annotations

from typing import TYPE_CHECKING

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
    return (
        f"job {state.name} round {it.round}: accuracy {it.accuracy:.2%}, loss {it.loss:.4f}, {it.visits} visits, "
        f"{it.lost} failed, {it.traffic / 1e6:.2f} MB, {it.seconds:.1f} s"
    )
