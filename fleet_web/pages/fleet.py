"""*Fleet*: sites and devices."""

from __future__ import annotations

from typing import TYPE_CHECKING

from nicegui import ui

from fleet_web.refreshing import follow

if TYPE_CHECKING:
    from fleet_web.source import Source


async def fleet_page(source: Source) -> None:
    """All devices of a source."""
    count = ui.label()

    async def refresh() -> None:
        count.text = f"{len(await source.devices())} devices"

    follow(source, ("fleet",), refresh)
