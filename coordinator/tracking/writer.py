"""The process that writes runs to MLflow and TensorBoard: slow, or broken, it keeps nobody waiting.

It reads frames, a JSON object on each line, until its input ends. What cannot be written waits and is tried again, run
by run; what a person should know of it is a line on standard error, which its parent passes on to the log.
"""

from __future__ import annotations

import logging
import os
import select
import sys
import threading
import time
from collections import deque
from itertools import takewhile
from typing import TYPE_CHECKING, Protocol

import msgspec

from coordinator.tracking.event_files import EventFiles
from coordinator.tracking.frames import Frame, RoundTracked, RunBegun, RunEnded, WriterSetup
from coordinator.tracking.mlflow_store import MlflowRuns, be_silent

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator, Sequence

PAUSE, LONGEST_PAUSE = 5.0, 300.0
"""Seconds until what could not be written is tried again: at first, and after many times. Each try may leave a file."""
LAST_TRIES = 3
"""How often it is tried when nothing more comes."""
WAITING = 100_000
"""Frames of a run that may wait; the oldest rounds go first."""
NICENESS = 5
REASON = 500
"""Characters of why something could not be written."""
_READ = 1 << 16
_DECODER = msgspec.json.Decoder(Frame)


class Sink(Protocol):
    """Where runs are written. A frame that comes again changes nothing."""

    name: str

    def open(self) -> None:
        """Get ready, before anything is to be written."""

    def begin(self, run: RunBegun) -> None:
        """A run is under way, for the first time or again."""

    def rounds(self, rounds: Sequence[RoundTracked]) -> None:
        """A run has these rounds."""

    def end(self, ended: RunEnded) -> None:
        """A run is over."""


class SinkQueue:
    """What is still to be written to a sink, by run: one that cannot be written does not keep the others waiting."""

    def __init__(self, sink: Sink, warn: Callable[[str], None]) -> None:
        self._sink, self._warn = sink, warn
        self._waiting: dict[str, deque[Frame]] = {}
        self._begun: dict[str, RunBegun] = {}
        """What each run under way began with: after an error it is begun again."""
        self._complained = ""
        self._pause = self._again_at = 0.0

    def open(self) -> None:
        """Get ready, so that the first run does not wait for it."""
        try:
            self._sink.open()
        except Exception as error:  # noqa: BLE001  # as below
            self._complain(error)

    def put(self, frame: Frame) -> None:
        """Have a frame written."""
        waiting = self._waiting.setdefault(frame.id, deque())
        waiting.append(frame)
        if len(waiting) > WAITING:
            del waiting[1]  # not how it begins

    @property
    def waits(self) -> int:
        """How many frames are not written."""
        return sum(map(len, self._waiting.values()))

    def write(self, *, at_once: bool = False) -> None:
        """Write what can be written, unless that has just failed; with `at_once` also then."""
        if time.monotonic() < self._again_at and not at_once:
            return
        before = self.waits
        for run in list(self._waiting):
            try:
                self._write(self._waiting[run])
            except Exception as error:  # noqa: BLE001  # another library's files and databases: whatever it is, the job goes on
                self._complain(error)
                if begun := self._begun.pop(run, None):  # what is written is found out anew
                    self._waiting[run].appendleft(begun)
            else:
                del self._waiting[run]
        self._pause = min(LONGEST_PAUSE, max(PAUSE, 2 * self._pause)) if self.waits else 0.0
        self._again_at = time.monotonic() + self._pause
        if self._complained and before and not self.waits:
            self._complained = ""
            self._warn(f"{self._sink.name} is written again")

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

    def _complain(self, error: Exception) -> None:
        """Say what is wrong, once."""
        words = str(error).partition("\n[SQL")[0]  # what follows is the library's own business
        text = f"{self._sink.name} cannot be written: {type(error).__name__}: {words}"[:REASON]
        if text != self._complained:
            self._warn(f"{text}; it is tried again, and the job goes on")
        self._complained = text


def main() -> None:
    """Write what comes in until nothing more comes."""
    os.nice(NICENESS)
    be_silent()
    logging.disable(logging.ERROR)  # alembic and the like speak of their own matters
    threading.excepthook = lambda _error: None  # what fails beside us fails here, too, when it is asked for
    chunks = _chunks()
    setup, queues = None, list[SinkQueue]()
    for lines in chunks:
        for line in lines:
            if setup is None:
                setup = msgspec.json.decode(line, type=WriterSetup)
                queues = [SinkQueue(sink, _warn) for sink in _sinks(setup)]
                for queue in queues:
                    queue.open()
                continue
            for queue in queues:
                queue.put(_DECODER.decode(line))
        for queue in queues:
            queue.write()
    for queue in queues:
        _finish(queue)


def _finish(queue: SinkQueue) -> None:
    for left in range(LAST_TRIES - 1, -1, -1):
        if not queue.waits:
            return
        queue.write(at_once=True)
        if queue.waits and left:
            time.sleep(1.0)
    if queue.waits:
        _warn(f"{queue.waits} lines were not written in the end; a later start of the same job writes them")


def _sinks(setup: WriterSetup) -> list[Sink]:
    found: list[Sink] = []
    if setup.mlflow is not None:
        found.append(MlflowRuns(setup.mlflow, setup.experiment))
    if setup.tensorboard is not None:
        found.append(EventFiles(setup.tensorboard))
    return found


def _chunks() -> Iterator[list[bytes]]:
    """Lines as they come, as many at a time as there are; none, now and then, while nothing comes."""
    rest = b""
    while True:
        if not select.select([0], [], [], PAUSE)[0]:
            yield []
            continue
        data = os.read(0, _READ)
        if not data:
            return
        *lines, rest = (rest + data).split(b"\n")
        yield lines


def _warn(text: str) -> None:
    print(" ".join(text.split()), file=sys.stderr, flush=True)  # noqa: T201  # its parent reads it


if __name__ == "__main__":
    main()
