"""Has the data looked at when the agent starts and whenever it has changed."""

from __future__ import annotations

import logging
import os
import threading
from functools import partial
from time import monotonic
from typing import TYPE_CHECKING

from edge_agent.training.work import LookAtData
from sojourn.data.data_survey import DataSurvey
from sojourn.node.machine import Did, DidNot

if TYPE_CHECKING:
    from collections.abc import Callable

    from edge_agent.training.process import TrainingProcess
    from sojourn.data.source import DataSettings
    from sojourn.node.machine import Doing

    Mark = tuple[tuple[str, int, int, int], ...]

PAUSE = 30.0
"""Seconds between two looks at whether the data has changed: a look at the file's date, not into it."""
KEY = "data"
_FOLDERS = 1000
log = logging.getLogger(__name__)


class DataWatch:
    """Tells what the data was taken for; it is read in the training process, caged and within the limits.

    What is kept of data that is gone or changed goes too.
    """

    def __init__(
        self,
        training: TrainingProcess,
        data: DataSettings,
        tell: Callable[[DataSurvey], None],
        *,
        objection: Callable[[], object] = lambda: None,
        pause: float = PAUSE,
    ) -> None:
        """Begin; `tell` hears each survey. While the owner's limits object, nothing is read."""
        self._training, self._path, self._tell, self._objection = training, data.path, tell, objection
        self._pause, self._failures = pause, 0
        self._seen: Mark | None = None
        self._stop = threading.Event()
        self._idle = threading.Event()
        self._idle.set()
        self._thread = threading.Thread(target=self._run, name="data watch", daemon=True)
        self._thread.start()

    def close(self) -> None:
        """Look no more."""
        self._stop.set()
        self._thread.join()

    def _run(self) -> None:
        while not self._stop.is_set():
            began = monotonic()
            self._training.features.sweep()
            mark = mark_of(self._path)
            if mark != self._seen and self._idle.is_set() and not self._objection():
                self._idle.clear()
                self._training.start(KEY, LookAtData(), partial(self._heard, mark))
            # Where looking itself fails, it is tried ever more seldom.
            self._stop.wait(max(0.0, began + self._pause * 2 ** min(self._failures, 7) - monotonic()))

    def _heard(self, mark: Mark, event: Did | Doing | DidNot) -> None:
        if isinstance(event, Did) and isinstance(event.outcome, DataSurvey):
            self._seen, self._failures = mark, 0
            self._tell(event.outcome)
        elif isinstance(event, DidNot):
            self._failures += 1
            log.warning("the data could not be looked at: %s", event.detail)
        self._idle.set()


def mark_of(path: str) -> Mark:
    """What changes when the data does: names, sizes and dates of a file, or of a folder and the folders in it."""
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
