"""Send runs to the writer process, and follow the jobs of a running coordinator, without delaying a job."""

from __future__ import annotations

import hashlib
import logging
import queue
import threading
import time
from collections.abc import Callable
from itertools import chain
from typing import Any, cast

import msgspec

from coordinator.job_state import JobState
from coordinator.records import ENDED, JobContinued, JobEnded, JobRemoved, JobStarted, RoundClosed, RoundMeasured
from coordinator.state import CoordinatorState
from coordinator.tracking.run_stores import TrackingSettings
from coordinator.tracking.runs import (
    Frame,
    Outcome,
    RunBegun,
    RunEnded,
    WriterSetup,
    params_of,
    round_of,
    settings_of,
    tags_of,
)
from sojourn.processes import Child, full_environment
from sojourn.text import clean

MAX_STARTS = 5
"""How often the process is started, if it dies, before tracking stops until the coordinator's next start."""
CLOSE_TIMEOUT = 60.0
"""The seconds that the process has at the end to write its queue."""
MAX_QUEUED = 100_000
"""The maximum number of queued frames."""
log = logging.getLogger(__name__)


class Tracker:
    """Tracks runs: a thread feeds a process, which is started with the first frame.

    at_once: start the process now, because a run begins soon.
    """

    def __init__(self, settings: TrackingSettings, *, at_once: bool = False) -> None:
        self._setup = WriterSetup(settings.mlflow, settings.tensorboard, settings.experiment)
        self._queue: queue.Queue[Frame | None] = queue.Queue()
        self._sent: dict[str, list[Frame]] = {}
        """The frames of each running run, which a new process receives again after the old one died."""
        self._child: Child[None] | None = None
        self._listener: threading.Thread | None = None
        self._starts = 0
        if at_once:
            self._start_again()
        self._thread = threading.Thread(target=self._feed, name="tracking", daemon=True)
        self._thread.start()

    def put(self, frame: Frame) -> None:
        """Queue a frame; returns at once."""
        if self._queue.qsize() < MAX_QUEUED:
            self._queue.put(frame)

    def close(self, timeout: float = CLOSE_TIMEOUT) -> None:
        """Wait until the queue is written, up to a timeout."""
        self._queue.put(None)
        self._thread.join(timeout)
        if self._thread.is_alive():
            log.warning("tracking: the queue was not written within %g s", timeout)
            if child := self._child:
                child.kill()

    def _feed(self) -> None:
        while (frame := self._queue.get()) is not None:
            self._sent.setdefault(frame.id, []).append(frame)
            if self._child is None or not self._child.send(frame):
                self._start_again()
            if isinstance(frame, RunEnded):
                del self._sent[frame.id]
        if self._child is not None:
            self._child.close_input()
            if self._reap(self._child):
                log.warning("tracking: the process %s; some rounds may not be written", self._child.ending())

    def _start_again(self) -> None:
        """Start a process and send it the frames of running runs; it skips what is already written."""
        if self._child is not None:
            self._reap(self._child)
            more = "restarting it" if self._starts < MAX_STARTS else "tracking stops until the next start"
            log.warning("tracking: the process %s; %s", self._child.ending(), more)
            self._child = None
        if self._starts == MAX_STARTS:
            return
        self._starts += 1
        decoder = msgspec.msgpack.Decoder(None)
        try:
            child = Child("coordinator.tracking.writer", decoder, log=_log_line, env=full_environment())
        except OSError as error:
            log.warning("tracking: the process cannot be started: %s", error)
            return
        self._child = child
        self._listener = threading.Thread(target=child.wait, name="tracking's output", daemon=True)
        self._listener.start()
        for frame in (self._setup, *chain.from_iterable(self._sent.values())):
            child.send(frame)

    def _reap(self, child: Child[None]) -> int:
        """Wait until the process's output is logged, and return its exit status."""
        if self._listener is not None:
            self._listener.join()
        return child.reap()


def _log_line(line: str) -> None:
    log.warning("tracking: %s", line)


DETAIL = 500
"""The maximum number of characters of the reason why a job ended."""
RECENT = 86_400.0
"""In seconds: jobs that ended within this time are reported again after a start."""
TRACKED_RECORDS = (JobStarted, JobContinued, JobEnded, RoundClosed, RoundMeasured)
"""The records that may change what is tracked."""


class LiveJobs:
    """Reports new jobs, rounds and ends to the tracker; it keeps no file."""

    def __init__(
        self,
        fleet: str,
        cloud: str,
        store: str,
        notify: Callable[[Frame], None],
        wall: Callable[[], float] = time.time,
    ) -> None:
        """Report to `notify`; `store` is the folder of the models, for a tag; `wall` returns seconds since 1970."""
        self._notify, self._wall = notify, wall
        self._tags = {"kind": "live", "fleet": fleet, "coordinator": cloud, "folder": store}
        self._rounds: dict[str, int] = {}
        """The number of reported rounds of each job."""
        self._over: set[str] = set()
        """The jobs whose end was reported."""

    def start(self, state: CoordinatorState) -> None:
        """Report the running jobs; the writer skips what is already tracked.

        Jobs that ended recently are reported again, because the coordinator may have stopped before all was written.
        """
        oldest = self._wall() - RECENT
        for job in state.jobs.values():
            if job.status != "queued" and (job.status not in ENDED or (job.ended or 0.0) > oldest):
                self._report(job)

    def wrote(self, record: Any, state: CoordinatorState) -> None:
        """Report the change of a record, which the state already contains."""
        if isinstance(record, JobRemoved):
            self._rounds.pop(record.job, None)
            self._over.discard(record.job)
        elif isinstance(record, TRACKED_RECORDS) and (job := state.jobs.get(record.job)):
            self._report(job)

    def _report(self, job: JobState) -> None:
        """Report what is new: a job, tested rounds, or an end.

        The state may be ahead of the record, because the records of one event are written after all are applied.
        """
        if job.status in ENDED and job.name in self._over:
            return
        run = run_id(self._tags["fleet"], self._tags["coordinator"], job)
        if job.name not in self._rounds or job.name in self._over:  # a new job, or one that continues with more rounds
            self._over.discard(job.name)
            settings = job.settings
            params, tags = params_of(settings_of(settings)), {**tags_of(settings), **self._tags}
            self._notify(RunBegun(run, job.name, job.submitted or self._wall(), params, tags))
        reported, tested = self._rounds.get(job.name, 0), len(job.history) - bool(job.evaluation_pending)
        for report in job.history[reported:tested]:
            self._notify(round_of(run, report, report.ended or self._wall()))
        self._rounds[job.name] = tested
        if job.status in ENDED and not job.evaluation_pending:
            outcome = cast("Outcome", job.status)
            self._notify(RunEnded(run, outcome, clean(job.detail, DETAIL), job.ended or self._wall()))
            self._over.add(job.name)


def run_id(fleet: str, cloud: str, job: JobState) -> str:
    """Return a run's id, which is unique: another job with the same name has another ticket."""
    return hashlib.sha256(f"{fleet}\n{cloud}\n{job.name}\n{job.ticket}".encode()).hexdigest()[:32]
