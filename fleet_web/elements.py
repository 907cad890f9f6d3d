"""Page elements: text, links, lists of pairs, labelled controls, and sortable tables."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from typing import Any, NamedTuple
from urllib.parse import quote

from nicegui import ui
from nicegui.element import Element
from nicegui.elements.mixins.text_element import TextElement

from sojourn.text import clean

Changed = Callable[[str], Any]


class Words(TextElement):
    """A text element with any tag: `Words("h2", "Devices")`. Setting `.text` to the current text sends nothing."""

    def __init__(self, tag: str, text: str = "", **attributes: Any) -> None:
        super().__init__(tag=tag, text=text)
        self.props.update(attributes)


def link(text: str, *path: str, **query: str) -> Words:
    """Return a link to one of the pages; query parameters are quoted."""
    return Words("a", text, href=address(*path, **query))


def address(*path: str, **query: str) -> str:
    """Return the address of one of the pages."""
    asked = "&".join(f"{quote(key, safe='')}={quote(value, safe='')}" for key, value in query.items())
    return "/" + "/".join(quote(part, safe="") for part in path) + (f"?{asked}" if asked else "")


MAX_VALUE_LENGTH = 2000
"""Maximum number of characters of a value."""


class Pairs:
    """A list of name-value pairs that can be updated; only changed pairs are redrawn."""

    def __init__(self) -> None:
        self._list = ui.element("dl").classes("pairs")
        self._words: tuple[str, ...] = ()
        self._texts: list[Words] = []

    def show(self, pairs: Iterable[tuple[str, str]]) -> None:
        """Show these pairs; if the names are unchanged, only the values are updated."""
        found = [(word, clean(text, MAX_VALUE_LENGTH)) for word, text in pairs]
        words = tuple(word for word, _ in found)
        if words != self._words:
            self._words = words
            self._list.clear()
            with self._list:
                self._texts = [_pair(word) for word in words]
        for at, (_, text) in enumerate(found):
            self._texts[at].text = text


def _pair(word: str) -> Words:
    Words("dt", word)
    return Words("dd", "", dir="auto")


PAGE = 50
"""Number of rows per page of a list."""
_VALUE = "(event) => emit(event.target.value)"


def search_field(changed: Changed) -> None:
    """Add a search field that reports its text after a short delay."""
    with Words("label", "Search ").classes("control"):
        field = Element("input").props('type="search" autocomplete="off" maxlength="200"')
        field.on(
            "input", lambda event: changed(str(event.args)[:200]), js_handler=_VALUE, throttle=0.2, leading_events=False
        )


class Dropdown:
    """A drop-down list; its options can be changed later."""

    def __init__(self, label: str, options: Sequence[tuple[str, str]], changed: Changed) -> None:
        self._options: list[tuple[str, str]] = []
        self._value = ""
        with Words("label", f"{label} ").classes("control"):
            self._select = Element("select")
        self._select.on("change", lambda event: self._chosen(str(event.args), changed), js_handler=_VALUE)
        self.set(options)

    def _chosen(self, value: str, changed: Changed) -> None:
        if any(value == known for known, _ in self._options):
            self._value = value
            changed(value)

    def set(self, options: Sequence[tuple[str, str]]) -> None:
        """Set the options as pairs of value and label."""
        if list(options) == self._options:
            return
        self._options = list(options)
        self._select.clear()
        with self._select:
            for value, text in options:
                option = Words("option", text, value=value)
                if value == self._value:
                    option.props("selected")


class Pager:
    """Selects the visible page of a long list."""

    def __init__(self, turned: Callable[[], Any]) -> None:
        self._turned = turned
        self.page = 0
        with ui.element("nav").classes("pager").props('aria-label="Pages of the list"'):
            self._before = self._button("Previous", -1)
            self._text = Words("span", "", role="status")
            self._next = self._button("Next", 1)

    def _button(self, text: str, by: int) -> Words:
        def turn() -> None:
            self.page = max(0, self.page + by)
            self._turned()

        return Words("button", text, type="button").on("click", turn).classes("button")

    def cut(self, items: Sequence[Any]) -> Sequence[Any]:
        """Return the visible part of the list."""
        last = max(0, (len(items) - 1) // PAGE)
        self.page = min(self.page, last)
        first = self.page * PAGE
        shown = items[first : first + PAGE]
        self._text.text = f"{first + 1:,} to {first + len(shown):,} of {len(items):,}" if items else ""
        for button, off in ((self._before, self.page == 0), (self._next, self.page == last)):
            if button.props.get("disabled", False) != off:
                button.props["disabled"] = off
                button.update()
        return shown


def number_field(label: str, changed: Callable[[int], Any]) -> None:
    """Add a field for a positive number; other input is ignored."""
    with Words("label", f"{label} ").classes("control"):
        field = Element("input").props('type="number" min="1" max="1000000" step="1"')

    def typed(text: str) -> None:
        if text.isascii() and text.isdigit() and 0 < int(text[:8]) <= 1_000_000:
            changed(int(text))

    field.on("input", lambda event: typed(str(event.args)[:8]), js_handler=_VALUE)


MAX_CELL_LENGTH = 400
"""Maximum number of characters of a cell."""


class Column(NamedTuple):
    """The heading of a column."""

    key: str
    label: str
    sortable: bool = False
    number: bool = False


class Cell(NamedTuple):
    """The text, link and tone of a table cell."""

    text: str
    href: str = ""
    tone: str = ""
    """`good`, `warn`, `bad`, `dim` or empty."""


class Row(NamedTuple):
    """A row with a key; a new row with the same key replaces it."""

    key: str
    cells: tuple[Cell, ...]


class TextTable(Element, component="table.js"):
    """A table that is set as a whole; only changed rows are sent and redrawn."""

    def __init__(
        self, caption: str, columns: Iterable[Column], *, empty: str, on_sort: Callable[[str], Any] | None = None
    ) -> None:
        super().__init__()
        self._rows: list[Row] = []
        self.props.update(
            {"caption": caption, "columns": [it._asdict() for it in columns], "rows": [], "empty": empty, "down": False}
        )
        if on_sort:
            self.on("sort", lambda event: on_sort(str(event.args)))

    def show(self, rows: list[Row], sort: str = "", *, down: bool = False, empty: str | None = None) -> None:
        """Show these rows, sorted by that column."""
        changes = {"sort": sort, "down": down} | ({"empty": empty} if empty is not None else {})
        if rows == self._rows and all(self.props.get(key) == value for key, value in changes.items()):
            return
        self._rows = rows
        self.props.update({"rows": [_plain(row) for row in rows], **changes})
        self.update()


def _plain(row: Row) -> dict[str, Any]:
    cells = []
    for cell in row.cells:
        plain = {"text": clean(cell.text, MAX_CELL_LENGTH)}
        if cell.href:
            plain["href"] = cell.href
        if cell.tone:
            plain["tone"] = cell.tone
        cells.append(plain)
    return {"key": row.key, "cells": cells}
