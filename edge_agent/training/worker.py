"""The training worker: a caged child process of the agent that can crash, be killed or be throttled without it."""

from __future__ import annotations

import os
import threading
from contextlib import suppress
from pathlib import Path
from queue import SimpleQueue
from time import monotonic
from typing import TYPE_CHECKING

from edge_agent.limits.pacing import Pacing
from edge_agent.training.cage import bound_memory, close_cage
from edge_agent.training.feature_folder import FeatureFolder
from edge_agent.training.frames import (
    Advance,
    Failure,
    SetPace,
    Success,
    WorkerSetup,
    WorkOrder,
    framed,
    frames_from,
    write_all,
)
from edge_agent.training.work import LookAtData
from sojourn import logs
from sojourn.node.machine import Did

if TYPE_CHECKING:
    from collections.abc import Iterator

    from edge_agent.training.frames import Frame

PROGRESS_PAUSE = 0.5
NICENESS = 5
_STACK = 8
"""Megabytes of address space that a thread reserves and hardly uses."""


def main() -> None:
    """Take orders from the standard input until it ends."""
    source, sink = _own_pipes()
    _lower_priority()
    logs.set_up_worker()
    frames = frames_from(source)
    setup = next(frames, None)
    if not isinstance(setup, WorkerSetup):
        return
    features = FeatureFolder(Path(setup.blobs), setup.data.path, setup.feature_disk)
    report = close_cage(map(Path, (setup.data.path, *setup.readable)), [Path(setup.blobs), features.folder])
    write_all(sink, framed(report))
    # Only now, when nothing that they print can get between the frames; and all at once, so that warm means warm.
    from edge_agent.training.features import FeatureFiles  # noqa: PLC0415
    from edge_agent.training.trainer import Trainer, attempt  # noqa: PLC0415
    from sojourn.data.summary import survey  # noqa: PLC0415
    from sojourn.store.blobs import FolderBlobs  # noqa: PLC0415

    pacing = pacing_of(setup)
    kept = FeatureFiles(features, setup.free_disk)
    trainer = Trainer(FolderBlobs(Path(setup.blobs)), setup.data, setup.threads, kept)
    orders: SimpleQueue[WorkOrder] = SimpleQueue()
    threading.Thread(target=_listen, args=(frames, orders, pacing), daemon=True).start()
    stacks = _STACK * (max(os.cpu_count() or 1, setup.threads) + 2)
    bound_memory(None if setup.memory is None else setup.memory + stacks)
    while True:
        order = orders.get()
        if isinstance(order.work, LookAtData):
            write_all(sink, framed(Success(order.key, survey(setup.data))))
            continue
        outcome = attempt(order.key, order.work, trainer, _Advances(order.key, sink, pacing))
        frame = (
            Success(order.key, outcome.outcome)
            if isinstance(outcome, Did)
            else Failure(order.key, outcome.reason, outcome.detail)
        )
        write_all(sink, framed(frame))


def pacing_of(setup: WorkerSetup) -> Pacing:
    """Pauses for the owner's share of all cores."""
    return Pacing(setup.cpu_share * (os.cpu_count() or 1))


class _Advances:
    """Tells the agent how far the work is, not more often than it wants to know, and rests between steps."""

    def __init__(self, key: str, sink: int, pacing: Pacing) -> None:
        self._key, self._sink, self._pacing = key, sink, pacing
        self._next = 0.0

    def __call__(self, step: int, steps: int) -> None:
        self._tell(step, steps)
        if step == 0:
            self._pacing.begin()
        self._pacing.rest(lambda: self._tell(step, steps))

    def _tell(self, step: int, steps: int) -> None:
        if monotonic() >= self._next:
            write_all(self._sink, framed(Advance(self._key, step, steps)))
            self._next = monotonic() + PROGRESS_PAUSE


def _listen(frames: Iterator[Frame], orders: SimpleQueue[WorkOrder], pacing: Pacing) -> None:
    for frame in frames:
        if isinstance(frame, WorkOrder):
            orders.put(frame)
        elif isinstance(frame, SetPace):
            pacing.pace = frame.share
    # The agent has closed the pipe or is dead: whatever is being trained has nobody to go to.
    os._exit(0)


def _own_pipes() -> tuple[int, int]:
    """Keep the two pipes to ourselves: a library that prints must not write into them."""
    source, sink = os.dup(0), os.dup(1)
    nothing = os.open(os.devnull, os.O_RDONLY)
    os.dup2(nothing, 0)
    os.close(nothing)
    os.dup2(2, 1)
    return source, sink


def _lower_priority() -> None:
    """Run at a lower priority, and be the process that the system ends when memory runs out."""
    os.nice(NICENESS)
    with suppress(OSError):
        Path("/proc/self/oom_score_adj").write_text("500", encoding="ascii")


if __name__ == "__main__":
    main()
