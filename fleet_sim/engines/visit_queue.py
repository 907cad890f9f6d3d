"""The queue of visits for workers in other processes, and the blob cache of each worker."""

from __future__ import annotations

import threading
from collections.abc import Mapping, Sequence
from concurrent.futures import Future
from contextlib import suppress
from dataclasses import dataclass
from queue import Empty, SimpleQueue
from time import perf_counter
from typing import TYPE_CHECKING, Protocol

import numpy as np

from edge_agent.training.messages import Train, Warm, name_of_work, without_inline
from fleet_sim.engines.engine import Outcome, Spent, brought, kit_of
from fleet_sim.engines.worker_messages import PoolVisit, VisitRequest
from sojourn.errors import DataError
from sojourn.node.machine import WorkFailed
from sojourn.store.blobs import BlobStore

if TYPE_CHECKING:
    from fleet_sim.engines.engine import Shards
    from fleet_sim.engines.shared_memory import Place

CACHE = 32 << 20
"""Bytes of blobs that a worker caches: a round sends the same model to many devices."""

TURNS = 2
"""Groups of brief visits per worker: if a worker is slow, the others take its second group."""


@dataclass(frozen=True)
class QueuedVisit:
    """A visit that waits for a worker or is being trained."""

    future: Future[Outcome]
    device: str
    key: str
    rows: bytes
    work: Train | Warm
    blobs: Mapping[bytes, bytes]
    store: BlobStore

    @classmethod
    def of(
        cls, future: Future[Outcome], shards: Shards, device: str, key: str, work: Train | Warm, blobs: BlobStore
    ) -> QueuedVisit:
        """Return the visit with its vectors and sample numbers; raise DataError if the device has no data."""
        rows = np.ascontiguousarray(shards.rows_of(device), np.int64).tobytes()
        return cls(future, device, key, rows, without_inline(work), brought(work, blobs), blobs)

    @property
    def name(self) -> str:
        """The visit's name in the log."""
        return name_of_work(self.key, self.work)

    @property
    def needs(self) -> tuple[bytes, ...]:
        """The digests of all blobs that the worker must have, the kit first."""
        return kit_of(self.work).digest, *self.blobs

    def read(self, digest: bytes) -> bytes:
        """Return a blob that the visit needs; raise KeyError if it is missing."""
        return self.blobs[digest] if digest in self.blobs else self.store.read(digest)

    def pool_visit(self, room: tuple[Place, ...]) -> PoolVisit:
        """Return the visit for a worker of the pool, with places for its results."""
        return PoolVisit(self.device, self.key, self.rows, self.work, self.needs, room)

    def request(self, forget: tuple[bytes, ...]) -> VisitRequest:
        """Return the message to a worker that has other blobs, which must drop these."""
        return VisitRequest(self.device, self.key, self.rows, self.work, self.needs, forget)

    def failed(self, why: str) -> Outcome:
        """Return the outcome of a visit that could not be trained."""
        return Outcome(WorkFailed(self.key, "failed", why))


class VisitTaker(Protocol):
    """A thread that takes visits from a queue and trains them in one worker."""

    def end(self) -> None:
        """Stop the worker immediately, and start no other."""

    def join(self) -> None:
        """Wait until the thread has ended."""


class VisitQueue:
    """A queue of groups of visits; a free worker takes the next group.

    A visit is its own group, unless it is added as a brief one. Brief visits accumulate until a result of one is
    requested, or until there are enough for all workers; they are then distributed evenly.
    """

    def __init__(self, workers: int = 1, together: int = 1, spent: Spent | None = None) -> None:
        """Distribute brief visits over this many workers, at most `together` per group."""
        self._workers, self._together, self.spent = workers, together, spent or Spent()
        self._waiting: SimpleQueue[list[QueuedVisit] | None] = SimpleQueue()
        self._gathering: list[QueuedVisit] = []
        self._lock = threading.Lock()

    def add(
        self, shards: Shards, device: str, key: str, work: Train | Warm, blobs: BlobStore, *, brief: bool = False
    ) -> Future[Outcome]:
        """Queue a visit; it finishes immediately if the device has no share of the data set."""
        future = _AwaitedOutcome(self)
        try:
            visit = QueuedVisit.of(future, shards, device, key, work, blobs)
        except DataError as error:
            future.set_result(Outcome(WorkFailed(key, "data", str(error))))
            return future
        if not brief:
            self._waiting.put([visit])
            return future
        with self._lock:
            self._gathering.append(visit)
            enough = len(self._gathering) >= self._workers * self._together
        if enough:
            self.deal()
        return future

    def deal(self) -> None:
        """Send the accumulated visits to the workers, in several groups of similar size per worker."""
        with self._lock:
            gathered, self._gathering = self._gathering, []
            if gathered:
                size = min(self._together, max(2, -(-len(gathered) // (TURNS * self._workers))))
                groups = -(-len(gathered) // size)
                for first in range(groups):
                    self._waiting.put(gathered[first::groups])

    def add_again(self, visits: Sequence[QueuedVisit]) -> None:
        """Queue visits again, each as its own group."""
        for visit in visits:
            self._waiting.put([visit])

    def get(self, timeout: float | None = None) -> list[QueuedVisit] | None:
        """Wait for the next visits; None after closing; raise `queue.Empty` after a timeout."""
        return self._waiting.get(timeout=timeout)

    def close(self, takers: Sequence[VisitTaker]) -> None:
        """Cancel waiting visits, stop all takers with their workers, and wait for them."""
        self.deal()
        with suppress(Empty):  # a taker may take the last one concurrently
            while True:
                for visit in self._waiting.get_nowait() or ():
                    visit.future.cancel()
        for _ in takers:
            self._waiting.put(None)
        for taker in takers:
            taker.end()
        for taker in takers:
            taker.join()


class _AwaitedOutcome(Future[Outcome]):
    """A future that sends accumulated visits when its result is requested, and counts the waiting time."""

    def __init__(self, queue: VisitQueue) -> None:
        super().__init__()
        self._queue = queue

    def result(self, timeout: float | None = None) -> Outcome:
        """Wait for the outcome."""
        if self.done():
            return super().result(timeout)
        self._queue.deal()
        began = perf_counter()
        try:
            return super().result(timeout)
        finally:
            self._queue.spent.add(waiting=perf_counter() - began)


class WorkerCache:
    """The blobs that a worker has from earlier visits, most recently used last."""

    def __init__(self) -> None:
        self._sizes: dict[bytes, int] = {}

    def update(self, visit: QueuedVisit) -> tuple[dict[bytes, bytes], tuple[bytes, ...]]:
        """Record that the worker gets a visit; return the blobs to send, and the digests of those to drop.

        Raise KeyError if a blob to send is missing; nothing is recorded in that case.
        """
        fresh = {digest: visit.read(digest) for digest in dict.fromkeys(visit.needs) if digest not in self._sizes}
        return fresh, self._make_room(fresh, visit.needs)

    def _make_room(self, fresh: Mapping[bytes, bytes], needs: tuple[bytes, ...]) -> tuple[bytes, ...]:
        held = self._sizes
        sizes = {digest: len(fresh[digest]) if digest in fresh else held.pop(digest) for digest in dict.fromkeys(needs)}
        total, forgotten = sum(sizes.values()), []
        for digest, size in reversed(held.items()):
            total += size
            if total > CACHE:
                forgotten.append(digest)
        self._sizes = {digest: size for digest, size in held.items() if digest not in forgotten} | sizes
        return tuple(forgotten)
