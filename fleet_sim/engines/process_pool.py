"""The process pool engine: the device's own trainer in several single-threaded processes with a shared data set."""

from __future__ import annotations

import logging
import sys
import threading
from collections.abc import Callable
from concurrent.futures import Future
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING

import msgspec

from edge_agent.training.messages import Train, Trained, Warm
from fleet_sim.engines.engine import Outcome, Spent, kit_of
from fleet_sim.engines.shared_memory import Arena, PlacedBlobs, SharedArrays, arena_limit, as_blob, map_arrays
from fleet_sim.engines.visit_queue import VisitQueue
from fleet_sim.engines.worker_messages import PoolAnswer, PoolRequest, PoolWorkerSetup, event_of
from sojourn.node.machine import WorkDone
from sojourn.processes import Child, full_environment
from sojourn.store.blobs import BlobStore

if TYPE_CHECKING:
    from fleet_sim.engines.engine import Shards
    from fleet_sim.engines.shared_memory import Slot
    from fleet_sim.engines.visit_queue import QueuedVisit
    from fleet_sim.engines.worker_messages import PoolResult


MAX_TASKS = 256
"""Maximum number of remembered tasks; a job has one or two."""


@dataclass(frozen=True)
class KnownTask:
    """The last visit of a task: its seconds per sample, and the sizes of its blobs."""

    per_sample: float
    sizes: tuple[int, ...]


class KnownTasks:
    """Known tasks, by kit and settings."""

    def __init__(self) -> None:
        self._known: dict[bytes, KnownTask] = {}

    def get(self, work: Train | Warm) -> KnownTask | None:
        """Return the record of a task; None before its first visit has finished."""
        return self._known.get(_name(work)) if isinstance(work, Train) else None

    def learn(self, work: Train | Warm, outcome: Outcome) -> None:
        """Record a finished visit."""
        if not isinstance(work, Train) or not isinstance(outcome.event, WorkDone):
            return
        trained = outcome.event.outcome
        if isinstance(trained, Trained):
            while len(self._known) >= MAX_TASKS:
                del self._known[next(iter(self._known))]
            per_sample = trained.metrics.get("seconds", 0.0) / max(1, trained.samples)
            self._known[_name(work)] = KnownTask(per_sample, tuple(map(len, outcome.blobs.values())))


def _name(work: Train) -> bytes:
    return kit_of(work).digest + msgspec.msgpack.encode(work.visit.task)


_ANSWERS = msgspec.msgpack.Decoder(PoolAnswer)
log = logging.getLogger(__name__)


MAX_GROUP = 16
"""Maximum number of brief visits per request to a worker."""
BRIEF_SECONDS = 0.005
"""Visits shorter than this many seconds are batched: sending one alone would take about as long as training it."""
SMALL = 64 << 10
"""Blobs up to this many bytes are returned in the reply: a place in the arena costs as much as copying them."""


class ProcessPoolEngine:
    """Trains in several worker processes. A worker that dies fails its visit and is replaced."""

    def __init__(self, shards: Shards, workers: int) -> None:
        """Train in `workers` processes, which start with the first visits, not while the model compiles."""
        self._data = SharedArrays(shards.x, shards.y)
        x, y = map_arrays(self._data.descriptor, self._data.layouts)
        self.shards = replace(shards, x=x, y=y)
        """The data set in shared memory; if the caller drops its own copy, one remains."""
        setup = PoolWorkerSetup(self._data.layouts, shards.classes)
        self.spent = Spent()
        self._arena, self._known = Arena(arena_limit()), KnownTasks()
        self._queue = VisitQueue(workers, MAX_GROUP, self.spent)
        placed = PlacedBlobs(self._arena)

        def start() -> _Worker:
            return _Worker(setup, self._data.descriptor, self._arena, placed, self._known)

        self._threads = [_WorkerThread(self._queue, start) for _ in range(workers)]

    @property
    def processes(self) -> list[int]:
        """The process ids of the workers."""
        return [thread.worker.process.pid for thread in self._threads if thread.worker]

    def start(self, device: str, key: str, work: Train | Warm, blobs: BlobStore) -> Future[Outcome]:
        """Queue the visit for the next free worker; brief visits are sent together."""
        known = self._known.get(work)
        brief = known is not None and known.per_sample * len(self.shards.rows.get(device, ())) <= BRIEF_SECONDS
        return self._queue.add(self.shards, device, key, work, blobs, brief=brief)

    def close(self) -> None:
        """Stop all processes; waiting visits are cancelled, running ones fail."""
        self._queue.close(self._threads)
        if self._threads:
            self._data.close()
            self._arena.close()
        self._threads.clear()


