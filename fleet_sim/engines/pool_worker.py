"""A worker of the process pool: trains the visits it receives until its connection is closed."""

from __future__ import annotations

import sys
from collections.abc import Mapping, Sequence
from time import process_time
from typing import cast

import msgspec
import numpy as np

from fleet_sim.engines.engine import Outcome, Shards
from fleet_sim.engines.serial import VisitTrainer
from fleet_sim.engines.shared_memory import Place, map_arena, map_arrays
from fleet_sim.engines.side_by_side import LocalVisit, SideBySideTrainer
from fleet_sim.engines.worker_messages import PoolAnswer, PoolRequest, PoolResult, PoolVisit, PoolWorkerSetup
from sojourn.node.machine import WorkDone, WorkFailed
from sojourn.processes import Parent
from sojourn.store.memory_blobs import MemoryBlobs

_FRAMES: msgspec.msgpack.Decoder[PoolWorkerSetup | PoolRequest] = msgspec.msgpack.Decoder(PoolWorkerSetup | PoolRequest)


class PreallocatedBlobs(MemoryBlobs):
    """A visit's store that writes new blobs into preallocated places."""

    def __init__(self, brought: Mapping[bytes, bytes], room: Sequence[memoryview]) -> None:
        super().__init__()
        for digest, data in brought.items():
            super().put(data, digest)
        self._room = dict(enumerate(room))
        self.placed: dict[bytes, int] = {}
        """The number of the place of each new blob."""

    def put(self, data: bytes | memoryview, digest: bytes | None = None) -> bytes:
        """Store the bytes, in a place if one fits exactly."""
        number = next((number for number, place in self._room.items() if len(place) == len(data)), None)
        if digest is None or number is None or self.has(digest):
            return super().put(data, digest)
        place = self._room.pop(number)
        place[:] = data
        self.placed[digest] = number
        return super().put(place.toreadonly(), digest)


class PoolWorker:
    """Trains requested visits on the data set and the arena shared by all processes of the pool."""

    def __init__(self, data: int, arena: int, setup: PoolWorkerSetup) -> None:
        """`data` and `arena` are open files."""
        self._x, self._y = map_arrays(data, setup.layouts)
        self._classes, self._at = setup.classes, map_arena(arena)
        self._trainer = SideBySideTrainer(VisitTrainer())

    def answer(self, request: PoolRequest) -> PoolAnswer:
        """Return the reply to a request."""
        began = process_time()
        blobs = {digest: self._read(place) for digest, place in request.blobs.items()}
        visits = [self._here(visit, blobs) for visit in request.visits]
        outcomes, together = self._trainer.train([visit for visit, _ in visits])
        results = [_result_of(outcome, store) for outcome, (_, store) in zip(outcomes, visits, strict=True)]
        return PoolAnswer(results, together, process_time() - began)

    def _here(self, visit: PoolVisit, blobs: Mapping[bytes, bytes]) -> tuple[LocalVisit, PreallocatedBlobs]:
        shards = Shards(self._x, self._y, self._classes, {visit.device: np.frombuffer(visit.rows, np.int64)})
        store = PreallocatedBlobs({digest: blobs[digest] for digest in visit.needs}, list(map(self._at, visit.room)))
        return LocalVisit(shards, visit.device, visit.key, visit.work, blobs.__getitem__, store), store

    def _read(self, place: Place | bytes) -> bytes:
        # Readers of a blob accept a view instead of bytes.
        return place if isinstance(place, bytes) else cast("bytes", self._at(place).toreadonly())


def _result_of(outcome: Outcome, store: PreallocatedBlobs) -> PoolResult:
    match outcome.event:
        case WorkDone(outcome=done):
            blobs = {digest: store.placed.get(digest, data) for digest, data in outcome.blobs.items()}
            return PoolResult(done, None, blobs)
        case WorkFailed(reason=reason, detail=detail):
            return PoolResult(None, (reason, detail), {})


def main(data: int, arena: int) -> None:
    """Serve requests until the engine is closed; the arguments are open files inherited from it."""
    engine, worker = Parent(_FRAMES), None
    for frame in engine.frames:
        if isinstance(frame, PoolWorkerSetup):
            worker = PoolWorker(data, arena, frame)
        elif worker:
            engine.send(worker.answer(frame))


if __name__ == "__main__":
    main(*map(int, sys.argv[1:]))
