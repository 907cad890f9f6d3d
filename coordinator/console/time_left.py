"""How long a job will still take, from how fast it has gone so far."""

from __future__ import annotations

from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from collections.abc import Sequence

    from coordinator.console.following import JobProgress
    from sojourn.protocol.wire import TourView

LEAST = 0.5
"""Rounds that must have passed before the pace says anything."""


def share_of_round(tours: Sequence[TourView]) -> float:
    """How much of a round is done."""
    hops = sum(len(tour.hops) for tour in tours)
    done = sum(min(tour.hop + (tour.step / tour.steps if tour.steps else 0.0), len(tour.hops)) for tour in tours)
    return done / hops if hops else 0.0


def rounds_done(progress: JobProgress) -> float:
    """How many rounds are done, with the part of the one under way."""
    view = progress.view
    return view.round + share_of_round(view.tours) * (view.phase == "train")


class TimeLeft:
    """Estimates the time left from successive views of a job.

    Compiling and estimating do not count towards the pace.
    """

    def __init__(self) -> None:
        self._first: tuple[float, float] | None = None

    def seconds(self, progress: JobProgress, now: float) -> float | None:
        """Seconds until the last round is done, at the pace of the rounds seen; None while it cannot be told."""
        view = progress.view
        if view.status != "running" or (view.phase != "train" and not progress.history):
            return None
        done = rounds_done(progress)
        if self._first is None:
            self._first = now, done
        since, before = self._first
        if done - before < LEAST:
            return None
        return (now - since) / (done - before) * max(0.0, view.rounds - done)


def describe_time_left(seconds: float | None) -> str:
    """The time left, for people; nothing where nothing is known."""
    if seconds is None:
        return ""
    minutes, rest = divmod(round(seconds), 60)
    hours, minutes = divmod(minutes, 60)
    if hours:
        return f"{hours} h {minutes:02} min left"
    return f"{minutes} min {rest:02} s left" if minutes else f"{rest} s left"
