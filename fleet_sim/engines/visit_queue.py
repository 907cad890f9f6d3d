"""Visits that wait in one line for workers elsewhere, and what each worker keeps from one visit to the next."""

from __future__ import annotations

from concurrent.futures import Future
from dataclasses import dataclass
from queue import SimpleQueue
from typing import TYPE_CHECKING

import msgspec
import numpy as np

from edge_agent.training.work import Train
from fleet_sim.engines.engine import Outcome, brought, kit_of
from fleet_sim.engines.frames import Order
from sojourn.errors import DataError
from sojourn.node.machine import DidNot
from sojourn.protocol.messages import map_refs

if TYPE_CHECKING:
    from collections.abc import Mapping

    from edge_agent.training.work import Warm
    from fleet_sim.engines.engine import Shards
    from sojourn.protocol.wire import Ref
    from sojourn.store.blobs import BlobStore

CACHE = 32 << 20
"""Bytes of blobs that a worker keeps for the next visit: a round hands the same model to many devices."""


@dataclass(frozen=True)
class Waiting:
    """A visit that waits or is under way."""

    future: Future[Outcome]
    device: str
    key: str
    rows: bytes
    work: Train | Warm
    blobs: Mapping[bytes, bytes]
    store: BlobStore

    @classmethod
    def of(cls, shards: Shards, device: str, key: str, work: Train | Warm, blobs: BlobStore) -> Waiting:
        """With all that the visit brings; DataError where the device has no share of the data set."""
        rows = np.ascontiguousarray(shards.rows_of(device), np.int64).tobytes()
        return cls(Future(), device, key, rows, _bare(work), brought(work, blobs), blobs)

    @property
    def needs(self) -> tuple[bytes, ...]:
        """The digests of all that the worker must have: the kit first."""
        return kit_of(self.work).digest, *self.blobs

    def read(self, digest: bytes) -> bytes:
        """One of them; KeyError where the kit is gone."""
        return self.blobs[digest] if digest in self.blobs else self.store.read(digest)

    def order(self, blobs: dict[bytes, bytes], forget: tuple[bytes, ...]) -> Order:
        """What a worker is sent."""
        return Order(self.device, self.key, self.rows, self.work, blobs, self.needs, forget)


class Line:
    """Visits wait in one line; whoever is free takes the next."""

    def __init__(self) -> None:
        self._waiting: SimpleQueue[Waiting | None] = SimpleQueue()

    def add(self, shards: Shards, device: str, key: str, work: Train | Warm, blobs: BlobStore) -> Future[Outcome]:
        """Put a visit into the line; one of a device without a share of the data set is over at once."""
        try:
            visit = Waiting.of(shards, device, key, work, blobs)
        except DataError as error:
            refused: Future[Outcome] = Future()
            refused.set_result(Outcome(DidNot(key, "data", str(error))))
            return refused
        self._waiting.put(visit)
        return visit.future

    def get(self, timeout: float | None = None) -> Waiting | None:
        """The next visit, waited for; None when there will be no more. After so many seconds `queue.Empty`."""
        return self._waiting.get(timeout=timeout)

    def end(self, takers: int) -> None:
        """Nobody wants the visits that wait, and so many need not wait for others."""
        while not self._waiting.empty():
            if visit := self._waiting.get():
                visit.future.cancel()
        for _ in range(takers):
            self._waiting.put(None)


class Held:
    """What a worker holds, last needed last."""

    def __init__(self) -> None:
        self._sizes: dict[bytes, int] = {}

    def lacks(self, needs: tuple[bytes, ...]) -> tuple[bytes, ...]:
        """What has to be sent."""
        return tuple(digest for digest in dict.fromkeys(needs) if digest not in self._sizes)

    def make_room(self, fresh: Mapping[bytes, bytes], needs: tuple[bytes, ...]) -> tuple[bytes, ...]:
        """Note what the worker will hold, and name what it shall let go."""
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
