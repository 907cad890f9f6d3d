"""Moments as people write them, in the time of where they are."""

from __future__ import annotations

import datetime as dt


def date_of(moment: float | None) -> str:
    """A day and a time, to the minute; a dash where it is not known."""
    return f"{_local(moment):%Y-%m-%d %H:%M}" if moment is not None else "-"


def short_date(moment: float | None, today: float) -> str:
    """The same as short as can be said `today`: the time alone, else the day of this year, else the day."""
    if moment is None:
        return "-"
    at, now = _local(moment), _local(today)
    if at.date() == now.date():
        return f"{at:%H:%M}"
    return f"{at:%m-%d %H:%M}" if at.year == now.year else f"{at:%Y-%m-%d}"


def time_of(moment: float) -> str:
    """The time of a day, to the second."""
    return f"{_local(moment):%H:%M:%S}"


def _local(moment: float) -> dt.datetime:
    try:
        return dt.datetime.fromtimestamp(moment, dt.UTC).astimezone()
    except (OverflowError, OSError, ValueError):  # whatever a coordinator says
        return dt.datetime.fromtimestamp(0, dt.UTC)
