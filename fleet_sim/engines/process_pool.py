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

from fleet_sim.engines.engine import Outcome
from fleet_sim.engines.frames import PoolWorkerSetup, VisitAnswer, event_of
from fleet_sim.engines.shared import SharedArrays, map_arrays
from fleet_sim.engines.visit_queue import VisitQueue, WorkerCache

if TYPE_CHECKING:
    from concurrent.futures import Future

    from edge_agent.training.work import Train, Warm
    from fleet_sim.engines.engine import Shards
    from fleet_sim.engines.visit_queue import QueuedVisit
    from sojourn.store.blobs import BlobStore

_answers = msgspec.msgpack.Decoder(VisitAnswer)
log = logging.getLogger(__name__)


class ProcessPoolEngine:
    """Trains in several worker processes. A worker that dies fails its visit and is replaced."""

    def __init__(self, shards: Shards, workers: int) -> None:
        """Train in as many processes as `workers` says; they start with the first visits, not beside the compiler."""
        self._data = SharedArrays(shards.x, shards.y)
        x, y = map_arrays(self._data.descriptor, self._data.layouts)
        self.shards = replace(shards, x=x, y=y)
        """The data set in shared memory: a caller that drops its own copy leaves one in all."""
        setup = msgspec.msgpack.encode(PoolWorkerSetup(self._data.layouts, shards.classes))
        self._queue = VisitQueue()
        self._threads = [_WorkerThread(self._queue, setup, self._data.descriptor) for _ in range(workers)]

    @property
    def processes(self) -> list[int]:
        """The process numbers of the workers."""
        return [thread.worker.process.pid for thread in self._threads if thread.worker]

    def start(self, device: str, key: str, work: Train | Warm, blobs: BlobStore) -> Future[Outcome]:
        """Queue the visit for the next free worker."""
        return self._queue.add(self.shards, device, key, work, blobs)

    def close(self) -> None:
        """End all processes; visits that wait are cancelled, those under way fail."""
        self._queue.close(self._threads)
        if self._threads:
            self._data.close()
        self._threads.clear()


class _WorkerThread(threading.Thread):
    """Takes visits from the queue and has one worker process train them, as long as the engine is open."""

    def __init__(self, queue: VisitQueue, setup: bytes, data: int) -> None:
        super().__init__(name="pool", daemon=True)
        self._queue, self._setup, self._data, self._open = queue, setup, data, True
        self._lock = threading.Lock()
        self.worker: _Worker | None = None
        self.start()

    def run(self) -> None:
        """Work until the queue is closed."""
        while visit := self._queue.get():
            if not visit.future.set_running_or_notify_cancel():
                continue
            try:
                worker = self._at_work()
            except OSError as error:  # the next visit tries again
                outcome = visit.failed(f"no worker can be started: {error}")
            else:
                outcome = self._trained(visit, worker)
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
            self.worker = self.worker or _Worker(self._setup, self._data)
            return self.worker

    def _trained(self, visit: QueuedVisit, worker: _Worker) -> Outcome:
        try:
            return worker.train(visit)
        except KeyError as error:
            return visit.failed(f"a blob is gone: {error}")
        except (EOFError, OSError):
            with self._lock:
                status = worker.kill()
                self.worker = None
                if self._open:
                    log.warning("%s: the worker died (%s), another takes its place", visit.key, status)
            return visit.failed(f"the worker that trained it died ({status})")


class _Worker:
    """A worker process and the connection to it."""

    def __init__(self, setup: bytes, data: int) -> None:
        ours, theirs = socket.socketpair()
        with theirs:
            self.process = subprocess.Popen(
                [sys.executable, "-P", "-m", "fleet_sim.engines.worker", str(theirs.fileno()), str(data)],
                stdin=subprocess.DEVNULL,
                pass_fds=(theirs.fileno(), data),
                env=_environment(),
                process_group=0,
            )
        self._connection: Connection[Any, Any] = Connection(ours.detach())
        self._cache = WorkerCache()
        self._connection.send_bytes(setup)

    def train(self, visit: QueuedVisit) -> Outcome:
        """Have the visit trained; EOFError or OSError when the worker is no more, KeyError when a blob is gone."""
        self._connection.send_bytes(msgspec.msgpack.encode(visit.request(*self._cache.update(visit))))
        answer = _answers.decode(self._connection.recv_bytes())
        return Outcome(event_of(visit.key, answer), answer.blobs)

    def kill(self) -> int:
        """End it at once and return its exit status."""
        self.process.kill()
        return self.process.wait()


def _environment() -> dict[str, str]:
    """What can be imported here can be imported there; and no library starts threads of its own."""
    ours = str(Path(__file__).resolve().parents[2])
    places = [ours, *(str(Path(place).resolve()) for place in sys.path)]
    alone = dict.fromkeys(("OMP_NUM_THREADS", "OPENBLAS_NUM_THREADS", "MKL_NUM_THREADS"), "1")
    return os.environ | alone | {"PYTHONPATH": os.pathsep.join(dict.fromkeys(places))}
