"""The process that writes runs to MLflow and TensorBoard, so that a slow or broken store delays no job.

It reads frames until its parent closes the pipe. Frames that cannot be written are queued and retried, run by run.
Problems are lines on standard error, which the parent writes to the log.
"""

from __future__ import annotations

import logging
import os
import sys
import threading
import time
from collections import deque
from collections.abc import Callable, Sequence
from itertools import takewhile
from typing import Protocol

import msgspec

from coordinator.tracking.run_stores import EventFiles, MlflowRuns, be_silent
from coordinator.tracking.runs import Frame, RoundTracked, RunBegun, RunEnded, WriterSetup
from sojourn.processes import Parent

PAUSE, MAX_PAUSE = 5.0, 300.0
"""The seconds until a failed write is retried: at first, and after many failures. Each try may leave a file."""
FINAL_TRIES = 3
"""The number of tries after the pipe is closed."""
MAX_QUEUED = 100_000
"""The maximum number of queued frames of a run; the oldest rounds are dropped first."""
NICENESS = 5
REASON = 500
"""The maximum number of characters of an error."""
_FRAMES: msgspec.msgpack.Decoder[WriterSetup | Frame] = msgspec.msgpack.Decoder(WriterSetup | Frame)


class Sink(Protocol):
    """A store of runs. Writing a frame twice changes nothing."""

    name: str

    def open(self) -> None:
        """Prepare the store, before anything is written."""

    def begin(self, run: RunBegun) -> None:
        """A run begins or continues."""

    def rounds(self, rounds: Sequence[RoundTracked]) -> None:
        """A run has these rounds."""

    def end(self, ended: RunEnded) -> None:
        """A run has ended."""


class SinkQueue:
    """The frames to write to a sink, by run: a run that cannot be written does not delay the others."""

    def __init__(self, sink: Sink, warn: Callable[[str], None]) -> None:
        self._sink, self._warn = sink, warn
        self._waiting: dict[str, deque[Frame]] = {}
        self._begun: dict[str, RunBegun] = {}
        """The first frame of each running run: after an error the run begins again."""
        self._last_warning = ""
        self._pause = self._again_at = 0.0

    def open(self) -> None:
        """Prepare the sink, so that the first run does not wait for it."""
        try:
            self._sink.open()
        except Exception as error:  # noqa: BLE001  # as below
            self._warn_once(error)

    def put(self, frame: Frame) -> None:
        """Queue a frame."""
        waiting = self._waiting.setdefault(frame.id, deque())
        waiting.append(frame)
        if len(waiting) > MAX_QUEUED:
            del waiting[1]  # keeps the run's first frame

    @property
    def waits(self) -> int:
        """The number of queued frames."""
        return sum(map(len, self._waiting.values()))

    def write(self, *, at_once: bool = False) -> None:
        """Write the queue, unless a write has just failed; with `at_once` in any case."""
        if time.monotonic() < self._again_at and not at_once:
            return
        before = self.waits
        for run in list(self._waiting):
            try:
                self._write(self._waiting[run])
            except Exception as error:  # noqa: BLE001  # errors of other libraries must not stop a job
                self._warn_once(error)
                if begun := self._begun.pop(run, None):  # the sink finds out again what is written
                    self._waiting[run].appendleft(begun)
            else:
                del self._waiting[run]
        self._pause = min(MAX_PAUSE, max(PAUSE, 2 * self._pause)) if self.waits else 0.0
        self._again_at = time.monotonic() + self._pause
        if self._last_warning and before and not self.waits:
            self._last_warning = ""
            self._warn(f"{self._sink.name} is available again")

    def _write(self, waiting: deque[Frame]) -> None:
        while waiting:
            match waiting[0]:
                case RunBegun() as run:
                    self._sink.begin(run)
                    self._begun[run.id] = run
                case RunEnded() as ended:
                    if ended.id in self._begun:
                        self._sink.end(ended)
                        del self._begun[ended.id]
                case _:
                    rounds = [*takewhile(lambda it: isinstance(it, RoundTracked), waiting)]
                    self._sink.rounds(rounds)  # type: ignore[arg-type]  # just looked at
                    for _ in rounds[1:]:
                        waiting.popleft()
            waiting.popleft()

    def _warn_once(self, error: Exception) -> None:
        """Warn about an error, once."""
        words = str(error).partition("\n[SQL")[0]  # without the SQL statement of the library
        text = f"{self._sink.name} cannot be written: {type(error).__name__}: {words}"[:REASON]
        if text != self._last_warning:
            self._warn(f"{text}; retrying; the job continues")
        self._last_warning = text


def main() -> None:
    """Write frames until the pipe is closed."""
    os.nice(NICENESS)
    be_silent()
    logging.disable(logging.ERROR)  # alembic and others log their own messages
    threading.excepthook = lambda _error: None  # an error in another thread also fails here, at the next call
    queues = list[SinkQueue]()
    for frames in Parent(_FRAMES).batches(PAUSE):
        for frame in frames:
            if isinstance(frame, WriterSetup):
                queues = [SinkQueue(sink, _warn) for sink in _sinks(frame)]
                for queue in queues:
                    queue.open()
                continue
            for queue in queues:
                queue.put(frame)
        for queue in queues:
            queue.write()
    for queue in queues:
        _finish(queue)


def _finish(queue: SinkQueue) -> None:
    for left in range(FINAL_TRIES - 1, -1, -1):
        if not queue.waits:
            return
        queue.write(at_once=True)
        if queue.waits and left:
            time.sleep(1.0)
    if queue.waits:
        _warn(f"{queue.waits} frames were not written; a later start of the same job writes them")


def _sinks(setup: WriterSetup) -> list[Sink]:
    found: list[Sink] = []
    if setup.mlflow is not None:
        found.append(MlflowRuns(setup.mlflow, setup.experiment))
    if setup.tensorboard is not None:
        found.append(EventFiles(setup.tensorboard))
    return found


def _warn(text: str) -> None:
    print(" ".join(text.split()), file=sys.stderr, flush=True)  # noqa: T201  # the parent reads it


if __name__ == "__main__":
    main()
