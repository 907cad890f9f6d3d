"""Times and durations as people read them."""

from __future__ import annotations

from coordinator.console.fleet_tables import age
from coordinator.console.fleet_tables import moment as date
from sojourn.figures import clock_of

__all__ = ["RUN_CLOCK", "age", "moment"]
RUN_CLOCK = 1e6
"""Moments before this one, in seconds since 1970, are no dates: they are told by the clock of a run in a folder."""


def moment(at: float) -> str:
    """When something happened: a date, or how long after the beginning of a run."""
    return date(at) if at >= RUN_CLOCK else f"{clock_of(at)} into the run"
