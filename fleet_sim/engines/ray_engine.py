"""The device's own trainer on many machines: Ray actors with one CPU and one thread each.

Every machine of the cluster needs the same versions of sojourn, onnxruntime and numpy; nothing is uploaded, and actors
with other versions are refused. Different CPUs may round differently, as in a fleet of different devices; the kit's
probe bounds the difference.
"""

from __future__ import annotations

import logging
import threading
import time
from contextlib import ExitStack
from queue import Empty
from typing import TYPE_CHECKING, Any

import msgspec
import numpy as np

from fleet_sim.engines.engine import Outcome, Spent
from fleet_sim.engines.ray_cluster import join
from fleet_sim.engines.ray_worker import RayVisitTrainer, versions
from fleet_sim.engines.visit_queue import CACHE, VisitQueue, WorkerCache
from fleet_sim.engines.worker_messages import VisitAnswer, event_of
from sojourn.errors import MachineError

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping
    from concurrent.futures import Future

    from edge_agent.training.messages import Train, Warm
    from fleet_sim.engines.engine import Shards
    from fleet_sim.engines.visit_queue import QueuedVisit
    from sojourn.store.blobs import BlobStore

START_TIMEOUT = 60.0
"""Timeout of an actor's start in seconds; after it, training starts without the actor."""
TICK = 0.2
"""Seconds between two checks of an actor that has not started."""
_answers = msgspec.msgpack.Decoder(VisitAnswer)
log = logging.getLogger(__name__)


class RayEngine:
    """Trains in Ray actors on one or more machines. An actor that dies fails its visit and is replaced.

    An actor without a free CPU joins when there is one. While there is no actor at all, visits fail.
    """

    def __init__(self, shards: Shards, cores: int, workers: int = 0, address: str = "") -> None:
        """Use `workers` CPUs of the cluster at `address`, or all; a local cluster has `cores` of them."""
        self._shards = shards
        self.spent = Spent()
        self._queue = VisitQueue(spent=self.spent)
        self._threads: list[_ActorThread] = []
        self._cluster = join(address, workers or cores, shards.x.nbytes + shards.y.nbytes)
        with ExitStack() as undo:
            undo.callback(self.close)
            self._begin(workers or self._cluster.cpus)
            undo.pop_all()

    @property
    def where(self) -> str:
        """The number of actors and the cluster, as the end of a sentence."""
        return f"{len(self._threads)} actor{'s' if len(self._threads) > 1 else ''} on {self._cluster}"

    def start(self, device: str, key: str, work: Train | Warm, blobs: BlobStore) -> Future[Outcome]:
        """Queue the visit for the next free actor."""
        return self._queue.add(self._shards, device, key, work, blobs)

    def close(self) -> None:
        """Stop all actors; waiting visits are cancelled, running ones fail."""
        self._queue.close(self._threads)
        self._threads.clear()
        self._cluster.leave()

    def _begin(self, count: int) -> None:
        ray, shards = self._cluster.ray, self._shards
        if not count:
            raise MachineError(f"the Ray cluster at {self._cluster.address} has no CPUs")
        free = max(1, self._cluster.free)
        data = ray.put((np.ascontiguousarray(shards.x), np.ascontiguousarray(shards.y)))
        kind = ray.remote(num_cpus=1, scheduling_strategy="SPREAD")(RayVisitTrainer)
        stored, ready = _StoredBlobs(ray), set[_ActorThread]()
        for _ in range(count):
            thread = _ActorThread(self._queue, lambda: _Actor(ray, kind.remote(data, shards.classes), stored), ready)
            self._threads.append(thread)
        until = time.monotonic() + START_TIMEOUT
        while len(ready) < min(count, free) and time.monotonic() < until:
            self._refuse()
            time.sleep(TICK / 4)
        self._refuse()
        if not ready:
            raise MachineError(
                f"none of the {self._cluster.cpus} CPUs of the Ray cluster was free for {START_TIMEOUT:g} s "
                f"(`ray status` shows what uses them)"
            )
        if len(ready) < count:
            log.warning("%d of %d actors have started; the others join when a CPU is free", len(ready), count)

    def _refuse(self) -> None:
        """Raise MachineError if a machine of the cluster has other versions, or cannot train."""
        for thread in self._threads:
            if thread.refused:
                raise MachineError(thread.refused)


class _StoredBlobs:
    """Blobs in Ray's object store, each sent at most once to a machine."""

    def __init__(self, ray: Any) -> None:
        self._ray, self._lock = ray, threading.Lock()
        self._refs: dict[bytes, tuple[Any, int]] = {}

    def refs(self, blobs: Mapping[bytes, bytes]) -> list[Any]:
        """Return references to these blobs; the most recently used blobs are kept."""
        with self._lock:
            for digest, data in blobs.items():
                there = digest in self._refs
                self._refs[digest] = self._refs.pop(digest) if there else (self._ray.put(data), len(data))
            found, total = [self._refs[digest][0] for digest in blobs], sum(size for _, size in self._refs.values())
            while total > CACHE and len(self._refs) > len(blobs):
                total -= self._refs.pop(next(iter(self._refs)))[1]
        return found


