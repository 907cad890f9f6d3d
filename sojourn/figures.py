"""Numbers as people read them, the same in every table, line and page."""

from __future__ import annotations

from math import isfinite


def percent(share: float) -> str:
    """A share for people; a dash where there is none."""
    return f"{share:.1%}".replace("%", " %") if isfinite(share) else "-"


def number(value: float) -> str:
    """A number for people; a dash where there is none."""
    return f"{value:.4f}" if isfinite(value) else "-"


def clock_of(seconds: float) -> str:
    """A time for people."""
    if seconds < 1:
        return f"{1000 * seconds:.0f} ms"
    if seconds < 60:
        return f"{seconds:.1f} s"
    days, minutes = divmod(int(seconds // 60), 24 * 60)
    hours, minutes = divmod(minutes, 60)
    if days:
        return f"{days} d {hours:02} h"
    return f"{hours} h {minutes:02} min" if hours else f"{minutes} min {int(seconds % 60):02} s"
