"""A table of text, whose headings sort it; on a narrow screen each row is a card."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, NamedTuple

from nicegui.element import Element

from sojourn.text import clean

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable

LONGEST = 400
"""Characters of a cell."""


class Column(NamedTuple):
    """What stands above a column."""

    key: str
    label: str
    sortable: bool = False
    number: bool = False


class Cell(NamedTuple):
    """Text, where it leads to, and whether it is good or bad news."""

    text: str
    href: str = ""
    tone: str = ""
    """`good`, `warn`, `bad`, `dim` or nothing."""


class Row(NamedTuple):
    """A row that is known by its key: another one of that key takes its place."""

    key: str
    cells: tuple[Cell, ...]


class TextTable(Element, component="table.js"):
    """A table that is set as a whole; only what differs is sent, and only that is drawn anew."""

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
        plain = {"text": clean(cell.text, LONGEST)}
        if cell.href:
            plain["href"] = cell.href
        if cell.tone:
            plain["tone"] = cell.tone
        cells.append(plain)
    return {"key": row.key, "cells": cells}
