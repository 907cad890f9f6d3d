"""Which models of earlier rounds a coordinator keeps: the last ones, every so manieth, and the best of each job."""

from __future__ import annotations

from typing import TYPE_CHECKING

import msgspec

from coordinator.state import best_round
from sojourn.parts import Natural

if TYPE_CHECKING:
    from collections.abc import Iterable

    from coordinator.state import JobState
    from sojourn.protocol.wire import RoundReport


class KeepSettings(msgspec.Struct, frozen=True, forbid_unknown_fields=True, kw_only=True):
    """Which models of finished rounds are kept, besides the newest and the best of each job, which always are."""

    last: Natural = 10
    """Those of the last so many rounds."""
    every: Natural = 10
    """Those of every so manieth round; 0: of none."""
    megabytes: Natural = 1000
    """The room for all of them together, over all jobs: beyond it the oldest rounds of the oldest jobs go first."""


MOST = 1000
"""Models of one job, however small they are: each round's record names them."""
BEST_ONLY = KeepSettings(last=0, every=0)
"""Where memory is the disk: a simulation."""


def kept_after(state: JobState, report: RoundReport, keep: KeepSettings) -> tuple[int, ...]:
    """The rounds of a job whose models are kept when its newest one is closed, and again when that is measured."""
    newest, best = report.round, best_round((*state.history[: report.round - 1], report))
    wanted = [
        number
        for number in sorted({*(state.kept or {}), newest})
        if number in (newest, best) or number > newest - keep.last or (keep.every and number % keep.every == 0)
    ]
    newer = {*wanted[-MOST:]}
    return tuple(number for number in wanted if number == best or number in newer)


def let_go(jobs: Iterable[JobState], keep: KeepSettings) -> dict[str, tuple[int, ...]]:
    """Where the models of all jobs, oldest first, take more than their room: the rounds that each job still keeps."""
    states = list(jobs)
    taken = sum(ref.size for state in states for ref in (state.kept or {}).values())
    found: dict[str, tuple[int, ...]] = {}
    for state in states:
        if taken <= keep.megabytes * 1_000_000:
            break
        held, stay = dict(state.kept or {}), (len(state.history), state.best)
        for number in sorted(held):
            if taken > keep.megabytes * 1_000_000 and number not in stay:
                taken -= held.pop(number).size
        if len(held) < len(state.kept or {}):
            found[state.name] = tuple(held)
    return found
