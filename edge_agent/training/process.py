"""Trains visits in a child process, which starts when a visit is announced and ends when idle."""

from __future__ import annotations

import errno
import logging
import os
import shutil
import signal
import threading
from collections import deque
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path
from time import monotonic

import msgspec

from edge_agent.limits import Limits, LimitSettings
from edge_agent.training.data_watch import FeatureFolder
from edge_agent.training.messages import (
    FRAMES,
    Advance,
    Failure,
    Frame,
    LookAtData,
    SetPace,
    Success,
    Train,
    Warm,
    WorkerSetup,
    WorkOrder,
    name_of_work,
    without_inline,
)
from edge_agent.training.sandbox import SandboxReport
from sojourn import logs
from sojourn.data.source import DataSettings
from sojourn.logs import NO_SUBJECT
from sojourn.node.machine import WorkDone, WorkEvent, WorkFailed, WorkProgress
from sojourn.processes import Child
from sojourn.protocol.wire import VisitReason

Report = Callable[[WorkEvent], None]

FOLDER = "worker"
"""The empty folder in a device's store that is the working directory of processes that run graphs."""
IDLE_SECONDS = 5.0
WATCH_PAUSE = 0.5
"""Seconds between two checks of the limits during work."""
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
        self.process.send(WorkOrder(item.key, without_inline(item.work)))

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


