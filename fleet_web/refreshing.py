"""A part of a page that is drawn anew when its source has something new, and only then."""

from __future__ import annotations

from typing import TYPE_CHECKING

from nicegui import ui

if TYPE_CHECKING:
    from collections.abc import Awaitable, Callable

    from fleet_web.source import Source, Topic

PAUSE = 0.2
"""Seconds between two looks at what the source says of itself; that asks nobody."""


def follow(source: Source, topics: tuple[Topic, ...], refresh: Callable[[], Awaitable[None]]) -> None:
    """Call `refresh` at once, and whenever one of the topics has changed, for as long as the page is open.

    It runs one after another, never twice at a time; it changes elements and makes none where it can, so that nothing
    flickers.
    """
    seen: list[tuple[int, ...] | None] = [None]

    async def look() -> None:
        marks = tuple(source.mark(topic) for topic in topics)
        if marks != seen[0]:
            seen[0] = marks
            await refresh()

    ui.timer(PAUSE, look)
