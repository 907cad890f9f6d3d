"""Watches the data of a device for changes, and manages the folder of features computed from it."""

from __future__ import annotations

import hashlib
import logging
import os
import threading
from collections.abc import Callable
from contextlib import suppress
from functools import partial
from pathlib import Path
from time import monotonic, time
from typing import TYPE_CHECKING

from edge_agent.training.messages import LookAtData
from sojourn.data.source import DataSettings
from sojourn.node.machine import WorkDone, WorkEvent, WorkFailed
from sojourn.protocol.data_summary import DataSurvey
from sojourn.store.files import TEMP_SUFFIX

if TYPE_CHECKING:
    from edge_agent.training.process import TrainingProcess

    Mark = tuple[tuple[str, int, int, int], ...]


PAUSE = 30.0
"""Seconds between two checks whether the data has changed, by name, size and time only."""
KEY = "data"
_FOLDERS = 1000
log = logging.getLogger(__name__)


class DataWatch:
    """Surveys the data when it changes, in the sandboxed training process and within the owner's limits.

    Features of data that changed or was deleted are removed.
    """

    def __init__(
        self,
        training: TrainingProcess,
        data: DataSettings,
        notify: Callable[[DataSurvey], None],
        *,
        objection: Callable[[], object] = lambda: None,
        pause: float = PAUSE,
    ) -> None:
        """Start watching; `notify` receives each survey. While the owner's limits object, no data is read."""
        self._training, self._path, self._notify, self._objection = training, data.path, notify, objection
        self._pause, self._failures = pause, 0
        self._seen: Mark | None = None
        self._stop = threading.Event()
        self._idle = threading.Event()
        self._idle.set()
        self._thread = threading.Thread(target=self._run, name="data watch", daemon=True)
        self._thread.start()

    def close(self) -> None:
        """Stop watching."""
        self._stop.set()
        self._thread.join()

    def _run(self) -> None:
        while not self._stop.is_set():
            began = monotonic()
            self._training.features.sweep()
            mark = mark_of(self._path)
            if mark != self._seen and self._idle.is_set() and not self._objection():
                self._idle.clear()
                self._training.start(KEY, LookAtData(), partial(self._received, mark))
            # After failures, the interval doubles each time.
            self._stop.wait(max(0.0, began + self._pause * 2 ** min(self._failures, 7) - monotonic()))

    def _received(self, mark: Mark, event: WorkEvent) -> None:
        if isinstance(event, WorkDone) and isinstance(event.outcome, DataSurvey):
            self._seen, self._failures = mark, 0
            self._notify(event.outcome)
        elif isinstance(event, WorkFailed):
            self._failures += 1
            log.warning("the data could not be read: %s", event.detail)
        self._idle.set()


def mark_of(path: str) -> Mark:
    """Return a value that changes with the data: names, sizes and times of a file, or of a folder and subfolders."""
    try:
        with os.scandir(path) as entries:
            paths = sorted(entry.path for entry in entries if entry.is_dir())[:_FOLDERS]
    except OSError:
        paths = []
    return tuple(found for each in (path, *paths) if (found := _stat(each)))


def _stat(path: str) -> tuple[str, int, int, int] | None:
    try:
        found = os.stat(path)  # noqa: PTH116
    except OSError:
        return None
    return path, found.st_ino, found.st_size, found.st_mtime_ns


# The folder of stored features: the names of its files, and when they are deleted.
#
# Features are as private as their samples. They are deleted when the samples change, when their kit is deleted, and
# after a day without use, because a device does not learn that a job has ended. This module does not import numpy: the
# training process computes and reads features (`edge_agent.training.features`).

FOLDER = "features"
"""The name of the folder in a device's store, next to its blobs."""
UNUSED_SECONDS = 86_400.0
_MARK = 16


class FeatureFolder:
    """Files of features, named by the kit and by the state of the data."""

    def __init__(self, blobs: Path, data: str, limit: int) -> None:
        """Manage features of the data at `data`, computed with kits in the folder `blobs`, in a folder next to it.

        limit: maximum size of all files in megabytes.
        """
        self.folder, self._blobs, self._data, self.limit = blobs.absolute().with_name(FOLDER), blobs, data, limit

    def made(self) -> Path:
        """Create the folder, accessible only by its owner, and return it."""
        self.folder.mkdir(mode=0o700, parents=True, exist_ok=True)
        return self.folder

    def mark(self) -> str:
        """Return a digest that changes with the names, sizes and times of the data."""
        found = mark_of(str(Path(self._data).absolute()))
        return hashlib.blake2b(repr(found).encode(), digest_size=_MARK).hexdigest()

    def path(self, kit: bytes, mark: str) -> Path:
        """Return the path of the features computed with a kit on data in this state."""
        return self.folder / f"{kit.hex()}.{mark}"

    def used(self, kit: bytes) -> None:
        """Mark the features of a kit as used, so that they are kept for another day."""
        for path in self._of(kit):
            with suppress(OSError):
                os.utime(path)

    def room(self) -> int:
        """Return the bytes left within the limit; negative if the limit was lowered."""
        return (self.limit << 20) - sum(_size_and_date(path)[0] for path in self._files())

    def forget(self, kit: bytes) -> None:
        """Delete all features of a kit."""
        for path in self._of(kit):
            path.unlink(missing_ok=True)

    def tidy(self) -> None:
        """Sweep, and delete incomplete files of killed processes; call only while no process writes."""
        for path in self._files():
            if path.suffix == TEMP_SUFFIX:
                path.unlink(missing_ok=True)
        self.sweep()

    def sweep(self) -> None:
        """Delete features of changed data, of deleted kits, and those not used within a day.

        If the remaining files exceed the limit, delete the least recently used ones.
        """
        files = self._files()
        if not files:
            return
        mark, oldest = self.mark(), time() - UNUSED_SECONDS
        for path in files:
            if not self._stays(path, mark, oldest):
                path.unlink(missing_ok=True)
        while self.room() < 0 and (left := [path for path in self._files() if path.suffix != TEMP_SUFFIX]):
            min(left, key=lambda path: _size_and_date(path)[1]).unlink(missing_ok=True)

    def _stays(self, path: Path, mark: str, oldest: float) -> bool:
        if path.suffix == TEMP_SUFFIX:  # incomplete: kept while the process that writes it lives
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
    """Return the size and modification time of a file; zeros if it was deleted."""
    try:
        found = path.stat()
    except OSError:
        return 0, 0.0
    return found.st_size, found.st_mtime
