"""The device's own trainer in several processes of one thread each, around one copy of the data set."""

from __future__ import annotations

import logging
import os
import socket
import subprocess
import sys
import threading
from dataclasses import replace
from multiprocessing.connection import Connection
from pathlib import Path
from typing import TYPE_CHECKING, Any

import msgspec

from fleet_sim.engines.arena import Arena, as_blob, most_bytes
from fleet_sim.engines.engine import Outcome
from fleet_sim.engines.frames import PoolAnswer, PoolRequest, PoolWorkerSetup, event_of
from fleet_sim.engines.known_tasks import KnownTasks
from fleet_sim.engines.placed_blobs import PlacedBlobs
from fleet_sim.engines.shared import SharedArrays, map_arrays
from fleet_sim.engines.spent import Spent
from fleet_sim.engines.visit_queue import VisitQueue

if TYPE_CHECKING:
    from collections.abc import Callable
    from concurrent.futures import Future

    from edge_agent.training.work import Train, Warm
    from fleet_sim.engines.arena import Slot
    from fleet_sim.engines.engine import Shards
    from fleet_sim.engines.frames import PoolResult
    from fleet_sim.engines.visit_queue import QueuedVisit
    from sojourn.store.blobs import BlobStore

_answers = msgspec.msgpack.Decoder(PoolAnswer)
log = logging.getLogger(__name__)


TOGETHER = 16
"""At most this many brief visits go to a worker in one request."""
BRIEF = 0.005
"""Seconds up to which a visit gathers with others: passing it on alone would take about as long as training it."""
SMALL = 64 << 10
"""Bytes up to which a blob comes back in the answer: a place in the arena costs as much as copying them."""


class ProcessPoolEngine:
    """Trains in several worker processes. A worker that dies fails its visit and is replaced."""

    def __init__(self, shards: Shards, workers: int) -> None:
        """Train in as many processes as `workers` says; they start with the first visits, not beside the compiler."""
        self._data = SharedArrays(shards.x, shards.y)
        x, y = map_arrays(self._data.descriptor, self._data.layouts)
        self.shards = replace(shards, x=x, y=y)
        """The data set in shared memory: a caller that drops its own copy leaves one in all."""
        setup = msgspec.msgpack.encode(PoolWorkerSetup(self._data.layouts, shards.classes))
        self.spent = Spent()
        self._arena, self._known = Arena(most_bytes()), KnownTasks()
        self._queue = VisitQueue(workers, TOGETHER, self.spent)
        placed = PlacedBlobs(self._arena)

        def start() -> _Worker:
            return _Worker(setup, self._data.descriptor, self._arena, placed, self._known)

        self._threads = [_WorkerThread(self._queue, start) for _ in range(workers)]

    @property
    def processes(self) -> list[int]:
        """The process numbers of the workers."""
        return [thread.worker.process.pid for thread in self._threads if thread.worker]

    def start(self, device: str, key: str, work: Train | Warm, blobs: BlobStore) -> Future[Outcome]:
        """Queue the visit for the next free worker; brief visits go to a worker together."""
        known = self._known.get(work)
        brief = known is not None and known.per_sample * len(self.shards.rows.get(device, ())) <= BRIEF
        return self._queue.add(self.shards, device, key, work, blobs, brief=brief)

    def close(self) -> None:
        """End all processes; visits that wait are cancelled, those under way fail."""
        self._queue.close(self._threads)
        if self._threads:
            self._data.close()
            self._arena.close()
        self._threads.clear()


class _WorkerThread(threading.Thread):
    """Takes visits from the queue and has one worker process train them, as long as the engine is open."""

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
            # One that is tried again is running already.
            visits = [each for each in taken if each.future.running() or each.future.set_running_or_notify_cancel()]
            try:
                self._train(visits)
            except Exception as error:  # noqa: BLE001  # whoever waits for a visit is told, and the others go on
                for visit in visits:
                    if not visit.future.done():
                        visit.future.set_exception(error)
            del taken, visits  # or they would hold their blobs until the next ones come

    def _train(self, visits: list[QueuedVisit]) -> None:
        if not visits:
            return
        try:
            worker = self._at_work()
        except OSError as error:  # the next visit tries again
            outcomes = [visit.failed(f"no worker can be started: {error}") for visit in visits]
        else:
            outcomes = self._trained(visits, worker)
        for visit, outcome in zip(visits, outcomes, strict=False):
            visit.future.set_result(outcome)

    def end(self) -> None:
        """End the worker, whatever it does, and start no other."""
        with self._lock:
            self._open = False
            if self.worker:
                self.worker.kill()

    def _at_work(self) -> _Worker:
        """The worker, started when there is work."""
        with self._lock:
            if not self._open:
                raise OSError("the engine is closed")
            self.worker = self.worker or self._start()
            return self.worker

    def _trained(self, visits: list[QueuedVisit], worker: _Worker) -> list[Outcome]:
        """The outcomes; none where the visits are to be tried again one by one."""
        try:
            outcomes, answer = worker.train(visits)
        except (EOFError, OSError):
            return self._bereft(visits, worker)
        self._queue.spent.add(visits=len(visits), together=answer.together, training=answer.training)
        return outcomes

    def _bereft(self, visits: list[QueuedVisit], worker: _Worker) -> list[Outcome]:
        """The worker died: of one visit; or of which of several nobody knows, so each is tried again alone."""
        with self._lock:
            status = worker.kill()
            self.worker = None
            if self._open:
                log.warning("%s: the worker died (%s), another takes its place", visits[0].name, status)
        if self._open and len(visits) > 1:
            self._queue.add_again(visits)
            return []
        return [visit.failed(f"the worker that trained it died ({status})") for visit in visits]