class TrainingProcess:
    """Workers (`sojourn.node.workers`) that train in one child process, one work item at a time."""

    def __init__(
        self,
        blobs: Path,
        data: DataSettings,
        *,
        threads: int = 1,
        idle_seconds: float = IDLE_SECONDS,
        limits: Limits | None = None,
        readable: Sequence[str] = (),
    ) -> None:
        """Train with the blobs of a folder and this data, within the owner's limits.

        The worker runs in a separate folder next to the blobs. readable: additional paths that it may read.
        """
        bounds = self._bounds = limits.settings if limits else LimitSettings()
        paths = tuple(str(Path(path).expanduser().absolute()) for path in (*bounds.readable, *readable))
        there = msgspec.structs.replace(data, path=str(Path(data.path).absolute()))
        self._setup = WorkerSetup(
            str(blobs.absolute()),
            there,
            threads,
            bounds.cpu_share,
            bounds.memory,
            paths,
            bounds.feature_disk,
            bounds.free_disk,
        )
        self.features = FeatureFolder(blobs, there.path, bounds.feature_disk)
        self.features.tidy()
        self._folder = blobs.absolute().with_name(FOLDER)
        self._report: SandboxReport | None = None
        self._limits = None if limits is None or limits.idle else limits
        self._idle_seconds = idle_seconds
        self._lock = threading.RLock()
        self._waiting: deque[WorkItem] = deque()
        self._child: TrainingChild | None = None
        self._readers: dict[threading.Thread, TrainingChild] = {}
        self._closed = False

    def start(self, key: str, work: Warm | Train | LookAtData, report: Report) -> None:
        """Queue the work; training takes precedence over warming."""
        item = WorkItem(key, work, report)
        with self._lock:
            if isinstance(work, Train):
                trains = sum(isinstance(other.work, Train) for other in self._waiting)
                self._waiting.insert(trains, item)
                self._drop_other_warming(work)
            else:
                # A newer request to warm up replaces a queued one.
                self._drop(key)
                self._waiting.append(item)
        self._advance()

    @property
    def pid(self) -> int | None:
        """The id of the training process, if one is running."""
        child = self._child
        return child.process.pid if child else None

    def stop(self, key: str) -> None:
        """Drop the work without a report; if it is being trained, kill the process."""
        with self._lock:
            self._drop(key)
            child = self._child
            if child is not None and child.item is not None and child.item.key == key:
                training = isinstance(child.item.work, Train)
                child.item = WorkItem(key, child.item.work, _ignore)
                if training:
                    self._kill(child)
        self._advance()

    def close(self) -> None:
        """Kill the child process and wait for its end."""
        with self._lock:
            self._closed = True
            self._waiting.clear()
            self._child = None
            readers = dict(self._readers)
            for child in readers.values():
                child.item = None
                child.process.kill()
        for reader in readers.keys() - {threading.current_thread()}:
            reader.join()

    def _drop_other_warming(self, work: Train) -> None:
        """Kill a child that warms up another kit: training must not wait, since warming may take long or never end."""
        child = self._child
        if child is None or child.item is None or not isinstance(child.item.work, Warm):
            return
        if child.item.work.kit.digest != work.visit.kit.digest:
            self._kill(child)

    def _kill(self, child: TrainingChild) -> None:
        """Kill a child without a report on its work; the next work item gets a new one."""
        child.item = None
        if self._child is child:
            self._child = None
        child.process.kill()

    def _drop(self, key: str) -> None:
        self._waiting = deque(item for item in self._waiting if item.key != key)

    def _advance(self) -> None:
        """Give the next work item to the child; start a child if there is none."""
        with self._lock:
            if self._closed or not self._waiting or (self._child is not None and self._child.item is not None):
                return
            item = self._waiting.popleft()
            if self._child is not None and self._child.sees_old_data:
                self._child.process.close_input()
                self._child = None
            try:
                child = self._child or self._start_child()
            except OSError as error:
                failure = WorkFailed(item.key, _start_reason(error), f"the training process cannot be started: {error}")
            else:
                if isinstance(item.work, Train):
                    self.features.used(item.work.visit.kit.digest)
                child.hand(item)
                return
        # Outside of the lock, because the receiver may add more work.
        item.report(failure)
        self._advance()

    def _start_child(self) -> TrainingChild:
        self.features.made()
        child = self._child = TrainingChild(self._setup, self._folder)
        reader = threading.Thread(target=self._read_frames, args=(child,), name="training process", daemon=True)
        self._readers[reader] = child
        reader.start()
        return child

    def _read_frames(self, child: TrainingChild) -> None:
        """Handle the child's frames until it ends; report a failure if it ended during work."""
        while child.process.is_open:
            for frame in child.process.receive(self._read_timeout(child)):
                self._on_frame(child, frame)
            self._end_if_overdue(child)
            self._watch(child)
            self._retire_if_idle(child)
        with self._lock:
            # From here on the child gets no more work, so its pipes can be closed.
            item, child.item = child.item, None
            if self._child is child:
                self._child = None
        status = child.process.reap()
        with self._lock:
            del self._readers[threading.current_thread()]
        if item is not None:
            item.report(_died(item.key, status, child))
        self._advance()

    def _on_frame(self, child: TrainingChild, frame: Frame) -> None:
        if isinstance(frame, SandboxReport):
            self._note_sandbox(frame)
        if isinstance(frame, Failure):  # if a limit was exceeded, report that as the reason
            child.next_look = 0.0
            self._watch(child)
        with self._lock:
            item = child.item
            if item is None or not isinstance(frame, Advance | Success | Failure):
                return
            child.begins()
            if not isinstance(frame, Advance):
                child.item, child.idle_since = None, monotonic()
        match frame:
            case Advance():
                item.report(WorkProgress(item.key, frame.step, frame.steps))
            case Success():
                item.report(WorkDone(item.key, frame.outcome))
            case Failure():
                item.report(WorkFailed(item.key, frame.reason, frame.detail))
        self._advance()

    def _note_sandbox(self, report: SandboxReport) -> None:
        """Log once what the sandbox blocks and what it cannot block on this system."""
        if report != self._report:
            self._report = report
            (log.warning if report.open else log.info)("the training process is sandboxed; %s", report)

    def _end_if_overdue(self, child: TrainingChild) -> None:
        """Kill the process if its work exceeds the owner's time limit; the next visit gets a new process."""
        with self._lock:
            item, left = child.item, self._time_left(child)
            if item is None or left > 0:
                return
            self._kill(child)
        allowed, name = self._allowance(child)
        what = "the visit took" if child.has_begun else "loading graphs and data took"
        item.report(WorkFailed(item.key, "runtime", f"{what} longer than {allowed:g} s (limits.{name})"))
        self._advance()

    def _time_left(self, child: TrainingChild) -> float:
        return child.handed_at + self._allowance(child)[0] - monotonic()

    def _allowance(self, child: TrainingChild) -> tuple[float, str]:
        """Return the time limit of the current work in seconds, and the name of the setting."""
        if child.has_begun:
            return self._bounds.visit_seconds, "visit_seconds"
        return self._bounds.warm_up_seconds, "warm_up_seconds"

    def _watch(self, child: TrainingChild) -> None:
        """Slow the current work, or end it with the reason, as the limits require."""
        with self._lock:
            item = child.item
            if self._limits is None or item is None or monotonic() < child.next_look:
                return
            child.next_look = monotonic() + WATCH_PAUSE
        pace, refusal = self._limits.judge(child.process.pid)
        with self._lock:
            if child.item is not item:
                return
            if refusal is None:
                child.set_pace(pace)
                return
            self._kill(child)
        item.report(WorkFailed(item.key, *refusal))
        self._advance()

    def _read_timeout(self, child: TrainingChild) -> float | None:
        with self._lock:
            if self._child is not child and child.item is None:  # it was asked to end
                return None
            left = self._idle_left(child) if child.item is None else max(0.0, self._time_left(child))
            return left if self._limits is None else min(left, WATCH_PAUSE)

    def _idle_left(self, child: TrainingChild) -> float:
        return max(0.0, child.idle_since + self._idle_seconds - monotonic())

    def _retire_if_idle(self, child: TrainingChild) -> None:
        with self._lock:
            if self._child is child and child.item is None and self._idle_left(child) == 0.0:
                self._child = None
                child.process.close_input()


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


def _died(key: str, status: int, child: TrainingChild) -> WorkFailed:
    reason: VisitReason = "memory" if status == -signal.SIGKILL else "failed"
    return WorkFailed(key, reason, f"the training process {child.process.ending(lines=8)}")


def _start_reason(error: OSError) -> VisitReason:
    return "memory" if error.errno in (errno.ENOMEM, errno.EAGAIN) else "failed"


def _ignore(_: WorkEvent) -> None:
    """Ignore the events of cancelled work."""
