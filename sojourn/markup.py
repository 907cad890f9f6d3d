"""HTML and SVG as text that is escaped by default: every page and picture of Sojourn is built from these elements."""

from __future__ import annotations

from collections.abc import Iterable
from html import escape

Value = str | int | float | bool | None

_EMPTY = frozenset({"br", "circle", "img", "input", "line", "meta", "path", "polyline", "rect", "use"})


class Markup(str):
    """Text that already is markup, and is not escaped again."""

    __slots__ = ()


def tag(element: str, /, *content: str, **attributes: Value) -> Markup:
    """Return an element; attribute names use dashes for `_` (`class_` is `class`); None and False are omitted."""
    given = {key: value for key, value in attributes.items() if value is not None and value is not False}
    opening = element + "".join(f" {_attribute(key)}{_value(value)}" for key, value in given.items())
    if element in _EMPTY and not content:
        return Markup(f"<{opening}/>")
    return Markup(f"<{opening}>{joined(content)}</{element}>")


def joined(parts: Iterable[str]) -> Markup:
    """Join parts; everything that is not markup is escaped."""
    return Markup("".join(part if isinstance(part, Markup) else escape(part) for part in parts))


def page(title: str, style: str, *content: str) -> Markup:
    """Return a whole page that loads only what its content names. style: CSS, which is not escaped."""
    head = tag(
        "head",
        tag("meta", charset="utf-8"),
        tag("meta", name="viewport", content="width=device-width, initial-scale=1"),
        tag("title", title),
        tag("style", Markup(style)),
    )
    return joined([Markup("<!doctype html>"), tag("html", head, tag("body", *content), lang="en")])


def _attribute(name: str) -> str:
    return name.rstrip("_").replace("_", "-") if name != "viewBox" else name


def _value(value: Value) -> str:
    if value is True:
        return ""
    text = f"{value:.4g}" if isinstance(value, float) else str(value)
    return f'="{escape(text)}"'
