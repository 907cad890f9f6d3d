"""The device's own trainer on many machines: Ray actors with one CPU and one thread each.

Every machine of the cluster needs the same versions of sojourn, onnxruntime and numpy; nothing is uploaded, and actors
with other versions are refused. Different CPUs may round differently, as in a fleet of different devices; the kit's
probe bounds the difference.
"""

from __future__ import annotations

import logging
import os
import secrets
import shutil
import socket
import tempfile
import threading
import time
from collections.abc import Callable, Mapping
from concurrent.futures import Future
from contextlib import ExitStack
from dataclasses import dataclass
from queue import Empty
from typing import Any

import msgspec
import numpy as np

from edge_agent.training.messages import Train, Warm
from fleet_sim.engines.engine import Outcome, Shards, Spent
from fleet_sim.engines.ray_worker import RayVisitTrainer, versions
from fleet_sim.engines.visit_queue import CACHE, QueuedVisit, VisitQueue, WorkerCache
from fleet_sim.engines.worker_messages import VisitAnswer, event_of
from sojourn.errors import ConfigError, MachineError
from sojourn.store.blobs import BlobStore

START_TIMEOUT = 60.0
"""Timeout of an actor's start in seconds; after it, training starts without the actor."""
TICK = 0.2
"""Seconds between two checks of an actor that has not started."""
_answers = msgspec.msgpack.Decoder(VisitAnswer)
log = logging.getLogger(__name__)


# The connection to a cluster: an existing one, or a local one for this run.

LOCAL = "local"
CONNECT_TIMEOUT = 5.0
"""Timeout of the connection test in seconds; Ray itself would retry for a quarter of an hour."""
STORE_BYTES = 256 << 20
"""Bytes in the object store of a local cluster in addition to the data set, for models and kits."""
_PREFACE = b"PRI * HTTP/2.0\r\n\r\nSM\r\n\r\n" + b"\0\0\0\4\0\0\0\0\0"
_SETTINGS = 4
_QUIET = {
    "RAY_USAGE_STATS_ENABLED": "0",
    # Under `uv run`, Ray would send the working directory to all machines.
    "RAY_ENABLE_UV_RUN_RUNTIME_ENV": "0",
    "RAY_ACCEL_ENV_VAR_OVERRIDE_ON_ZERO": "0",
}


@dataclass(frozen=True)
class Cluster:
    """A cluster that this process is connected to."""

    ray: Any
    address: str
    ours: bool
    """Whether this process opened the connection, so that it may close it."""
    folder: str = ""
    """Folder of a local cluster's logs and sockets, removed at its end."""

    @property
    def cpus(self) -> int:
        """The number of CPUs."""
        return int(self.ray.cluster_resources().get("CPU", 0))

    @property
    def free(self) -> int:
        """The number of unused CPUs."""
        return int(self.ray.available_resources().get("CPU", 0))

    @property
    def machines(self) -> int:
        """The number of machines."""
        return sum(node["Alive"] for node in self.ray.nodes())

    def __str__(self) -> str:
        if self.folder:
            return "a cluster on this machine"
        return f"{self.machines} machine{'s' if self.machines > 1 else ''} of the cluster at {self.address}"

    def leave(self) -> None:
        """Close the connection, and stop the cluster if it was started for this run."""
        if self.ours:
            self.ray.shutdown()
        if self.folder:
            shutil.rmtree(self.folder, ignore_errors=True)


