"""Names, tables and times as HTML."""

from __future__ import annotations

from collections.abc import Iterable

from coordinator.console.dates import age
from coordinator.console.dates import moment as date
from sojourn.markup import Markup, tag
from sojourn.text import clean, clock_of

__all__ = ["RUN_CLOCK", "age", "moment"]
RUN_CLOCK = 1e6
"""Timestamps below this one (seconds since 1970) are offsets from the start of a run in a folder, not dates."""


def moment(at: float) -> str:
    """Format a timestamp as a date, or as the time since the start of a run."""
    return date(at) if at >= RUN_CLOCK else f"{clock_of(at)} into the run"


LABEL = 60
"""Maximum number of characters of a name on a page; its tooltip shows the full name."""


def name_of(text: str) -> Markup:
    """Return a peer's name: shortened, cleaned, and isolated from the text direction around it."""
    short = clean(text, LABEL)
    whole = clean(text, 4 * LABEL)
    return tag("bdi", short, title=whole if whole != short else None)


def table(head: Iterable[str], rows: Iterable[Iterable[str]], caption: str, *, numbers: Iterable[int] = ()) -> Markup:
    """Return a scrollable table whose first column names the rows. numbers: the right-aligned columns."""
    right = frozenset(numbers)
    columns = [tag("th", it, scope="col", class_="number" if at in right else None) for at, it in enumerate(head)]
    lines = [tag("tr", *(_cell(at, it, right) for at, it in enumerate(row))) for row in rows]
    inner = tag(
        "table", tag("caption", caption), tag("thead", tag("tr", *columns)), tag("tbody", *lines)
    )  # fmt: skip
    return tag("div", inner, class_="scroll", tabindex="0", role="region", aria_label=caption)


def _cell(at: int, content: str, right: frozenset[int]) -> Markup:
    kind = "number" if at in right else None
    if at == 0:
        return tag("th", content, scope="row", class_=kind)
    return tag("td", content, class_=kind)
