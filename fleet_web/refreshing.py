"""A part of a page that is drawn anew when its source has something new, and only then."""

from __future__ import annotations

import time
from typing import TYPE_CHECKING

from nicegui import ui

from fleet_web.words import Words
from sojourn.errors import LinkError, SojournError
from sojourn.text import clean_lines

if TYPE_CHECKING:
    from collections.abc import Awaitable, Callable

    from fleet_web.source import Source, Topic

LATEST = 10.0
"""Seconds after which a page is looked at again, though nothing has changed: what is "3 s ago" grows older."""
PAUSE = 0.1
"""Seconds between two looks at what the source says of itself; that asks nobody."""


def follow(
    source: Source, topics: tuple[Topic, ...], refresh: Callable[[], Awaitable[None]], pause: float = PAUSE
) -> None:
    """Call `refresh` at once, and whenever one of the topics has changed, for as long as the page is open.

    It runs one after another, never twice at a time; it changes elements and makes none where it can, so that nothing
    flickers.
    """
    client = ui.context.client
    looked: tuple[tuple[int, ...], float] | None = None
    error = Words("p", "", role="alert").classes("bad")

    async def look() -> None:
        nonlocal looked
        if not client.has_socket_connection:  # the browser is away, and may be back
            return
        marks, now = tuple(source.mark(topic) for topic in topics), time.monotonic()
        if looked and looked[0] == marks and now < looked[1] + LATEST:
            return
        try:
            await refresh()
        except LinkError:  # the page says already that nobody can be reached, and goes on when they are back
            return
        except SojournError as caught:
            _set(error, clean_lines(str(caught)))
        else:
            _set(error, "")
        looked = marks, now

    ui.timer(pause, look)


def _set(words: Words, text: str) -> None:
    if words.text != text:
        words.text = text
