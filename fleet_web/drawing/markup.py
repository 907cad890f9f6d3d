"""HTML and SVG as text, in which whatever is not said to be markup is escaped."""

from __future__ import annotations

from html import escape
from typing import TYPE_CHECKING

from sojourn.text import clean

if TYPE_CHECKING:
    from collections.abc import Iterable

    Value = str | int | float | bool | None

LABEL = 60
"""Characters of a name on a page; the whole of it stands in its title."""
_EMPTY = frozenset({"circle", "line", "path", "rect", "polyline", "br", "use"})


class Markup(str):
    """Text that is markup already."""

    __slots__ = ()


def tag(name: str, *content: str, **attributes: Value) -> Markup:
    """An element. Underscores of attributes' names are dashes (`class_` is `class`); None and False are left out."""
    told = {key: value for key, value in attributes.items() if value is not None and value is not False}
    said = "".join(f" {_attribute(key)}{_value(value)}" for key, value in told.items())
    if name in _EMPTY and not content:
        return Markup(f"<{name}{said}/>")
    return Markup(f"<{name}{said}>{joined(content)}</{name}>")


def joined(parts: Iterable[str]) -> Markup:
    """Parts one after another; what is no markup is escaped."""
    return Markup("".join(part if isinstance(part, Markup) else escape(part) for part in parts))


def _attribute(name: str) -> str:
    return name.rstrip("_").replace("_", "-") if name != "viewBox" else name


def _value(value: Value) -> str:
    if value is True:
        return ""
    text = f"{value:.4g}" if isinstance(value, float) else str(value)
    return f'="{escape(text)}"'


def name_of(text: str, longest: int = LABEL) -> Markup:
    """A peer's name: cut, cleaned, and kept from turning the direction of what stands beside it."""
    short = clean(text, longest)
    whole = clean(text, 4 * LABEL)
    return tag("bdi", short, title=whole if whole != short else None)


def table(
    head: Iterable[str], rows: Iterable[Iterable[str]], caption: str, *, numbers: Iterable[int] = (), label: int = 0
) -> Markup:
    """A table that scrolls by itself. numbers: the columns that stand right; label: the column that names a row."""
    right = frozenset(numbers)
    columns = [tag("th", it, scope="col", class_="number" if at in right else None) for at, it in enumerate(head)]
    lines = [tag("tr", *(_cell(at, it, right, label) for at, it in enumerate(row))) for row in rows]
    inner = tag(
        "table", tag("caption", caption), tag("thead", tag("tr", *columns)), tag("tbody", *lines)
    )  # fmt: skip
    return tag("div", inner, class_="scroll", tabindex="0", role="region", aria_label=caption)


def _cell(at: int, content: str, right: frozenset[int], label: int) -> Markup:
    kind = "number" if at in right else None
    if at == label:
        return tag("th", content, scope="row", class_=kind)
    return tag("td", content, class_=kind)
