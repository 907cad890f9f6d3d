"""Controls with labels: a search, a choice, and the pages of a long list. Plain elements that every browser knows."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from nicegui import ui
from nicegui.element import Element

from fleet_web.words import Words

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence

    Changed = Callable[[str], Any]

PAGE = 50
"""Rows that are sent at a time."""
_VALUE = "(event) => emit(event.target.value)"


def search(label: str, changed: Changed, value: str = "") -> None:
    """A field to search with; what is typed counts a moment later."""
    with Words("label", f"{label} ").classes("control"):
        field = Element("input").props('type="search" autocomplete="off" maxlength="200"')
        field.props["value"] = value
        field.on(
            "input", lambda event: changed(str(event.args)[:200]), js_handler=_VALUE, throttle=0.2, leading_events=False
        )


class Dropdown:
    """One of several; the options may be set later."""

    def __init__(self, label: str, options: Sequence[tuple[str, str]], changed: Changed, value: str = "") -> None:
        self._options: list[tuple[str, str]] = []
        self._value = value
        with Words("label", f"{label} ").classes("control"):
            self._select = Element("select")
        self._select.on("change", lambda event: self._chosen(str(event.args), changed), js_handler=_VALUE)
        self.set(options)

    def _chosen(self, value: str, changed: Changed) -> None:
        if any(value == known for known, _ in self._options):
            self._value = value
            changed(value)

    def set(self, options: Sequence[tuple[str, str]]) -> None:
        """Let these be the options: each a value and what is shown."""
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
    """Which page of a long list is shown."""

    def __init__(self, turned: Callable[[], Any], size: int = PAGE) -> None:
        self._turned, self._size = turned, size
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
        """The part of the list that is shown."""
        last = max(0, (len(items) - 1) // self._size)
        self.page = min(self.page, last)
        first = self.page * self._size
        shown = items[first : first + self._size]
        text = f"{first + 1:,} to {first + len(shown):,} of {len(items):,}" if items else ""
        if self._text.text != text:
            self._text.text = text
        for button, off in ((self._before, self.page == 0), (self._next, self.page == last)):
            if button.props.get("disabled", False) != off:
                button.props["disabled"] = off
                button.update()
        return shown


def number_field(label: str, changed: Callable[[int], Any]) -> None:
    """A field for a count; what is no count is not heard."""
    with Words("label", f"{label} ").classes("control"):
        field = Element("input").props('type="number" min="1" max="1000000" step="1"')

    def typed(text: str) -> None:
        if text.isascii() and text.isdigit() and 0 < int(text[:8]) <= 1_000_000:
            changed(int(text))

    field.on("input", lambda event: typed(str(event.args)[:8]), js_handler=_VALUE)
