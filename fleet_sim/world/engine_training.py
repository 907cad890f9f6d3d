"""Workers of a simulated device: an engine trains, and the virtual clock says when the visit is over."""

from __future__ import annotations

from typing import TYPE_CHECKING

from edge_agent.training.work import Train, Warm, Warmed
from sojourn.node.machine import Did, DidNot, Doing

if TYPE_CHECKING:
    from collections.abc import Callable
    from concurrent.futures import Future

    from fleet_sim.engines import Engine, Outcome
    from fleet_sim.world.worker_starts import WorkerStarts
    from fleet_sim.world.world import World
    from sojourn.store.blobs import BlobStore

    Seconds = Callable[[str, Train, BlobStore], float]
    """How long a device needs for a visit."""
    Lost = Callable[[str, str], bool]
    """Whether a device drops out of a visit."""

SIGNS = 4
"""How many signs of life a visit gives in the time of a lease."""


class EngineTraining:
    """Starts visits at an engine, which trains them beside the simulation, and reports each when its time has come."""

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

    def start(self, key: str, work: Warm | Train, report: Callable[[Did | Doing | DidNot], None]) -> None:
        """Begin; the outcome is waited for only when the clock is there."""
        wait = self._worker_starts.wait(self._device, self._world.now)
        if isinstance(work, Warm):
            self._world.later(wait, lambda: report(Did(key, Warmed(0))))
            return
        self._wanted[key] = mark = object()
        takes = wait + self._seconds(self._device, work, self._blobs)
        self._worker_starts.use(self._device, self._world.now + takes)
        future = None if self._lost(self._device, key) else self._engine.start(self._device, key, work, self._blobs)

        def report_if_wanted(event: Callable[[], Did | Doing | DidNot]) -> None:
            if self._wanted.get(key) is mark:
                report(event())

        pause = work.visit.lease / SIGNS
        for sign in range(1, int(takes // pause) + 1):
            self._world.later(sign * pause, lambda sign=sign: report_if_wanted(lambda: Doing(key, sign, sign + 1)))  # type: ignore[misc]
        self._world.later(takes, lambda: report_if_wanted(lambda: self._outcome(key, future)))

    def _outcome(self, key: str, future: Future[Outcome] | None) -> Did | DidNot:
        del self._wanted[key]
        if future is None:
            return DidNot(key, "failed", "dropped out")
        outcome = future.result()
        for digest, content in outcome.blobs.items():
            self._blobs.put(content, digest)
        return outcome.event

    def stop(self, key: str) -> None:
        """Report nothing more of this visit."""
        self._wanted.pop(key, None)

    def close(self) -> None:
        """Report nothing more at all."""
        self._wanted.clear()