def join_cluster(address: str, cpus: int, data: int) -> Cluster:
    """Connect to `address`; without one, start a local cluster with this many CPUs and bytes of data."""
    place = _named(address)
    if "://" in place:
        raise ConfigError(
            f"simulation.ray = {place!r}: Ray's client is not supported; start the simulation on one of the cluster's "
            f"machines and set ray = 'auto'"
        )
    if place not in {LOCAL, "auto"}:
        _test_connection(place)
    ray = _ray(local=place == LOCAL)
    if ray.is_initialized():
        return Cluster(ray, ray.get_runtime_context().gcs_address, ours=False)
    folder = ""
    how: dict[str, Any] = {"log_to_driver": False, "logging_level": logging.ERROR}
    if place == LOCAL:
        folder = _local_folder()
        how |= {"num_cpus": cpus, "num_gpus": 0, "object_store_memory": data + STORE_BYTES, "_temp_dir": folder}
        how |= {"include_dashboard": False}
    cluster = Cluster(ray, place, ours=True, folder=folder)
    try:
        ray.init(address=place, **how)
    except (OSError, RuntimeError, ValueError, ray.exceptions.RayError) as error:
        cluster.leave()
        cause = error.__cause__ or error
        raise MachineError(f"no Ray cluster at {place!r}: {str(cause).strip() or type(cause).__name__}") from error
    except BaseException:
        cluster.leave()
        raise
    return Cluster(ray, ray.get_runtime_context().gcs_address, ours=True, folder=folder)


def _local_folder() -> str:
    """Create a folder for a local cluster, below RAY_TMPDIR if that is set; it need not exist yet."""
    # A socket's path is limited to 103 characters, and the default folder of macOS leaves too few of them.
    place = os.environ.get("RAY_TMPDIR") or "/tmp"  # noqa: S108  # mkdtemp makes a private folder in it
    try:
        os.makedirs(place, exist_ok=True)  # noqa: PTH103  # the path must be the one Ray uses
        return tempfile.mkdtemp(prefix="ray-", dir=place)
    except OSError as error:
        raise MachineError(
            f"Ray cannot write to {place!r}: {error.strerror}; set RAY_TMPDIR to another folder"
        ) from error


def _named(address: str) -> str:
    """Return the configured address, otherwise that of Ray's environment variable, otherwise an empty one."""
    usual = os.environ.get("RAY_ADDRESS", "")
    return (usual or "auto") if address == "auto" else address or usual or LOCAL


def _ray(*, local: bool) -> Any:
    """Import Ray; it reads its environment at import, so that is set first."""
    os.environ.update(_QUIET)
    if local:
        # Bind only to the loopback interface, as Ray does on other systems, so that only this machine can connect.
        os.environ.setdefault("RAY_ENABLE_WINDOWS_OR_OSX_CLUSTER", "0")
        if "RAY_AUTH_MODE" not in os.environ:
            os.environ.update({"RAY_AUTH_MODE": "token", "RAY_AUTH_TOKEN": secrets.token_hex(32)})
    else:
        os.environ.setdefault("RAY_NUM_REDIS_GET_RETRIES", "2")
    import ray  # noqa: PLC0415  # slow, and its environment must be set first

    return ray


def _test_connection(address: str) -> None:
    """Check that an HTTP/2 server answers at the address, as Ray's does; with TLS, only that the port is open."""
    host, colon, port = address.rpartition(":")
    if not colon or not port.isdecimal():
        raise ConfigError(f"simulation.ray = {address!r}: write host:port, auto, or leave it empty for a local cluster")
    try:
        with socket.create_connection((host.strip("[]"), int(port)), CONNECT_TIMEOUT) as connection:
            if os.environ.get("RAY_USE_TLS", "0") == "0":
                connection.sendall(_PREFACE)
                answer = connection.recv(9, socket.MSG_WAITALL)
                if len(answer) < 9 or answer[3] != _SETTINGS:
                    raise MachineError(f"the server at {address} is not a Ray cluster")
    except (OSError, OverflowError) as error:
        raise MachineError(f"no Ray cluster answers at {address}: {error}; start it with `ray start`") from error


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
        self._cluster = join_cluster(address, workers or cores, shards.x.nbytes + shards.y.nbytes)
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

    def has_replied(self) -> bool:
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
        request = msgspec.msgpack.encode(visit.request(forget))
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
        if not self._actor.has_replied():
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