class _Worker:
    """A worker process and the connection to it."""

    def __init__(self, setup: bytes, data: int, arena: Arena, placed: PlacedBlobs, known: KnownTasks) -> None:
        self._arena, self._placed, self._known = arena, placed, known
        ours, theirs = socket.socketpair()
        files = (theirs.fileno(), data, arena.descriptor)
        with theirs:
            self.process = subprocess.Popen(
                [sys.executable, "-P", "-m", "fleet_sim.engines.worker", *map(str, files)],
                stdin=subprocess.DEVNULL,
                pass_fds=files,
                env=_environment(),
                process_group=0,
            )
        self._connection: Connection[Any, Any] = Connection(ours.detach())
        self._connection.send_bytes(setup)

    def train(self, visits: list[QueuedVisit]) -> tuple[list[Outcome], PoolAnswer]:
        """Have the visits trained; EOFError or OSError when the worker is no more."""
        held, gone = self._place(visits)
        rooms = [[] if at in gone else self._room(visit) for at, visit in enumerate(visits)]
        asked = tuple(
            visit.pool_visit(tuple(slot.place for slot in room))
            for at, (visit, room) in enumerate(zip(visits, rooms, strict=True))
            if at not in gone
        )
        blobs = {digest: slot if isinstance(slot, bytes) else slot.place for digest, slot in held.items()}
        self._connection.send_bytes(msgspec.msgpack.encode(PoolRequest(asked, blobs)))
        answer = _answers.decode(self._connection.recv_bytes())
        results = iter(answer.results)
        outcomes = [
            visit.failed(gone[at]) if at in gone else self._outcome(visit, next(results), rooms[at])
            for at, visit in enumerate(visits)
        ]
        return outcomes, answer

    def _place(self, visits: list[QueuedVisit]) -> tuple[dict[bytes, Slot | bytes], dict[int, str]]:
        """Where all blobs lie that the visits need, and which visits cannot be trained for lack of one."""
        held: dict[bytes, Slot | bytes] = {}
        gone = {}
        for at, visit in enumerate(visits):
            try:
                held |= {digest: self._placed.place(digest, visit.read) for digest in visit.needs}
            except KeyError as error:
                gone[at] = f"a blob is gone: {error}"
        return held, gone

    def _outcome(self, visit: QueuedVisit, result: PoolResult, room: list[Slot]) -> Outcome:
        made = {digest: _blob(data, room) for digest, data in result.blobs.items()}
        outcome = Outcome(event_of(visit.key, result), made)
        self._known.learn(visit.work, outcome)
        return outcome

    def kill(self) -> int:
        """End it at once and return its exit status."""
        self.process.kill()
        return self.process.wait()

    def _room(self, visit: QueuedVisit) -> list[Slot]:
        """Places for what the visit will make, if visits like it are known; what finds no place comes in the answer."""
        known = self._known.get(visit.work)
        made = [self._arena.room(size) for size in known.sizes if size > SMALL] if known else []
        return [slot for slot in made if slot is not None]


def _blob(data: int | bytes, room: list[Slot]) -> bytes:
    return data if isinstance(data, bytes) else as_blob(room[data])


def _environment() -> dict[str, str]:
    """What can be imported here can be imported there; and no library starts threads of its own."""
    ours = str(Path(__file__).resolve().parents[2])
    places = [ours, *(str(Path(place).resolve()) for place in sys.path)]
    alone = dict.fromkeys(("OMP_NUM_THREADS", "OPENBLAS_NUM_THREADS", "MKL_NUM_THREADS"), "1")
    return os.environ | alone | {"PYTHONPATH": os.pathsep.join(dict.fromkeys(places))}
