"""The child process that trains, and the work that the agent gives it."""

from __future__ import annotations

import logging
import os
import shutil
from dataclasses import dataclass
from time import monotonic
from typing import TYPE_CHECKING

import msgspec

from edge_agent.training.messages import FRAMES, LookAtData, SetPace, Train, Warm, WorkOrder, name_of_work
from sojourn import logs
from sojourn.logs import NO_SUBJECT
from sojourn.processes import Child

if TYPE_CHECKING:
    from collections.abc import Callable
    from pathlib import Path

    from edge_agent.training.messages import WorkerSetup
    from sojourn.node.machine import WorkEvent

    Report = Callable[[WorkEvent], None]

FOLDER = "worker"
"""The empty folder in a device's store that is the working directory of processes that run graphs."""
log = logging.getLogger(__name__)


@dataclass(frozen=True)
class WorkItem:
    """A work item: its key, the work, and the function that receives its events."""

    key: str
    work: Warm | Train | LookAtData
    report: Report


class TrainingChild:
    """A worker process and its current work."""

    def __init__(self, setup: WorkerSetup, folder: Path) -> None:
        """Start a worker in this folder."""
        self._data = setup.data.path
        self._data_identity = _identity(self._data)
        self.process = Child("edge_agent.training.worker", FRAMES, log=self._log, cwd=emptied(folder))
        self.item: WorkItem | None = None
        self.idle_since = monotonic()
        self.next_look = 0.0
        self.handed_at = 0.0
        self.has_begun = False
        """Whether its current work has started: graphs and data are loaded."""
        self._about = NO_SUBJECT
        """The log subject of its current or last work, for output that is read late."""
        self._pace = 1.0
        self.process.send(setup)

    def hand(self, item: WorkItem) -> None:
        """Send the child its work. The message is small and the only one in the pipe, so this does not block."""
        self.item, self.next_look = item, 0.0
        self.handed_at, self.has_begun = monotonic(), False
        self._about = item.work.visit.id.about() if isinstance(item.work, Train) else NO_SUBJECT
        given = name_of_work(item.key, item.work)
        log.log(logs.STEP, "process %d starts %s", self.process.pid, given, extra=logs.subject(self._about))
        self.process.send(WorkOrder(item.key, _without_inline(item.work)))

    def begins(self) -> None:
        """Record that its work has started."""
        if not self.has_begun:
            self.has_begun = True
            log.log(
                logs.STEP, "process %d has loaded graphs and data", self.process.pid, extra=logs.subject(self._about)
            )

    @property
    def sees_old_data(self) -> bool:
        """Whether the data was replaced by another file, which the sandbox does not let the child read."""
        return _identity(self._data) != self._data_identity

    def set_pace(self, share: float) -> None:
        """Set the share of the time that the child works; 1 means without pauses."""
        if share == self._pace:
            return
        if (share < 1) != (self._pace < 1):
            text = "device is hot: training slowed" if share < 1 else "training at full speed again"
            log.info(text, extra=logs.subject(self._about))
        self._pace = share
        self.process.send(SetPace(share))

    def _log(self, line: str) -> None:
        log.info("training: %s", line, extra=logs.subject(self._about))


def emptied(folder: Path) -> Path:
    """Create an empty folder to run in, so that a graph cannot refer to a file by a relative path."""
    shutil.rmtree(folder, ignore_errors=True)
    folder.mkdir(parents=True, exist_ok=True)
    return folder


def _identity(path: str) -> tuple[int, int] | None:
    try:
        found = os.stat(path)  # noqa: PTH116
    except OSError:
        return None
    return found.st_dev, found.st_ino


def _without_inline(work: Warm | Train | LookAtData) -> Warm | Train | LookAtData:
    """Return the work without inline blobs: the worker reads them from the folder, and the pipe is small."""
    if isinstance(work, LookAtData):
        return work
    if isinstance(work, Warm):
        return Warm(msgspec.structs.replace(work.kit, inline=None), work.task)
    bare = {name: msgspec.structs.replace(ref, inline=None) for name, ref in work.visit.vectors.items()}
    kit = msgspec.structs.replace(work.visit.kit, inline=None)
    return msgspec.structs.replace(work, visit=msgspec.structs.replace(work.visit, kit=kit, vectors=bare))
