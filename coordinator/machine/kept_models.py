"""Select which models of earlier rounds to keep: the last ones, every Nth, and the best of each job."""

from __future__ import annotations

from collections.abc import Iterable
from typing import TYPE_CHECKING

import msgspec

from coordinator.jobs.goal import best_round
from sojourn.parts import Natural
from sojourn.protocol.wire import RoundReport

if TYPE_CHECKING:
    from coordinator.job_state import JobState


class KeepSettings(msgspec.Struct, frozen=True, forbid_unknown_fields=True, kw_only=True):
    """Which models of finished rounds to keep, in addition to each job's newest and best."""

    last: Natural = 10
    """Number of last rounds whose models are kept."""
    every: Natural = 10
    """Keep the model of every Nth round; 0: none."""
    megabytes: Natural = 1000
    """Maximum size in MB of all kept models of all jobs; beyond it, the oldest rounds of the oldest jobs are
    dropped."""


MAX_MODELS = 1000
"""Maximum models of one job, whatever their size, since each round's record names them."""
BEST_ONLY = KeepSettings(last=0, every=0)
"""For simulations, whose disk is memory."""


def kept_after(state: JobState, report: RoundReport, keep: KeepSettings) -> tuple[int, ...]:
    """Return the rounds whose models are kept when the newest round is closed, and again when it is tested."""
    newest, best = report.round, best_round((*state.history[: report.round - 1], report))
    wanted = [
        number
        for number in sorted({*state.kept, newest})
        if number in (newest, best) or number > newest - keep.last or (keep.every and number % keep.every == 0)
    ]
    newer = {*wanted[-MAX_MODELS:]}
    return tuple(number for number in wanted if number == best or number in newer)


def rounds_within_limit(jobs: Iterable[JobState], keep: KeepSettings) -> dict[str, tuple[int, ...]]:
    """Return the rounds that each job keeps after its models, oldest jobs first, exceeded the size limit."""
    states = list(jobs)
    taken = sum(ref.size for state in states for ref in state.kept.values())
    found: dict[str, tuple[int, ...]] = {}
    for state in states:
        if taken <= keep.megabytes * 1_000_000:
            break
        held, stay = dict(state.kept), (len(state.history), state.best)
        for number in sorted(held):
            if taken > keep.megabytes * 1_000_000 and number not in stay:
                taken -= held.pop(number).size
        if len(held) < len(state.kept):
            found[state.name] = tuple(held)
    return found
