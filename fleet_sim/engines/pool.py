"""The device's own trainer in several processes of one thread each, around one copy of the data set."""

from __future__ import annotations

import logging
import os
import socket
import subprocess
import sys
import threading
from concurrent.futures import Future
from dataclasses import dataclass, replace
from multiprocessing.connection import Connection
from pathlib import Path
from queue import SimpleQueue
from typing import TYPE_CHECKING, Any

import msgspec
import numpy as np

from edge_agent.work import Train
from fleet_sim.engines.engine import Outcome, brought, kit_of
from fleet_sim.engines.frames import Answer, Order, Setup, event_of
from fleet_sim.engines.shared import SharedArrays, seen
from sojourn.errors import DataError
from sojourn.machine import DidNot
from sojourn.messages import map_refs

if TYPE_CHECKING:
    from collections.abc import Mapping

    from edge_agent.work import Warm
    from fleet_sim.engines.engine import Shards
    from sojourn.blobs import BlobStore
    from sojourn.wire import Ref

CACHE = 32 << 20
"""Bytes of blobs that a worker keeps for the next visit: a round hands the same model to many devices."""
_answers = msgspec.msgpack.Decoder(Answer)
log = logging.getLogger(__name__)


class PoolEngine:
    """Visits wait in one line; each worker takes the next. A worker that dies fails its visit and is replaced."""

    def __init__(self, shards: Shards, workers: int) -> None:
        """Start as many processes as `workers` says."""
        self._data = SharedArrays(shards.x, shards.y)
        x, y = seen(self._data.descriptor, self._data.layouts)
        self.shards = replace(shards, x=x, y=y)
        """The same, in the shared memory: who drops their own has the data set once."""
        setup = msgspec.msgpack.encode(Setup(self._data.layouts, shards.classes))
        self._line: SimpleQueue[_Job | None] = SimpleQueue()
        self._minders = [_Minder(self._line, setup, self._data.descriptor) for _ in range(workers)]

    @property
    def processes(self) -> list[int]:
        """The process numbers of the workers."""
        return [minder.worker.process.pid for minder in self._minders]

    def start(self, device: str, key: str, work: Train | Warm, blobs: BlobStore) -> Future[Outcome]:
        """Put the visit into the line."""
        future: Future[Outcome] = Future()
        try:
            rows = np.ascontiguousarray(self.shards.rows_of(device), np.int64).tobytes()
        except DataError as error:
            future.set_result(Outcome(DidNot(key, "data", str(error))))
            return future
        self._line.put(_Job(future, device, key, rows, _bare(work), brought(work, blobs), blobs))
        return future

    def close(self) -> None:
        """End all processes; visits that wait are cancelled, those under way fail."""
        while not self._line.empty():
            if job := self._line.get():
                job.future.cancel()
        for minder in self._minders:
            minder.end()
        for _ in self._minders:
            self._line.put(None)
        for minder in self._minders:
            minder.join()
        if self._minders:
            self._data.close()
        self._minders.clear()


@dataclass(frozen=True)
class _Job:
    """A visit that waits or is under way."""

    future: Future[Outcome]
    device: str
    key: str
    rows: bytes
    work: Train | Warm
    blobs: Mapping[bytes, bytes]
    store: BlobStore

    def order(self, blobs: dict[bytes, bytes], needs: tuple[bytes, ...], forget: tuple[bytes, ...]) -> Order:
        """What a worker is sent."""
        return Order(self.device, self.key, self.rows, self.work, blobs, needs, forget)


