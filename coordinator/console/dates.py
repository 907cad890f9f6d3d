"""Format dates in the local time zone, and durations."""

from __future__ import annotations

import datetime as dt

_UNITS = ((86_400.0, "d"), (3600.0, "h"), (60.0, "min"))


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


def moment(at: float) -> str:
    """Return a date and time to the second."""
    return f"{_local(at):%Y-%m-%d %H:%M:%S}"


def time_of(moment: float) -> str:
    """Return the time of day, to the second."""
    return f"{_local(moment):%H:%M:%S}"


def age(seconds: float) -> str:
    """Return a duration with one unit."""
    for length, unit in _UNITS:
        if seconds >= length:
            return f"{seconds / length:.0f} {unit}"
    return f"{max(0.0, seconds):.0f} s"


def _local(moment: float) -> dt.datetime:
    try:
        return dt.datetime.fromtimestamp(moment, dt.UTC).astimezone()
    except (OverflowError, OSError, ValueError):  # a coordinator may send any number
        return dt.datetime.fromtimestamp(0, dt.UTC)
