"""The training worker: a sandboxed, throttled child process that can crash or be killed without the agent."""

from __future__ import annotations

import os
import threading
import time
from collections.abc import Callable
from pathlib import Path
from queue import SimpleQueue
from time import monotonic

from edge_agent.training.data_watch import FeatureFolder
from edge_agent.training.messages import (
    FRAMES,
    Advance,
    Failure,
    Frame,
    LookAtData,
    SetPace,
    Success,
    WorkerSetup,
    WorkOrder,
)
from edge_agent.training.sandbox import bound_memory, enter_sandbox
from sojourn import logs
from sojourn.node.machine import WorkDone
from sojourn.processes import Parent, lower_priority

SLICE = 0.25
"""Maximum seconds of one sleep; after it, the pace is read again and progress is reported."""
_WORTH_A_PAUSE = 0.01


def due(cpu: float, wall: float, cores: float, pace: float) -> float:
    """Return the minimum duration of work that used `cpu` seconds on all cores and took `wall` seconds."""
    return max(wall, cpu / cores) / pace


class Pacing:
    """Pauses after steps. Another thread may set `pace`, the share of the time in which to work."""

    def __init__(
        self,
        cores: float,
        *,
        clock: Callable[[], float] = time.monotonic,
        used: Callable[[], float] = time.process_time,
        sleep: Callable[[float], None] = time.sleep,
    ) -> None:
        """Use this many cores on average; may be less than one."""
        self.pace = 1.0
        self.cores = cores
        self._clock, self._used, self._sleep = clock, used, sleep
        self._since, self._spent = clock(), used()

    def begin(self) -> None:
        """Start measuring: earlier work does not count."""
        self._since, self._spent = self._clock(), self._used()

    def rest(self, alive: Callable[[], None]) -> None:
        """Pause as long as the work since the last pause requires; call `alive` during the pause."""
        now, used = self._clock(), self._used()
        cpu, wall, began = used - self._spent, now - self._since, self._since
        if due(cpu, wall, self.cores, self.pace) - wall < _WORTH_A_PAUSE:
            return
        while (left := began + due(cpu, wall, self.cores, self.pace) - self._clock()) > 0:
            self._sleep(min(left, SLICE))
            alive()
        # The processor time of other threads during the pause counts for the next pause.
        self._since, self._spent = self._clock(), used


PROGRESS_PAUSE = 0.5
NICENESS = 5
_STACK = 8
"""Megabytes of address space that a thread reserves but hardly uses."""


def main() -> None:
    """Take orders from the agent until it closes the pipe."""
    agent = Parent(FRAMES)
    lower_priority(NICENESS)
    logs.set_up_worker()
    setup = next(agent.frames, None)
    if not isinstance(setup, WorkerSetup):
        return
    features = FeatureFolder(Path(setup.blobs), setup.data.path, setup.feature_disk)
    report = enter_sandbox(map(Path, (setup.data.path, *setup.readable)), [Path(setup.blobs), features.folder])
    agent.send(report)
    # Imported now, when their output cannot mix with the frames, and before any work, so that a warm worker is ready.
    from edge_agent.training.features import FeatureFiles  # noqa: PLC0415
    from edge_agent.training.trainer import Trainer, attempt  # noqa: PLC0415
    from sojourn.data.summary import survey  # noqa: PLC0415
    from sojourn.store.blobs import FolderBlobs  # noqa: PLC0415

    pacing = pacing_of(setup)
    kept = FeatureFiles(features, setup.free_disk)
    trainer = Trainer(FolderBlobs(Path(setup.blobs)), setup.data, setup.threads, kept)
    orders: SimpleQueue[WorkOrder] = SimpleQueue()
    threading.Thread(target=_listen, args=(agent, orders, pacing), daemon=True).start()
    stacks = _STACK * (max(os.cpu_count() or 1, setup.threads) + 2)
    bound_memory(None if setup.memory is None else setup.memory + stacks)
    while True:
        order = orders.get()
        if isinstance(order.work, LookAtData):
            agent.send(Success(order.key, survey(setup.data)))
            continue
        outcome = attempt(order.key, order.work, trainer, _Advances(order.key, agent, pacing))
        frame = (
            Success(order.key, outcome.outcome)
            if isinstance(outcome, WorkDone)
            else Failure(order.key, outcome.reason, outcome.detail)
        )
        agent.send(frame)


def pacing_of(setup: WorkerSetup) -> Pacing:
    """Return the pacing for the owner's share of all cores."""
    return Pacing(setup.cpu_share * (os.cpu_count() or 1))


class _Advances:
    """Reports progress to the agent at a limited rate, and pauses between steps."""

    def __init__(self, key: str, agent: Parent[Frame], pacing: Pacing) -> None:
        self._key, self._agent, self._pacing = key, agent, pacing
        self._next = 0.0

    def __call__(self, step: int, steps: int) -> None:
        self._report_progress(step, steps)
        if step == 0:
            self._pacing.begin()
        self._pacing.rest(lambda: self._report_progress(step, steps))

    def _report_progress(self, step: int, steps: int) -> None:
        if monotonic() >= self._next:
            self._agent.send(Advance(self._key, step, steps))
            self._next = monotonic() + PROGRESS_PAUSE


def _listen(agent: Parent[Frame], orders: SimpleQueue[WorkOrder], pacing: Pacing) -> None:
    for frame in agent.frames:
        if isinstance(frame, WorkOrder):
            orders.put(frame)
        elif isinstance(frame, SetPace):
            pacing.pace = frame.share
    # The agent has closed the pipe or has died, so the result of this work cannot be delivered.
    os._exit(0)


if __name__ == "__main__":
    main()
