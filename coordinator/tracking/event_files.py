"""Rounds as scalars in TensorBoard's event files, by its own writer and without tensorflow.

Only the process that tracks imports it.
"""

from __future__ import annotations

import fcntl
import time
from dataclasses import dataclass
from pathlib import Path
from typing import IO, TYPE_CHECKING, Any

from coordinator.tracking.frames import ALWAYS

if TYPE_CHECKING:
    from collections.abc import Sequence

    from coordinator.tracking.frames import RoundTracked, RunBegun, RunEnded

SHORT_ID = 8
"""Characters of a run's id in its folder's name: a job of the same name may have been removed before."""
EVENTS = "events.out.tfevents.*"
LOCK = ".writing"
"""The file in a run's folder that its one writer has locked."""
PATIENCE = 20.0
"""Seconds for another writer to go: one whose coordinator was killed writes what it has, and ends."""


@dataclass
class OpenRun:
    """A run that is under way: its writer, its lock, and its newest round that is written."""

    writer: Any
    lock: IO[str]
    newest: int

    def close(self) -> None:
        """Write the rest, and let others write."""
        try:
            self.writer.close()
        finally:
            self.lock.close()


class EventFiles:
    """A folder for each run; a process that goes on with a run adds a file."""

    name = "TensorBoard"

    def __init__(self, folder: str) -> None:
        self._folder = Path(folder)
        self._runs: dict[str, OpenRun] = {}

    def open(self) -> None:
        """Get ready."""
        self._folder.mkdir(parents=True, exist_ok=True)

    def begin(self, run: RunBegun) -> None:
        """Find out which rounds are there, and open a file for more of them."""
        from tensorboard.plugins.hparams.summary_v2 import hparams_pb  # noqa: PLC0415  # where it is set
        from tensorboard.summary.writer.event_file_writer import EventFileWriter  # noqa: PLC0415

        if before := self._runs.pop(run.id, None):
            before.close()
        place = self._folder / f"{run.name}-{run.id[:SHORT_ID]}"
        place.mkdir(parents=True, exist_ok=True)
        lock = _locked(place / LOCK)
        it = self._runs[run.id] = OpenRun(EventFileWriter(str(place)), lock, _newest(place))
        if it.newest == 0:
            _add(it.writer, hparams_pb({**run.params, **run.tags}, trial_id=run.id), run.at, 0)
            it.writer.flush()

    def rounds(self, rounds: Sequence[RoundTracked]) -> None:
        """Write the rounds of a run that are not written yet."""
        from tensorboard.compat.proto.summary_pb2 import Summary  # noqa: PLC0415

        run = self._runs[rounds[0].id]
        new = [it for it in rounds if it.step > run.newest]
        for it in new:
            values = [Summary.Value(tag=key, simple_value=value) for key, value in it.metrics.items()]
            _add(run.writer, Summary(value=values), it.at, it.step)
        run.writer.flush()  # says what went wrong, if something did
        run.newest = max([run.newest, *(it.step for it in new)])

    def end(self, ended: RunEnded) -> None:
        """Close the run's file."""
        self._runs.pop(ended.id).close()


def _locked(path: Path) -> IO[str]:
    """A file that is this writer's alone, when another one has gone."""
    lock = path.open("w", encoding="ascii")
    until = time.monotonic() + PATIENCE
    while True:
        try:
            fcntl.flock(lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError:
            if time.monotonic() > until:
                lock.close()
                raise
            time.sleep(0.1)
        else:
            return lock


def _add(writer: Any, summary: Any, at: float, step: int) -> None:
    from tensorboard.compat.proto.event_pb2 import Event  # noqa: PLC0415

    writer.add_event(Event(wall_time=at, step=step, summary=summary))


def _newest(place: Path) -> int:
    """The newest round that a run's files have; what a power cut left half written does not count."""
    from tensorboard.backend.event_processing.event_file_loader import EventFileLoader  # noqa: PLC0415

    newest = 0
    for path in sorted(place.glob(EVENTS)):
        for event in EventFileLoader(str(path)).Load():
            if any(value.tag == ALWAYS for value in event.summary.value):
                newest = max(newest, event.step)
    return newest
