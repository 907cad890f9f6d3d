"""Opening a folder of results."""

from __future__ import annotations

from typing import TYPE_CHECKING

from sojourn.errors import ConfigError

if TYPE_CHECKING:
    from pathlib import Path

    from fleet_web.source import Source


def open_results(folder: Path) -> Source:
    """The source over a simulation's or a finished job's folder."""
    raise ConfigError(f"--results {folder}: there are no results in it")