class _WorkerThread(threading.Thread):
    """Takes visits from the queue and trains them in a worker process, until the engine is closed."""

    def __init__(self, queue: VisitQueue, start: Callable[[], _Worker]) -> None:
        """`start` starts a worker process."""
        super().__init__(name="pool", daemon=True)
        self._queue, self._start, self._open = queue, start, True
        self._lock = threading.Lock()
        self.worker: _Worker | None = None
        self.start()

    def run(self) -> None:
        """Work until the queue is closed."""
        while taken := self._queue.get():
            # A retried visit is already running.
            visits = [each for each in taken if each.future.running() or each.future.set_running_or_notify_cancel()]
            try:
                self._train(visits)
            except Exception as error:  # noqa: BLE001  # waiting callers get the error, and other workers continue
                for visit in visits:
                    if not visit.future.done():
                        visit.future.set_exception(error)
            del taken, visits  # otherwise they would hold their blobs until the next ones arrive
        if self.worker:
            self.worker.process.reap()

    def _train(self, visits: list[QueuedVisit]) -> None:
        if not visits:
            return
        try:
            worker = self._at_work()
        except OSError as error:  # the next visit retries
            outcomes = [visit.failed(f"no worker can be started: {error}") for visit in visits]
        else:
            outcomes = self._trained(visits, worker)
        for visit, outcome in zip(visits, outcomes, strict=False):
            visit.future.set_result(outcome)

    def end(self) -> None:
        """Stop the worker immediately, and start no other."""
        with self._lock:
            self._open = False
            if self.worker:
                self.worker.process.kill()

    def _at_work(self) -> _Worker:
        """Return the worker; start it if it is not running."""
        with self._lock:
            if not self._open:
                raise OSError("the engine is closed")
            self.worker = self.worker or self._start()
            return self.worker

    def _trained(self, visits: list[QueuedVisit], worker: _Worker) -> list[Outcome]:
        """Return the outcomes; none if the visits must be retried one by one."""
        try:
            outcomes, answer = worker.train(visits)
        except EOFError:
            return self._on_worker_death(visits, worker)
        self._queue.spent.add(visits=len(visits), together=answer.together, training=answer.training)
        return outcomes

    def _on_worker_death(self, visits: list[QueuedVisit], worker: _Worker) -> list[Outcome]:
        """Handle the worker's death: fail a single visit; retry several one by one to find the cause."""
        with self._lock:
            status = worker.process.reap()
            self.worker = None
            if self._open:
                log.warning("%s: the worker died (%s); starting another", visits[0].name, status)
        if self._open and len(visits) > 1:
            self._queue.add_again(visits)
            return []
        return [visit.failed(f"the worker that trained it died ({status})") for visit in visits]


class _Worker:
    """A worker process and the connection to it."""

    def __init__(self, setup: PoolWorkerSetup, data: int, arena: Arena, placed: PlacedBlobs, known: KnownTasks) -> None:
        self._arena, self._placed, self._known = arena, placed, known
        env = full_environment() | dict.fromkeys(("OMP_NUM_THREADS", "OPENBLAS_NUM_THREADS", "MKL_NUM_THREADS"), "1")
        files = (data, arena.descriptor)
        self.process = Child(
            "fleet_sim.engines.pool_worker", _ANSWERS, *map(str, files), env=env, files=files, max_frame=sys.maxsize
        )
        self.process.send(setup)

    def train(self, visits: list[QueuedVisit]) -> tuple[list[Outcome], PoolAnswer]:
        """Train the visits; raise EOFError if the worker has died."""
        held, gone = self._place(visits)
        rooms = [[] if at in gone else self._room(visit) for at, visit in enumerate(visits)]
        asked = tuple(
            visit.pool_visit(tuple(slot.place for slot in room))
            for at, (visit, room) in enumerate(zip(visits, rooms, strict=True))
            if at not in gone
        )
        blobs = {digest: slot if isinstance(slot, bytes) else slot.place for digest, slot in held.items()}
        self.process.send(PoolRequest(asked, blobs))
        answer = next(self.process.frames(), None)
        if answer is None:
            raise EOFError
        results = iter(answer.results)
        outcomes = [
            visit.failed(gone[at]) if at in gone else self._outcome(visit, next(results), rooms[at])
            for at, visit in enumerate(visits)
        ]
        return outcomes, answer

    def _place(self, visits: list[QueuedVisit]) -> tuple[dict[bytes, Slot | bytes], dict[int, str]]:
        """Return the places of the blobs that the visits need, and the visits that lack a blob."""
        held: dict[bytes, Slot | bytes] = {}
        gone = {}
        for at, visit in enumerate(visits):
            try:
                held |= {digest: self._placed.place(digest, visit.read) for digest in visit.needs}
            except KeyError as error:
                gone[at] = f"missing blob: {error}"
        return held, gone

    def _outcome(self, visit: QueuedVisit, result: PoolResult, room: list[Slot]) -> Outcome:
        made = {digest: _blob(data, room) for digest, data in result.blobs.items()}
        outcome = Outcome(event_of(visit.key, result), made)
        self._known.learn(visit.work, outcome)
        return outcome

    def _room(self, visit: QueuedVisit) -> list[Slot]:
        """Reserve places for the visit's results, by the sizes of similar visits; the reply carries all others."""
        known = self._known.get(visit.work)
        made = [self._arena.room(size) for size in known.sizes if size > SMALL] if known else []
        return [slot for slot in made if slot is not None]


def _blob(data: int | bytes, room: list[Slot]) -> bytes:
    return data if isinstance(data, bytes) else as_blob(room[data])
