"""The folder of features that a device keeps of its samples: what files are called, and when they go.

Features are as private as the samples they are made of. They go when the samples change or go, when the kit they were
made with is no longer kept here, and when they have not been used for a day: a device is not told that a job is over.
This module stays without numpy; features are made and read in the training process (`edge_agent.training.features`).
"""

from __future__ import annotations

import hashlib
import os
from contextlib import suppress
from pathlib import Path
from time import time

from edge_agent.training.data_watch import mark_of
from sojourn.store.files import BESIDE

FOLDER = "features"
"""Where they are in a device's store, beside its blobs."""
UNUSED_SECONDS = 86_400.0
_MARK = 16


class FeatureFolder:
    """Files named by the kit and by the state of the data that features were made of."""

    def __init__(self, blobs: Path, data: str, most: int) -> None:
        """Features of the data at the path `data`, made with kits in the folder `blobs`; they lie beside it.

        most: megabytes that all of them may take.
        """
        self.folder, self._blobs, self._data, self.most = blobs.absolute().with_name(FOLDER), blobs, data, most

    def made(self) -> Path:
        """The folder, made for its owner alone."""
        self.folder.mkdir(mode=0o700, parents=True, exist_ok=True)
        return self.folder

    def mark(self) -> str:
        """What changes when the data does, by a look at names and dates."""
        found = mark_of(str(Path(self._data).absolute()))
        return hashlib.blake2b(repr(found).encode(), digest_size=_MARK).hexdigest()

    def path(self, kit: bytes, mark: str) -> Path:
        """Where features made with this kit are, of data in this state."""
        return self.folder / f"{kit.hex()}.{mark}"

    def used(self, kit: bytes) -> None:
        """Features of this kit are about to be used, so they stay for another day."""
        for path in self._of(kit):
            with suppress(OSError):
                os.utime(path)

    def room(self) -> int:
        """How many bytes more they may take; negative where an owner has allowed more before."""
        return (self.most << 20) - sum(_size_and_date(path)[0] for path in self._files())

    def forget(self, kit: bytes) -> None:
        """Delete all features of a kit."""
        for path in self._of(kit):
            path.unlink(missing_ok=True)

    def tidy(self) -> None:
        """Also delete what a killed process left half-written; only for who knows that nobody writes now."""
        for path in self._files():
            if path.suffix == BESIDE:
                path.unlink(missing_ok=True)
        self.sweep()

    def sweep(self) -> None:
        """Delete what is not of the data as it is now, of a kit that is kept here, and used within a day.

        If the others take more than they may, those go first that were longest not used.
        """
        files = self._files()
        if not files:
            return
        mark, oldest = self.mark(), time() - UNUSED_SECONDS
        for path in files:
            if not self._stays(path, mark, oldest):
                path.unlink(missing_ok=True)
        while self.room() < 0 and (left := [path for path in self._files() if path.suffix != BESIDE]):
            min(left, key=lambda path: _size_and_date(path)[1]).unlink(missing_ok=True)

    def _stays(self, path: Path, mark: str, oldest: float) -> bool:
        if path.suffix == BESIDE:  # it is being written, unless its process is gone
            return Path("/proc", path.stem.rpartition(".")[2]).exists()
        kit, _, state = path.name.partition(".")
        return state == mark and _size_and_date(path)[1] >= oldest and (self._blobs / kit).exists()

    def _of(self, kit: bytes) -> list[Path]:
        return [path for path in self._files() if path.name.startswith(kit.hex())]

    def _files(self) -> list[Path]:
        try:
            return sorted(self.folder.iterdir())
        except OSError:
            return []


def _size_and_date(path: Path) -> tuple[int, float]:
    """Nothing and never, of a file that has gone meanwhile."""
    try:
        found = path.stat()
    except OSError:
        return 0, 0.0
    return found.st_size, found.st_mtime
