"""*Compare*: several jobs or simulations over each other."""

from __future__ import annotations

from typing import TYPE_CHECKING

from nicegui import ui

if TYPE_CHECKING:
    from fleet_web.source import Sources


async def compare_page(sources: Sources) -> None:
    """Whatever was chosen, over each other."""
    ui.label(", ".join(source.name for source in sources))
