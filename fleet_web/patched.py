"""An element whose content is markup that is changed in place, without flicker."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING

from nicegui import ui
from nicegui.element import Element

from fleet_web.drawing.markup import Markup

if TYPE_CHECKING:
    from collections.abc import Awaitable, Callable, Sequence

    from nicegui.events import GenericEventArguments

STYLE = Path(__file__).with_name("pictures.css")
LONGEST_ACT = 200
"""Characters of what a page says that somebody pressed."""


class Patched(Element, component="patched.js"):
    """Shows markup. Setting `.markup` to what is shown already sends nothing."""

    def __init__(self, act: Callable[[str, str], Awaitable[None] | None] | None = None) -> None:
        """`act` is called with the name and the value of whatever was pressed or chosen (`data-act="name:value"`)."""
        super().__init__()
        self._props["markup"] = ""
        if act is not None:
            self.on("act", lambda event: _call(act, event))

    @property
    def markup(self) -> str:
        """What is shown."""
        return str(self._props["markup"])

    @markup.setter
    def markup(self, markup: Markup) -> None:
        if markup != self._props["markup"]:
            self._props["markup"] = str(markup)
            self.update()


class PatchedGrid:
    """Several pieces of markup side by side; of each only what has changed is sent."""

    def __init__(self, kind: str) -> None:
        """`kind` is the class by which the style sheet knows it."""
        self._box = Element("div").classes(kind)
        self._cells: list[Patched] = []

    def show(self, parts: Sequence[Markup]) -> None:
        """Show these; what is there beyond them becomes empty."""
        with self._box:
            self._cells += [Patched() for _ in range(len(parts) - len(self._cells))]
        for at, cell in enumerate(self._cells):
            cell.markup = parts[at] if at < len(parts) else Markup()


def _call(act: Callable[[str, str], Awaitable[None] | None], event: GenericEventArguments) -> Awaitable[None] | None:
    said = event.args if isinstance(event.args, str) else ""
    name, _, value = said[:LONGEST_ACT].partition(":")
    return act(name, value)


def add_style() -> None:
    """Let this page have the pictures' style."""
    ui.add_css(STYLE)
