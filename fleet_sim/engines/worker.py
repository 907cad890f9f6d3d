"""A process of the process pool: trains the visits that it is sent until its connection ends."""

from __future__ import annotations

import sys
from multiprocessing.connection import Connection
from time import process_time
from typing import TYPE_CHECKING, Any, cast

import msgspec
import numpy as np

from fleet_sim.engines.arena import map_arena
from fleet_sim.engines.engine import Shards
from fleet_sim.engines.frames import PoolAnswer, PoolRequest, PoolResult, PoolWorkerSetup
from fleet_sim.engines.shared import map_arrays
from fleet_sim.engines.side_by_side import SideBySideTrainer, VisitHere
from fleet_sim.engines.visit_trainer import VisitTrainer
from sojourn.node.machine import Did, DidNot
from sojourn.store.memory_blobs import MemoryBlobs

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence

    from fleet_sim.engines.arena import Place
    from fleet_sim.engines.engine import Outcome
    from fleet_sim.engines.frames import PoolVisit

_setup = msgspec.msgpack.Decoder(PoolWorkerSetup)
_requests = msgspec.msgpack.Decoder(PoolRequest)


class RoomyBlobs(MemoryBlobs):
    """A visit's store, which writes the blobs that the visit makes into the places that were made ready for them."""

    def __init__(self, brought: Mapping[bytes, bytes], room: Sequence[memoryview]) -> None:
        super().__init__()
        for digest, data in brought.items():
            super().put(data, digest)
        self._room = dict(enumerate(room))
        self.placed: dict[bytes, int] = {}
        """The number of the place that each new blob is in."""

    def put(self, data: bytes | memoryview, digest: bytes | None = None) -> bytes:
        """Keep these bytes: in a place, if one fits exactly."""
        number = next((number for number, place in self._room.items() if len(place) == len(data)), None)
        if digest is None or number is None or self.has(digest):
            return super().put(data, digest)
        place = self._room.pop(number)
        place[:] = data
        self.placed[digest] = number
        return super().put(place.toreadonly(), digest)


class PoolWorker:
    """Trains the visits of requests, on the data set and the arena that all processes of the pool share."""

    def __init__(self, data: int, arena: int, setup: PoolWorkerSetup) -> None:
        """`data` and `arena` are open files."""
        self._x, self._y = map_arrays(data, setup.layouts)
        self._classes, self._at = setup.classes, map_arena(arena)
        self._trainer = SideBySideTrainer(VisitTrainer())

    def answer(self, packed: bytes) -> bytes:
        """The packed answer to a packed request."""
        began, request = process_time(), _requests.decode(packed)
        blobs = {digest: self._read(place) for digest, place in request.blobs.items()}
        visits = [self._here(visit, blobs) for visit in request.visits]
        outcomes, together = self._trainer.train([visit for visit, _ in visits])
        results = [_result_of(outcome, store) for outcome, (_, store) in zip(outcomes, visits, strict=True)]
        return msgspec.msgpack.encode(PoolAnswer(results, together, process_time() - began))

    def _here(self, visit: PoolVisit, blobs: Mapping[bytes, bytes]) -> tuple[VisitHere, RoomyBlobs]:
        shards = Shards(self._x, self._y, self._classes, {visit.device: np.frombuffer(visit.rows, np.int64)})
        store = RoomyBlobs({digest: blobs[digest] for digest in visit.needs}, list(map(self._at, visit.room)))
        return VisitHere(shards, visit.device, visit.key, visit.work, blobs.__getitem__, store), store

    def _read(self, place: Place | bytes) -> bytes:
        # A view is as good as bytes to whoever reads a blob.
        return place if isinstance(place, bytes) else cast("bytes", self._at(place).toreadonly())


def _result_of(outcome: Outcome, store: RoomyBlobs) -> PoolResult:
    match outcome.event:
        case Did(outcome=done):
            blobs = {digest: store.placed.get(digest, data) for digest, data in outcome.blobs.items()}
            return PoolResult(done, "", "", blobs)
        case DidNot(reason=reason, detail=detail):
            return PoolResult(None, reason, detail, {})


def main(connection: int, data: int, arena: int) -> None:
    """Answer requests until the other end is closed; the arguments are open files that the engine passed on."""
    requests: Connection[Any, Any] = Connection(connection)
    worker = PoolWorker(data, arena, _setup.decode(requests.recv_bytes()))
    while True:
        try:
            request = requests.recv_bytes()
        except EOFError:
            return
        requests.send_bytes(worker.answer(request))


if __name__ == "__main__":
    main(*map(int, sys.argv[1:]))
