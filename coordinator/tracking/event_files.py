"""Rounds as scalars in TensorBoard's event files, by its own writer and without tensorflow.

Only the process that tracks imports it.
"""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Any

from coordinator.tracking.mlflow_store import ALWAYS

if TYPE_CHECKING:
    from collections.abc import Sequence

    from coordinator.tracking.frames import RoundTracked, RunBegun, RunEnded

SHORT_ID = 8
"""Characters of a run's id in its folder's name: a job of the same name may have been removed before."""
EVENTS = "events.out.tfevents.*"


class EventFiles:
    """A folder for each run; a process that goes on with a run adds a file."""

    name = "TensorBoard"

    def __init__(self, folder: str) -> None:
        self._folder = Path(folder)
        self._runs: dict[str, tuple[Any, int]] = {}
        """The writer of each run that is under way, and its newest round that is written."""

    def begin(self, run: RunBegun) -> None:
        """Find out which rounds are there, and open a file for more of them."""
        from tensorboard.plugins.hparams.summary_v2 import hparams_pb  # noqa: PLC0415  # where it is set
        from tensorboard.summary.writer.event_file_writer import EventFileWriter  # noqa: PLC0415

        if run.id in self._runs:
            self._runs.pop(run.id)[0].close()
        place = self._folder / f"{run.name}-{run.id[:SHORT_ID]}"
        newest = _newest(place)
        writer = EventFileWriter(str(place))
        self._runs[run.id] = writer, newest
        if newest == 0:
            _add(writer, hparams_pb({**run.params, **run.tags}, trial_id=run.id), 0.0, 0)
            writer.flush()

    def rounds(self, rounds: Sequence[RoundTracked]) -> None:
        """Write the rounds of a run that are not written yet."""
        from tensorboard.compat.proto.summary_pb2 import Summary  # noqa: PLC0415

        writer, newest = self._runs[rounds[0].id]
        new = [it for it in rounds if it.step > newest]
        for it in new:
            values = [Summary.Value(tag=key, simple_value=value) for key, value in it.metrics.items()]
            _add(writer, Summary(value=values), it.at, it.step)
        writer.flush()  # says what went wrong, if something did
        self._runs[rounds[0].id] = writer, max([newest, *(it.step for it in new)])

    def end(self, ended: RunEnded) -> None:
        """Close the run's file."""
        self._runs.pop(ended.id)[0].close()


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
