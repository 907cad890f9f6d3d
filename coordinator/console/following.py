"""A job as it goes on: its newest view and the whole history, asked for again and again."""

from __future__ import annotations

import time
from typing import TYPE_CHECKING

import msgspec

from coordinator.records import ENDED
from sojourn.errors import LinkError
from sojourn.protocol.wire import JobView, RoundReport

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator

    from coordinator.console.operator import Operator

PAUSE = 0.5
PATIENCE = 60.0
"""Seconds that a coordinator may take for an answer."""
SILENCE = 5.0
"""Seconds without an answer that a watcher is told of; it goes on asking, and the job itself does not mind."""


class JobProgress(msgspec.Struct, frozen=True):
    """How far a job has come: its newest view, and every round that is done."""

    view: JobView
    history: tuple[RoundReport, ...]
    silent_since: float | None = None
    """When the coordinator answered last, in seconds since 1970, if it answers no more."""
    visits: int | None = None
    """How many visits have ended, where somebody counts them as they do: in a simulation."""

    @property
    def ended(self) -> bool:
        """Whether nothing more will come."""
        return self.view.status in ENDED and len(self.history) >= self.view.round


def failure_of(view: JobView) -> str:
    """Why a job ended in vain, in a sentence with its name; empty where it did not."""
    if view.status not in ("refused", "failed"):
        return ""
    word = "failed" if view.status == "failed" else "was refused"
    after = f" after {view.round} of {view.rounds} rounds" if view.round else ""
    return f"job {view.job} {word}{after}: {view.detail}"


def progress_of(
    operator: Operator, name: str, before: JobProgress | None = None, patience: float = PATIENCE
) -> JobProgress:
    """What is known of a job now; history comes in pages, and only what is new of it."""
    history = before.history if before else ()
    while True:
        view = operator.job(name, len(history), patience)
        history += view.history
        if len(history) >= view.round or not view.history:
            return JobProgress(msgspec.structs.replace(view, history=()), history)


def follow(operator: Operator, name: str, between: Callable[[], None] = lambda: None) -> Iterator[JobProgress]:
    """How a job goes on, about twice a second until it ends. `between` may raise to stop it.

    A coordinator that does not answer is asked on and on; how long it has been silent stands in what is yielded.
    """
    now, answered = progress_of(operator, name), time.time()
    yield now
    while not now.ended:
        time.sleep(PAUSE)
        between()
        try:
            now, answered = progress_of(operator, name, now, SILENCE), time.time()
        except LinkError:
            now = msgspec.structs.replace(now, silent_since=answered)
        yield now
