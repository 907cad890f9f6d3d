"""Has visits trained in a child process that starts when one is near and ends when idle."""

from __future__ import annotations

import errno
import logging
import signal
import threading
from collections import deque
from pathlib import Path
from time import monotonic
from typing import TYPE_CHECKING

import msgspec

from edge_agent.limits.settings import LimitSettings
from edge_agent.training.cage import CageReport
from edge_agent.training.child import FOLDER, Child, WorkItem
from edge_agent.training.feature_folder import FeatureFolder
from edge_agent.training.frames import Advance, Failure, Success, WorkerSetup
from edge_agent.training.work import LookAtData, Train, Warm
from sojourn.node.machine import Did, DidNot, Doing

if TYPE_CHECKING:
    from collections.abc import Sequence

    from edge_agent.limits.rules import Limits
    from edge_agent.training.child import Report
    from edge_agent.training.frames import Frame
    from sojourn.data.source import DataSettings

IDLE_SECONDS = 5.0
WATCH_PAUSE = 0.5
"""Seconds between two looks at the limits while there is work."""
log = logging.getLogger(__name__)


class TrainingProcess:
    """Workers (`sojourn.node.workers`) that train in one child process, one piece of work at a time."""

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
        """Train with the blobs of a folder and this data, on as many threads and within the limits that are allowed.

        The worker runs in a folder of its own beside that of the blobs. readable: what else it may read.
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
        self._report: CageReport | None = None
        self._limits = None if limits is None or limits.idle else limits
        self._idle_seconds = idle_seconds
        self._lock = threading.RLock()
        self._waiting: deque[WorkItem] = deque()
        self._child: Child | None = None
        self._minders: dict[threading.Thread, Child] = {}
        self._closed = False

    def start(self, key: str, work: Warm | Train | LookAtData, report: Report) -> None:
        """Begin as soon as nothing else is under way; training goes before warming."""
        item = WorkItem(key, work, report)
        with self._lock:
            if isinstance(work, Train):
                trains = sum(isinstance(other.work, Train) for other in self._waiting)
                self._waiting.insert(trains, item)
                self._drop_other_warming(work)
            else:
                # A newer wish to be warm replaces an older one that was not yet begun.
                self._drop(key)
                self._waiting.append(item)
        self._advance()

    @property
    def pid(self) -> int | None:
        """The process that trains, if there is one now."""
        child = self._child
        return child.process.pid if child else None

    def stop(self, key: str) -> None:
        """Nothing more is heard of this work; training that is under way ends with its process."""
        with self._lock:
            self._drop(key)
            child = self._child
            if child is not None and child.item is not None and child.item.key == key:
                training = isinstance(child.item.work, Train)
                child.item = WorkItem(key, child.item.work, _to_nobody)
                if training:
                    child.item, self._child = None, None
                    child.process.kill()
        self._advance()

    def close(self) -> None:
        """End the child and wait for its end."""
        with self._lock:
            self._closed = True
            self._waiting.clear()
            self._child = None
            minders = dict(self._minders)
            for child in minders.values():
                child.item = None
                child.process.kill()
        for minder in minders.keys() - {threading.current_thread()}:
            minder.join()

    def _drop_other_warming(self, work: Train) -> None:
        """Training does not wait for another kit to get ready: that may take long, or have no end."""
        child = self._child
        if child is None or child.item is None or not isinstance(child.item.work, Warm):
            return
        if child.item.work.kit.digest != work.visit.kit.digest:
            child.item, self._child = None, None
            child.process.kill()

    def _drop(self, key: str) -> None:
        self._waiting = deque(item for item in self._waiting if item.key != key)

    def _advance(self) -> None:
        """Hand the next work to the child, starting one if there is none."""
        with self._lock:
            if self._closed or not self._waiting or (self._child is not None and self._child.item is not None):
                return
            item = self._waiting.popleft()
            if self._child is not None and self._child.sees_old_data:
                self._child.close_input()
                self._child = None
            try:
                child = self._child or self._start_child()
            except OSError as error:
                failure = DidNot(item.key, _start_reason(error), f"the training process cannot be started: {error}")
            else:
                if isinstance(item.work, Train):
                    self.features.used(item.work.visit.kit.digest)
                child.hand(item)
                return
        # Outside of the lock: whoever hears of it may come back with more work.
        item.report(failure)
        self._advance()

    def _start_child(self) -> Child:
        self.features.made()
        child = self._child = Child(self._setup, self._folder)
        minder = threading.Thread(target=self._mind, args=(child,), name="training process", daemon=True)
        self._minders[minder] = child
        minder.start()
        return child

    def _mind(self, child: Child) -> None:
        """Pass on what the child says until it is gone, and say so if that was in the middle of work."""
        while child.speaks():
            for frame in child.hear(self._patience(child)):
                self._tell(child, frame)
            self._end_if_overdue(child)
            self._watch(child)
            self._retire_if_idle(child)
        with self._lock:
            # From here on nobody hands it work, so its pipes can be closed.
            item, child.item = child.item, None
            if self._child is child:
                self._child = None
        status = child.reap()
        with self._lock:
            del self._minders[threading.current_thread()]
        if item is not None:
            item.report(_died(item.key, status, child.last_words))
        self._advance()

    def _tell(self, child: Child, frame: Frame) -> None:
        if isinstance(frame, CageReport):
            self._note_cage(frame)
        if isinstance(frame, Failure):  # beyond a limit anything may fail: then the limit is the reason
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
                item.report(Doing(item.key, frame.step, frame.steps))
            case Success():
                item.report(Did(item.key, frame.outcome))
            case Failure():
                item.report(DidNot(item.key, frame.reason, frame.detail))
        self._advance()

    def _note_cage(self, report: CageReport) -> None:
        """Say once what the cage of the workers cannot close here."""
        if report != self._report:
            self._report = report
            (log.warning if report.open else log.info)("the training process is caged; %s", report)

    def _end_if_overdue(self, child: Child) -> None:
        """End work that takes longer than its owner allows, with its process: the next visit gets a new one."""
        with self._lock:
            item, left = child.item, self._time_left(child)
            if item is None or left > 0:
                return
            child.item = None
            if self._child is child:
                self._child = None
            child.process.kill()
        allowed, name = self._allowance(child)
        what = "the visit took" if child.has_begun else "getting its graphs and data ready took"
        item.report(DidNot(item.key, "runtime", f"{what} longer than {allowed:g} s (limits.{name})"))
        self._advance()

    def _time_left(self, child: Child) -> float:
        return child.handed_at + self._allowance(child)[0] - monotonic()

    def _allowance(self, child: Child) -> tuple[float, str]:
        """How many seconds the work that is under way may take, and the setting that says so."""
        if child.has_begun:
            return self._bounds.visit_seconds, "visit_seconds"
        return self._bounds.warm_up_seconds, "warm_up_seconds"

    def _watch(self, child: Child) -> None:
        """Slow the work that is under way, or end it with the reason, as the limits have it."""
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
            child.item = None
            if self._child is child:
                self._child = None
            child.process.kill()
        item.report(DidNot(item.key, *refusal))
        self._advance()

    def _patience(self, child: Child) -> float | None:
        with self._lock:
            if self._child is not child and child.item is None:  # it was told to end
                return None
            left = self._idle_left(child) if child.item is None else max(0.0, self._time_left(child))
            return left if self._limits is None else min(left, WATCH_PAUSE)

    def _idle_left(self, child: Child) -> float:
        return max(0.0, child.idle_since + self._idle_seconds - monotonic())

    def _retire_if_idle(self, child: Child) -> None:
        with self._lock:
            if self._child is child and child.item is None and self._idle_left(child) == 0.0:
                self._child = None
                child.close_input()


def _died(key: str, status: int, last_words: deque[str]) -> DidNot:
    words = f"; its last words: {' | '.join(last_words)}" if last_words else ""
    if status == -signal.SIGKILL:
        return DidNot(key, "memory", f"the training process was killed, most likely for want of memory{words}")
    how = f"by signal {-status}" if status < 0 else f"with exit code {status}"
    return DidNot(key, "failed", f"the training process ended {how}{words}")


def _start_reason(error: OSError) -> str:
    return "memory" if error.errno in (errno.ENOMEM, errno.EAGAIN) else "failed"


def _to_nobody(_: Did | Doing | DidNot) -> None:
    """Take a report that nobody wants."""
