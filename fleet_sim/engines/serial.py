"""The serial engine: trains each visit immediately, in the caller's process, with the device's own trainer."""

from __future__ import annotations

from collections.abc import Callable, Hashable, Mapping
from concurrent.futures import Future
from time import process_time
from typing import TYPE_CHECKING

import numpy as np

from edge_agent.training.descent import Batches, Prepared, Progress
from edge_agent.training.estimates import trains
from edge_agent.training.features import FeatureSamples, TrunkSamples
from edge_agent.training.messages import Train, Trained, Warm, Warmed
from edge_agent.training.trainer import attempt, train_visit
from edge_agent.training.visit_vectors import RuntimeDiffers
from fleet_sim.engines.engine import Spent, brought, kit_of, outcome_of
from sojourn.model.graphs import Graphs, check_probe
from sojourn.protocol.envelope import unpack_blob
from sojourn.protocol.spec import Kit
from sojourn.store.blobs import BlobStore
from sojourn.store.memory_blobs import MemoryBlobs

if TYPE_CHECKING:
    from fleet_sim.engines.engine import Outcome, Shards

    MakeGraphs = Callable[[Kit, int], Graphs]
    ReadKit = Callable[[bytes], bytes]
    """Returns the kit's blob by its digest; called only if the kit is not cached."""


BYTES = 256 << 20
"""Maximum bytes of cached features per process; the least recently used are dropped and recomputed when needed."""


class FeatureMemory:
    """Cached features of samples, by kit and device."""

    def __init__(self, limit: int = BYTES) -> None:
        self._limit, self._taken = limit, 0
        self._kept: dict[Hashable, FeatureSamples] = {}

    def find(self, key: Hashable) -> FeatureSamples | None:
        """Return the cached value of this key."""
        found = self._kept.pop(key, None)
        if found is not None:
            self._kept[key] = found
        return found

    def made(self, key: Hashable, samples: Batches, graphs: Graphs, dtype: str) -> Batches:
        """Return the features of these samples, and cache them if they fit."""
        each_time = TrunkSamples(samples, graphs)
        size = len(samples) * each_time.batch(np.array([0]), dtype)[0].nbytes
        if size > self._limit:
            return each_time
        while self._taken + size > self._limit:
            self._taken -= self._kept.pop(next(iter(self._kept))).features.nbytes
        found = FeatureSamples(each_time.batch(np.arange(len(samples)), dtype)[0].astype(np.float32), samples.y)
        self._kept[key], self._taken = found, self._taken + size
        return found


KITS = 4
"""Maximum number of cached kits; compared jobs usually share one."""


class VisitTrainer:
    """Does for all devices what `edge_agent.training.trainer.Trainer` does for one.

    It caches graphs, and features if a kit has a trunk, but no samples.
    """

    def __init__(self, make: MakeGraphs = Graphs) -> None:
        """Create graphs with `make`; use one thread unless a task sets the number."""
        self._make = make
        self._kits: dict[tuple[bytes, int], tuple[Kit, Graphs]] = {}
        self._features = FeatureMemory()

    def train(
        self,
        shards: Shards,
        device: str,
        key: str,
        work: Train | Warm,
        blobs: Mapping[bytes, bytes],
        kit: ReadKit,
        store: MemoryBlobs | None = None,
    ) -> Outcome:
        """Do the work as the device would, on `store`; a failure is an outcome with its reason."""
        store = store or MemoryBlobs()
        for digest, data in blobs.items():
            store.put(data, digest)
        visit = _DeviceTrainer(self, shards, device, store, kit)
        # Only `perform` of a trainer is used.
        return outcome_of(attempt(key, work, visit, _no_progress), store)

    def prepare(self, shards: Shards, device: str, work: Train | Warm, read: ReadKit) -> Prepared:
        """Return the kit, the graphs and the device's samples in the graphs' format."""
        task = work.task if isinstance(work, Warm) else work.visit.task
        place = kit_of(work).digest, task.threads or 1
        kit, graphs = self._ready(place, read)
        if not graphs.has_trunk or isinstance(work, Warm) or not trains(task):
            return Prepared(kit, graphs, shards.samples(device, kit))
        key = place, shards, device
        found = self._features.find(key) or self._features.made(
            key, shards.samples(device, kit), graphs, kit.input.dtype
        )
        return Prepared(kit, graphs, found)

    def _ready(self, place: tuple[bytes, int], read: ReadKit) -> tuple[Kit, Graphs]:
        if place not in self._kits:
            kit = unpack_blob(read(place[0]), Kit)
            graphs = self._make(kit, place[1])
            if objection := check_probe(kit, graphs):
                raise RuntimeDiffers(objection)
            while len(self._kits) >= KITS:
                del self._kits[next(iter(self._kits))]
            self._kits[place] = kit, graphs
        return self._kits[place]


class _DeviceTrainer:
    """The trainer of one device for one visit, with the interface that `attempt` expects."""

    def __init__(self, trainer: VisitTrainer, shards: Shards, device: str, blobs: MemoryBlobs, kit: ReadKit) -> None:
        self._trainer, self._shards, self._device, self._blobs, self._kit = trainer, shards, device, blobs, kit

    def perform(self, work: Warm | Train, progress: Progress) -> Warmed | Trained:
        """Warm up or train, with the graphs that all devices share."""
        prepared = self._trainer.prepare(self._shards, self._device, work, self._kit)
        if isinstance(work, Warm):
            return Warmed(len(prepared.samples))
        return train_visit(work, self._blobs, prepared, progress)


def _no_progress(_step: int, _steps: int) -> None:
    """Do nothing: in a simulation the virtual clock produces the heartbeats."""


class SerialEngine:
    """Trains one visit after another; when `start` returns, the visit is finished."""

    def __init__(self, shards: Shards, make: MakeGraphs = Graphs) -> None:
        self._shards, self._trainer, self.spent = shards, VisitTrainer(make), Spent()

    def start(self, device: str, key: str, work: Train | Warm, blobs: BlobStore) -> Future[Outcome]:
        """Train the visit now; the returned future is done."""
        done: Future[Outcome] = Future()
        began = process_time()
        done.set_result(self._trainer.train(self._shards, device, key, work, brought(work, blobs), blobs.read))
        self.spent.add(visits=1, training=process_time() - began)
        return done

    def close(self) -> None:
        """Do nothing: no visit outlives `start`."""
