"""Opening folders of results."""

from __future__ import annotations

from typing import TYPE_CHECKING

from coordinator.results.folder import CONFIG
from fleet_web.folder.folder_source import FolderSource
from sojourn.text import clean

if TYPE_CHECKING:
    from collections.abc import Iterable
    from pathlib import Path

MOST_FOLDERS = 200
"""Runs of a folder of runs that are opened."""


def open_all(folders: Iterable[Path]) -> list[FolderSource]:
    """The sources over several folders, each under a name of its own.

    A folder without a run in it that holds folders of runs, as `sojourn compare` leaves one, stands for all of them.
    """
    found: dict[str, FolderSource] = {}
    for folder in folders:
        for each in _runs_in(folder):
            name = free = _called(each)
            number = 1
            while free in found:
                number += 1
                free = f"{name}-{number}"
            found[free] = FolderSource(each, free)
    return list(found.values())


def _runs_in(folder: Path) -> list[Path]:
    if folder.is_dir() and not (folder / CONFIG).exists():
        runs = sorted(each.parent for each in folder.glob(f"*/{CONFIG}"))
        return runs[:MOST_FOLDERS] or [folder]
    return [folder]


def _called(folder: Path) -> str:
    return clean(folder.resolve().name, 63) or "results"
