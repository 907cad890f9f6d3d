"""*Job*: the live picture of the tours, curves and rounds."""

from __future__ import annotations

from typing import TYPE_CHECKING

from nicegui import ui

if TYPE_CHECKING:
    from fleet_web.source import Source, Sources


async def jobs_page(sources: Sources) -> None:
    """All jobs of all sources."""
    for source in sources:
        ui.label(source.name)


async def job_page(source: Source, name: str) -> None:
    """One job of a source."""
    ui.label(f"{source.name} {name}")
