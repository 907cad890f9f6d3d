"""Updates an open page when its source changes, and patches its markup in place without flicker."""

from __future__ import annotations

import time
from collections.abc import Awaitable, Callable, Sequence
from pathlib import Path

from nicegui import ui
from nicegui.element import Element
from nicegui.events import GenericEventArguments

from fleet_web.elements import Words
from fleet_web.sources.source import Source, Topic
from sojourn.errors import LinkError, SojournError
from sojourn.markup import Markup
from sojourn.text import clean_lines

MAX_PAUSE = 10.0
"""Maximum seconds between two updates, so that relative times such as "3 s ago" stay current."""
PAUSE = 0.1
"""Seconds between two checks of the source's change markers; a check sends no request."""


def follow(
    source: Source, topics: tuple[Topic, ...], refresh: Callable[[], Awaitable[None]], pause: float = PAUSE
) -> None:
    """Call `refresh` now and whenever one of the topics changes, for as long as the page is open.

    Calls never overlap. `refresh` should update existing elements instead of creating new ones, to avoid flicker.
    """
    client = ui.context.client
    looked: tuple[tuple[int, ...], float] | None = None
    error = Words("p", "", role="alert").classes("bad")

    async def look() -> None:
        nonlocal looked
        if not client.has_socket_connection:  # the browser is disconnected and may reconnect
            return
        marks, now = tuple(source.mark(topic) for topic in topics), time.monotonic()
        if looked and looked[0] == marks and now < looked[1] + MAX_PAUSE:
            return
        try:
            await refresh()
        except LinkError:  # the banner already reports this, and updates continue after reconnecting
            return
        except SojournError as caught:
            error.text = clean_lines(str(caught))
        else:
            error.text = ""
        looked = marks, now

    ui.timer(pause, look)


STYLE = Path(__file__).with_name("pictures.css")
MAX_EVENT_LENGTH = 200
"""Maximum number of characters of a click event's text."""


class Patched(Element, component="patched.js"):
    """An element that shows markup; setting `.markup` to the current value sends nothing."""

    def __init__(self, act: Callable[[str, str], Awaitable[None] | None] | None = None) -> None:
        """`act` is called with the name and the value of a clicked or changed control (`data-act="name:value"`)."""
        super().__init__()
        self._props["markup"] = ""
        if act is not None:
            self.on("act", lambda event: _call(act, event))

    @property
    def markup(self) -> str:
        """The markup shown."""
        return str(self._props["markup"])

    @markup.setter
    def markup(self, markup: Markup) -> None:
        if markup != self._props["markup"]:
            self._props["markup"] = str(markup)
            self.update()


class PatchedGrid:
    """A grid of markup pieces; only changed pieces are sent."""

    def __init__(self, kind: str) -> None:
        """`kind` is the grid's CSS class."""
        self._box = Element("div").classes(kind)
        self._cells: list[Patched] = []

    def show(self, parts: Sequence[Markup]) -> None:
        """Show these pieces; surplus pieces become empty."""
        with self._box:
            self._cells += [Patched() for _ in range(len(parts) - len(self._cells))]
        for at, cell in enumerate(self._cells):
            cell.markup = parts[at] if at < len(parts) else Markup()


def _call(act: Callable[[str, str], Awaitable[None] | None], event: GenericEventArguments) -> Awaitable[None] | None:
    text = event.args if isinstance(event.args, str) else ""
    name, _, value = text[:MAX_EVENT_LENGTH].partition(":")
    return act(name, value)


def add_style() -> None:
    """Add the style sheet of the images to this page."""
    ui.add_css(STYLE)
