"""Format dates in the local time zone."""

from __future__ import annotations

import datetime as dt


def date_of(moment: float | None) -> str:
    """Return a date and time to the minute; a dash if it is unknown."""
    return f"{_local(moment):%Y-%m-%d %H:%M}" if moment is not None else "-"


def short_date(moment: float | None, today: float) -> str:
    """Return a date as short as possible: today only the time, in this year without the year, otherwise the date."""
    if moment is None:
        return "-"
    at, now = _local(moment), _local(today)
    if at.date() == now.date():
        return f"{at:%H:%M}"
    return f"{at:%m-%d %H:%M}" if at.year == now.year else f"{at:%Y-%m-%d}"


def time_of(moment: float) -> str:
    """Return the time of day, to the second."""
    return f"{_local(moment):%H:%M:%S}"


def _local(moment: float) -> dt.datetime:
    try:
        return dt.datetime.fromtimestamp(moment, dt.UTC).astimezone()
    except (OverflowError, OSError, ValueError):  # a coordinator may send any number
        return dt.datetime.fromtimestamp(0, dt.UTC)
