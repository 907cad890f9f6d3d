"""*Releases*."""

from __future__ import annotations

from typing import TYPE_CHECKING

from nicegui import ui

if TYPE_CHECKING:
    from fleet_web.source import Source


async def releases_page(source: Source) -> None:
    """What there is to say."""
    ui.label(source.name)
