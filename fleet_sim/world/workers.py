"""The workers of simulated nodes: an engine trains for devices, and threads evaluate models for the coordinator."""

from __future__ import annotations

from concurrent.futures import ThreadPoolExecutor
from typing import TYPE_CHECKING, Any

from coordinator.rounds.evaluation import MeasureRound
from coordinator.rounds.results import CloseRound
from edge_agent.training.messages import Train, Warm, Warmed
from sojourn.node.machine import WorkDone, WorkEvent, WorkFailed, WorkProgress
from sojourn.node.workers import InlineWorkers, attempt

if TYPE_CHECKING:
    from collections.abc import Callable
    from concurrent.futures import Future

    from coordinator.records import RoundMeasured
    from fleet_sim.engines import Engine, Outcome
    from fleet_sim.world.timing import WorkerStarts
    from fleet_sim.world.world import World
    from sojourn.store.blobs import BlobStore

    Seconds = Callable[[str, Train, BlobStore], float]
    """Returns how long a device needs for a visit."""
    Lost = Callable[[str, str], bool]
    """Returns whether a device drops out of a visit."""
    Report = Callable[[WorkEvent], None]


SIGNS = 4
"""Number of heartbeats that a visit sends during a lease."""


class EngineTraining:
    """Starts visits on an engine in parallel to the simulation, and reports each at its simulated end."""

    def __init__(
        self,
        world: World,
        device: str,
        engine: Engine,
        blobs: BlobStore,
        seconds: Seconds,
        lost: Lost,
        worker_starts: WorkerStarts,
    ) -> None:
        self._world = world
        self._device = device
        self._engine = engine
        self._blobs = blobs
        self._seconds = seconds
        self._lost = lost
        self._worker_starts = worker_starts
        self._wanted: dict[str, object] = {}

    def start(self, key: str, work: Warm | Train, report: Callable[[WorkEvent], None]) -> None:
        """Start a visit; its outcome is awaited only at its simulated end."""
        wait = self._worker_starts.wait(self._device, self._world.now)
        if isinstance(work, Warm):
            self._world.later(wait, lambda: report(WorkDone(key, Warmed(0))))
            return
        self._wanted[key] = mark = object()
        takes = wait + self._seconds(self._device, work, self._blobs)
        self._worker_starts.use(self._device, self._world.now + takes)
        future = None if self._lost(self._device, key) else self._engine.start(self._device, key, work, self._blobs)

        def report_if_wanted(event: Callable[[], WorkEvent]) -> None:
            if self._wanted.get(key) is mark:
                report(event())

        pause = work.visit.lease / SIGNS
        for sign in range(1, int(takes // pause) + 1):
            progress = WorkProgress(key, sign, sign + 1)
            self._world.later(sign * pause, lambda progress=progress: report_if_wanted(lambda: progress))  # type: ignore[misc]
        self._world.later(takes, lambda: report_if_wanted(lambda: self._outcome(key, future)))

    def _outcome(self, key: str, future: Future[Outcome] | None) -> WorkDone | WorkFailed:
        del self._wanted[key]
        if future is None:
            return WorkFailed(key, "failed", "dropped out")
        outcome = future.result()
        for digest, content in outcome.blobs.items():
            self._blobs.put(content, digest)
        return outcome.event

    def stop(self, key: str) -> None:
        """Cancel this visit's reports."""
        self._wanted.pop(key, None)

    def close(self) -> None:
        """Cancel all reports."""
        self._wanted.clear()


class ConcurrentMeasuring:
    """Runs all work immediately, except evaluations of rounds' models, which run on a thread in parallel.

    An evaluation is reported right before the next round is closed, not when its result is available. Therefore the
    fleet's clock and the order of its records are the same in every run.
    """

    def __init__(self, perform: Callable[[Any], Any]) -> None:
        self._perform = perform
        self._at_once = InlineWorkers(perform)
        self._thread = ThreadPoolExecutor(1, "measure")
        self._tests: dict[str, tuple[MeasureRound, Future[WorkDone | WorkFailed], Report]] = {}
        """Unreported evaluations, by their keys."""

    def start(self, key: str, work: Any, report: Report) -> None:
        """Start an evaluation, or do another piece of work."""
        if isinstance(work, MeasureRound):
            self._tests[key] = work, self._thread.submit(attempt, key, work, self._perform), report
            return
        if isinstance(work, CloseRound) and work.state.phase == "train":
            self.settle()
        self._at_once.start(key, work, report)

    def settle(self) -> bool:
        """Wait for all pending evaluations and report them; return whether there were any."""
        tests, self._tests = self._tests, {}
        for _, future, report in tests.values():
            report(future.result())
        return bool(tests)

    def found(self, job: str, number: int) -> RoundMeasured | None:
        """Return the result of a round's evaluation if it is finished and not reported yet."""
        for work, future, _ in self._tests.values():
            if (work.job, work.round) == (job, number) and future.done():
                event = future.result()
                found: RoundMeasured | None = event.outcome if isinstance(event, WorkDone) else None
                return found
        return None

    def stop(self, key: str) -> None:
        """Cancel the report of an evaluation."""
        self._tests.pop(key, None)

    def close(self) -> None:
        """Stop the thread after its current work."""
        self._tests.clear()
        self._thread.shutdown(cancel_futures=True)
