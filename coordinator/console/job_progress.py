"""The progress of a job: its newest view and history, its pace and the time left."""

from __future__ import annotations

import time
from collections import deque
from collections.abc import Callable, Iterator, Sequence
from typing import TYPE_CHECKING

import msgspec

from coordinator.records import ENDED
from sojourn.errors import LinkError
from sojourn.protocol.wire import JobView, RoundReport, TourView

if TYPE_CHECKING:
    from coordinator.console.operator import Operator


POLL_INTERVAL = 0.5
SILENCE_TIMEOUT = 60.0
"""Maximum seconds that a coordinator may take to answer."""
SILENCE_NOTICE = 5.0
"""Seconds without an answer before a watcher is informed; requests continue, and the job is not affected."""


class JobProgress(msgspec.Struct, frozen=True):
    """A job's newest view, and all rounds that are done."""

    view: JobView
    history: tuple[RoundReport, ...]
    silent_since: float | None = None
    """When the coordinator last answered, in seconds since 1970, if it no longer answers."""
    visits: int | None = None
    """How many visits have ended, if counted live, as in a simulation."""

    @property
    def ended(self) -> bool:
        """Whether the job is over."""
        return self.view.status in ENDED and len(self.history) >= self.view.round


def failure_of(view: JobView) -> str:
    """Return why a job failed, in a sentence with its name; empty if it did not fail."""
    if view.status not in ("refused", "failed"):
        return ""
    word = "failed" if view.status == "failed" else "was refused"
    after = f" after {view.round} of {view.rounds} rounds" if view.round else ""
    return f"job {view.job} {word}{after}: {view.detail}"


def progress_of(
    operator: Operator, name: str, before: JobProgress | None = None, timeout: float = SILENCE_TIMEOUT
) -> JobProgress:
    """Return the current progress of a job; fetches its history in pages, and only the new part."""
    history = before.history if before else ()
    while True:
        view = operator.job(name, len(history), timeout)
        history += view.history
        if len(history) >= view.round or not view.history:
            return JobProgress(msgspec.structs.replace(view, history=()), history)


def follow(operator: Operator, name: str, between: Callable[[], None] = lambda: None) -> Iterator[JobProgress]:
    """Yield the progress of a job about twice a second until it ends. `between` may raise to stop it.

    A coordinator that does not answer is asked again; the progress then shows since when it has been silent.
    """
    now, answered = progress_of(operator, name), time.time()
    yield now
    while not now.ended:
        time.sleep(POLL_INTERVAL)
        between()
        try:
            now, answered = progress_of(operator, name, now, SILENCE_NOTICE), time.time()
        except LinkError:
            now = msgspec.structs.replace(now, silent_since=answered)
        yield now


def clocked(progress: JobProgress) -> Iterator[tuple[RoundReport, float]]:
    """Yield rounds with the seconds from submission to their end; without dates, with the sum of round times."""
    begun = progress.view.times.submitted if progress.view.times else None
    passed = 0.0
    for report in progress.history:
        passed += report.seconds
        dated = isinstance(report.ended, float) and begun is not None
        yield report, max(0.0, report.ended - begun) if dated else passed  # type: ignore[operator]


WINDOW = 10.0
"""Seconds over which a rate is averaged: long enough to be smooth, short enough to be current."""


class VisitRate:
    """Visits per second over the last few seconds."""

    def __init__(self) -> None:
        self._seen: deque[tuple[float, int]] = deque()

    def per_second(self, progress: JobProgress, now: float) -> float | None:
        """Return the rate; None if visits are not counted, or none has ended yet."""
        if progress.visits is None:
            return None
        self._seen.append((now, progress.visits))
        # Count from the newest sample that is at least a whole window old.
        while len(self._seen) > 2 and self._seen[1][0] <= now - WINDOW:
            self._seen.popleft()
        since, before = self._seen[0]
        return (progress.visits - before) / (now - since) if progress.visits > before and now > since else None


def describe_rate(per_second: float | None) -> str:
    """Return the rate as text; empty if it is unknown."""
    if per_second is None:
        return ""
    if per_second < 1:
        return f"{60 * per_second:.0f} visits/min"
    return f"{per_second:.1f} visits/s" if per_second < 10 else f"{per_second:,.0f} visits/s"


MIN_ROUNDS = 0.5
"""Minimum number of rounds before the pace is used."""


def share_of_round(tours: Sequence[TourView]) -> float:
    """Return the share of a round that is done."""
    hops = sum(len(tour.hops) for tour in tours)
    done = sum(min(tour.hop + (tour.step / tour.steps if tour.steps else 0.0), len(tour.hops)) for tour in tours)
    return done / hops if hops else 0.0


def rounds_done(progress: JobProgress) -> float:
    """Return the number of rounds that are done, including a fraction for the current one."""
    view = progress.view
    return view.round + share_of_round(view.tours) * (view.phase == "train")


class TimeLeft:
    """Estimates the time left from successive views of a job.

    Compiling and estimating do not count towards the pace.
    """

    def __init__(self) -> None:
        self._first: tuple[float, float] | None = None

    def seconds(self, progress: JobProgress, now: float) -> float | None:
        """Return the seconds until the last round is done, at the current pace; None if it is unknown."""
        view = progress.view
        if view.status != "running" or (view.phase != "train" and not progress.history):
            return None
        done = rounds_done(progress)
        if self._first is None:
            self._first = now, done
        since, before = self._first
        if done - before < MIN_ROUNDS:
            return None
        return (now - since) / (done - before) * max(0.0, view.rounds - done)


def describe_time_left(seconds: float | None) -> str:
    """Return the time left as text; empty if it is unknown."""
    if seconds is None:
        return ""
    minutes, rest = divmod(round(seconds), 60)
    hours, minutes = divmod(minutes, 60)
    if hours:
        return f"{hours} h {minutes:02} min left"
    return f"{minutes} min {rest:02} s left" if minutes else f"{rest} s left"