class _Minder(threading.Thread):
    """Hands visits to one worker and waits for it, as long as the engine is open."""

    def __init__(self, line: SimpleQueue[_Job | None], setup: bytes, data: int) -> None:
        super().__init__(name="pool", daemon=True)
        self._line, self._setup, self._data, self._open = line, setup, data, True
        self._lock = threading.Lock()
        self.worker = _Worker(setup, data)
        self.start()

    def run(self) -> None:
        """Until the line ends."""
        while job := self._line.get():
            if not job.future.set_running_or_notify_cancel():
                continue
            try:
                outcome = self._trained(job)
            except OSError as error:  # no other worker could be started; the next visit tries again
                outcome = Outcome(DidNot(job.key, "failed", f"no worker can be started: {error}"))
            job.future.set_result(outcome)

    def end(self) -> None:
        """End the worker, whatever it does, and start no other."""
        with self._lock:
            self._open = False
            self.worker.kill()

    def _trained(self, job: _Job) -> Outcome:
        try:
            return self.worker.train(job)
        except KeyError as error:
            return Outcome(DidNot(job.key, "failed", f"a blob is gone: {error}"))
        except (EOFError, OSError):
            with self._lock:
                status = self.worker.kill()
                if self._open:
                    log.warning("%s: the worker died (%s), another takes its place", job.key, status)
                    self.worker = _Worker(self._setup, self._data)
            return Outcome(DidNot(job.key, "failed", f"the worker that trained it died ({status})"))


class _Worker:
    """A process and the connection to it."""

    def __init__(self, setup: bytes, data: int) -> None:
        ours, theirs = socket.socketpair()
        with theirs:
            self.process = subprocess.Popen(
                [sys.executable, "-P", "-m", "fleet_sim.engines.worker", str(theirs.fileno()), str(data)],
                stdin=subprocess.DEVNULL, pass_fds=(theirs.fileno(), data), env=_environment(), process_group=0,
            )  # fmt: skip
        self._connection: Connection[Any, Any] = Connection(ours.detach())
        self._held: dict[bytes, int] = {}
        self._connection.send_bytes(setup)

    def train(self, job: _Job) -> Outcome:
        """Have the visit trained; EOFError or OSError when the worker is no more."""
        kit = kit_of(job.work).digest
        needs = kit, *job.blobs
        fresh = {digest: job.blobs[digest] for digest in job.blobs if digest not in self._held}
        if kit not in self._held:
            fresh[kit] = job.store.read(kit)
        order = job.order(fresh, needs, self._make_room(fresh, needs))
        self._connection.send_bytes(msgspec.msgpack.encode(order))
        answer = _answers.decode(self._connection.recv_bytes())
        return Outcome(event_of(job.key, answer), answer.blobs)

    def kill(self) -> int:
        """End it at once and return its exit status."""
        self.process.kill()
        return self.process.wait()

    def _make_room(self, fresh: Mapping[bytes, bytes], needs: tuple[bytes, ...]) -> tuple[bytes, ...]:
        """Note what the worker will hold, last needed last, and name what it shall let go."""
        sizes = {digest: len(fresh[digest]) if digest in fresh else self._held.pop(digest) for digest in needs}
        total, forgotten = sum(sizes.values()), []
        for digest, size in reversed(self._held.items()):
            total += size
            if total > CACHE:
                forgotten.append(digest)
        self._held = {digest: size for digest, size in self._held.items() if digest not in forgotten} | sizes
        return tuple(forgotten)


def _bare(work: Train | Warm) -> Train | Warm:
    """The work without blobs that ride along: they are in the store, and are sent once."""
    if isinstance(work, Train):
        return msgspec.structs.replace(work, visit=map_refs(work.visit, _bare_ref))
    return msgspec.structs.replace(work, kit=_bare_ref(work.kit))


def _bare_ref(ref: Ref) -> Ref:
    return msgspec.structs.replace(ref, inline=None) if ref.inline else ref


def _environment() -> dict[str, str]:
    """What can be imported here can be imported there; and no library starts threads of its own."""
    ours = str(Path(__file__).resolve().parents[2])
    places = [ours, *(str(Path(place).resolve()) for place in sys.path)]
    alone = dict.fromkeys(("OMP_NUM_THREADS", "OPENBLAS_NUM_THREADS", "MKL_NUM_THREADS"), "1")
    return os.environ | alone | {"PYTHONPATH": os.pathsep.join(dict.fromkeys(places))}
