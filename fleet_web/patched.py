"""An element whose content is markup that is changed in place, without flicker."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING

from nicegui import ui
from nicegui.element import Element

if TYPE_CHECKING:
    from collections.abc import Awaitable, Callable

    from nicegui.events import GenericEventArguments

    from fleet_web.drawing.markup import Markup

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


def _call(act: Callable[[str, str], Awaitable[None] | None], event: GenericEventArguments) -> Awaitable[None] | None:
    said = event.args if isinstance(event.args, str) else ""
    name, _, value = said[:LONGEST_ACT].partition(":")
    return act(name, value)


def add_style() -> None:
    """Let this page have the pictures' style."""
    ui.add_css(STYLE)