class _Actor:
    """An actor, which may not have started yet, and the digests of its blobs."""

    def __init__(self, ray: Any, actor: Any, stored: _StoredBlobs) -> None:
        self._ray, self._actor, self._stored = ray, actor, stored
        self._cache = WorkerCache()
        self._about = actor.about.remote()
        self.failures: type[Exception] = ray.exceptions.RayError
        self.born = time.monotonic()

    def there(self) -> bool:
        """Whether the actor has started or failed to start."""
        done, _ = self._ray.wait([self._about], timeout=TICK)
        return bool(done)

    def objection(self) -> str:
        """Return why it cannot be used; raise RayError if it died before it could reply."""
        try:
            machine, theirs = self._ray.get(self._about)
        except self._ray.exceptions.RayTaskError as error:
            reason = str(error).strip().splitlines()[-1]
            return f"a machine of the Ray cluster cannot train: {reason}; is the same sojourn installed on all of them?"
        here = versions()
        differ = [f"{name} {theirs[name]} ({here[name]} here)" for name in here if theirs[name] != here[name]]
        if not differ:
            return ""
        return f"machine {machine!r} of the Ray cluster has {', '.join(differ)}: install the same versions everywhere"

    def train(self, visit: QueuedVisit) -> Outcome:
        """Train the visit; raise RayError if the actor has died, KeyError if a blob is missing."""
        fresh, forget = self._cache.update(visit)
        request = msgspec.msgpack.encode(visit.request({}, forget))
        answered = self._actor.train.remote(request, tuple(fresh), *self._stored.refs(fresh))
        answer = _answers.decode(self._ray.get(answered))
        return Outcome(event_of(visit.key, answer), answer.blobs)

    def kill(self) -> None:
        """Kill the actor."""
        self._ray.kill(self._actor)


class _ActorThread(threading.Thread):
    """Takes visits from the queue and trains them in an actor, until the engine is closed."""

    def __init__(self, queue: VisitQueue, make: Callable[[], _Actor], ready: set[_ActorThread]) -> None:
        """`make` starts an actor; `ready` is the set of threads with started actors, shared by the engine."""
        super().__init__(name="ray", daemon=True)
        self._queue, self._make, self._ready, self._open = queue, make, ready, True
        self._lock = threading.Lock()
        self._actor = make()
        self.refused = ""
        """Why this actor was refused; empty if it was not."""
        self.start()

    def run(self) -> None:
        """Work until the queue is closed. While no actor is ready, fail the waiting visits."""
        while self._open:
            try:
                if self in self._ready or self._begun():
                    visits = self._queue.get()
                elif self._ready or time.monotonic() < self._actor.born + START_TIMEOUT:
                    continue
                else:
                    visits = self._queue.get(timeout=TICK)
            except Empty:
                continue
            if visits is None:
                return
            (visit,) = visits
            if visit.future.set_running_or_notify_cancel():
                self._queue.spent.add(visits=1)
                visit.future.set_result(self._trained(visit) if self in self._ready else self._untrained(visit))

    def end(self) -> None:
        """Kill the actor, and start no other."""
        with self._lock:
            self._open = False
            self._actor.kill()

    def _begun(self) -> bool:
        if self.refused:
            time.sleep(TICK)
            return False
        if not self._actor.there():
            return False
        try:
            self.refused = self._actor.objection()
        except self._actor.failures:
            self._replace()
            time.sleep(TICK)
            return False
        if self.refused:
            log.error("%s", self.refused)
            self._actor.kill()
            return False
        self._ready.add(self)
        return True

    def _trained(self, visit: QueuedVisit) -> Outcome:
        try:
            return self._actor.train(visit)
        except KeyError as error:
            return visit.failed(f"missing blob: {error}")
        except self._actor.failures as error:
            died = type(error).__name__
            if self._replace():
                log.warning("%s: the actor died (%s); starting another", visit.name, died)
            return visit.failed(f"the actor that trained it died ({died})")

    def _untrained(self, visit: QueuedVisit) -> Outcome:
        why = self.refused or f"no CPU of the Ray cluster was free for {START_TIMEOUT:g} s"
        return visit.failed(f"no actor can be started: {why}")

    def _replace(self) -> bool:
        """Start another actor, unless the engine is closed."""
        self._ready.discard(self)
        with self._lock:
            self._actor.kill()
            if self._open:
                self._actor = self._make()
            return self._open
