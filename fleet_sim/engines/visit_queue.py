"""Visits that wait for workers in other processes, and which blobs each worker keeps for the next visit."""

from __future__ import annotations

import threading
from concurrent.futures import Future
from contextlib import suppress
from dataclasses import dataclass
from queue import Empty, SimpleQueue
from time import perf_counter
from typing import TYPE_CHECKING, Protocol

import msgspec
import numpy as np

from edge_agent.training.work import Train, name_of_work
from fleet_sim.engines.engine import Outcome, brought, kit_of
from fleet_sim.engines.frames import PoolVisit, VisitRequest
from fleet_sim.engines.spent import Spent
from sojourn.errors import DataError
from sojourn.node.machine import DidNot
from sojourn.protocol.messages import map_refs

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence

    from edge_agent.training.work import Warm
    from fleet_sim.engines.arena import Place
    from fleet_sim.engines.engine import Shards
    from sojourn.protocol.wire import Ref
    from sojourn.store.blobs import BlobStore

CACHE = 32 << 20
"""Bytes of blobs that a worker keeps for the next visit: a round hands the same model to many devices."""

TURNS = 2
"""Groups of gathered visits for each worker: one that the system holds up leaves its second turn to the others."""


@dataclass(frozen=True)
class QueuedVisit:
    """A visit that waits for a worker or is being trained by one."""

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
        """The visit with its vectors and sample numbers; DataError where the device has no share of the data set."""
        rows = np.ascontiguousarray(shards.rows_of(device), np.int64).tobytes()
        return cls(future, device, key, rows, _bare(work), brought(work, blobs), blobs)

    @property
    def name(self) -> str:
        """The visit in a line of the log."""
        return name_of_work(self.key, self.work)

    @property
    def needs(self) -> tuple[bytes, ...]:
        """The digests of all that the worker must have: the kit first."""
        return kit_of(self.work).digest, *self.blobs

    def read(self, digest: bytes) -> bytes:
        """A blob that the visit needs; KeyError where it is gone."""
        return self.blobs[digest] if digest in self.blobs else self.store.read(digest)

    def pool_visit(self, room: tuple[Place, ...]) -> PoolVisit:
        """The visit as a worker of the pool gets it, with places for what it makes."""
        return PoolVisit(self.device, self.key, self.rows, self.work, self.needs, room)

    def request(self, blobs: dict[bytes, bytes], forget: tuple[bytes, ...]) -> VisitRequest:
        """The message to a worker, with these blobs."""
        return VisitRequest(self.device, self.key, self.rows, self.work, blobs, self.needs, forget)

    def failed(self, why: str) -> Outcome:
        """The outcome of a visit that could not be trained."""
        return Outcome(DidNot(self.key, "failed", why))


class VisitTaker(Protocol):
    """A thread that takes visits from a queue and has one worker train them."""

    def end(self) -> None:
        """End the worker, whatever it does, and start no other."""

    def join(self) -> None:
        """Wait until the thread has ended."""


class VisitQueue:
    """Visits wait in one queue, in groups; whichever worker is free takes the next group.

    A visit is a group of its own and waits for nobody, unless it is added as a brief one. Brief visits gather until
    somebody asks for the result of one, or until there are enough for all workers; they are then dealt out evenly.
    """

    def __init__(self, workers: int = 1, together: int = 1, spent: Spent | None = None) -> None:
        """Deal brief visits out to so many workers, at most `together` in a group."""
        self._workers, self._together, self.spent = workers, together, spent or Spent()
        self._waiting: SimpleQueue[list[QueuedVisit] | None] = SimpleQueue()
        self._gathering: list[QueuedVisit] = []
        self._lock = threading.Lock()

    def add(
        self, shards: Shards, device: str, key: str, work: Train | Warm, blobs: BlobStore, *, brief: bool = False
    ) -> Future[Outcome]:
        """Put a visit into the queue; one of a device without a share of the data set is over at once."""
        future = _AwaitedOutcome(self)
        try:
            visit = QueuedVisit.of(future, shards, device, key, work, blobs)
        except DataError as error:
            future.set_result(Outcome(DidNot(key, "data", str(error))))
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
        """Hand the gathered visits to the workers, in groups of about the same size: some turns for each worker."""
        with self._lock:
            gathered, self._gathering = self._gathering, []
            if gathered:
                size = min(self._together, max(2, -(-len(gathered) // (TURNS * self._workers))))
                groups = -(-len(gathered) // size)
                for first in range(groups):
                    self._waiting.put(gathered[first::groups])

    def add_again(self, visits: Sequence[QueuedVisit]) -> None:
        """Have visits trained once more, each for itself."""
        for visit in visits:
            self._waiting.put([visit])

    def get(self, timeout: float | None = None) -> list[QueuedVisit] | None:
        """The next visits, waited for; None when there will be no more. After so many seconds `queue.Empty`."""
        return self._waiting.get(timeout=timeout)

    def close(self, takers: Sequence[VisitTaker]) -> None:
        """Cancel the visits that wait, end all takers with their workers, and wait for them."""
        self.deal()
        with suppress(Empty):  # a taker may take the last one meanwhile
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
    """A future that has gathered visits trained when somebody asks for its result, and counts how long that waited."""

    def __init__(self, queue: VisitQueue) -> None:
        super().__init__()
        self._queue = queue

    def result(self, timeout: float | None = None) -> Outcome:
        """The outcome, waited for."""
        if self.done():
            return super().result(timeout)
        self._queue.deal()
        began = perf_counter()
        try:
            return super().result(timeout)
        finally:
            self._queue.spent.add(waiting=perf_counter() - began)


class WorkerCache:
    """Which blobs a worker has from earlier visits, those that were needed last at the end."""

    def __init__(self) -> None:
        self._sizes: dict[bytes, int] = {}

    def update(self, visit: QueuedVisit) -> tuple[dict[bytes, bytes], tuple[bytes, ...]]:
        """Note that the worker gets a visit: the blobs to send with it, and the digests of those that it drops.

        KeyError where a blob is gone that has to be sent; nothing is noted then.
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


def _bare(work: Train | Warm) -> Train | Warm:
    """The work without blobs that ride along: they are in the store, and are sent once."""
    if isinstance(work, Train):
        return msgspec.structs.replace(work, visit=map_refs(work.visit, _bare_ref))
    return msgspec.structs.replace(work, kit=_bare_ref(work.kit))


def _bare_ref(ref: Ref) -> Ref:
    return msgspec.structs.replace(ref, inline=None) if ref.inline else ref
