"""Trains visits of any device in this process, with the device's own trainer."""

from __future__ import annotations

from typing import TYPE_CHECKING

from edge_agent.training.descent import Prepared
from edge_agent.training.estimates import trains
from edge_agent.training.reasons import RuntimeDiffers
from edge_agent.training.trainer import attempt, train_visit
from edge_agent.training.work import Warm, Warmed
from fleet_sim.engines.engine import kit_of, outcome_of
from fleet_sim.engines.feature_memory import FeatureMemory
from sojourn.model.graphs import Graphs, check_probe
from sojourn.protocol.envelope import unpack_blob
from sojourn.protocol.spec import Kit
from sojourn.store.memory_blobs import MemoryBlobs

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping

    from edge_agent.training.descent import Progress
    from edge_agent.training.work import Train, Trained
    from fleet_sim.engines.engine import Outcome, Shards

    MakeGraphs = Callable[[Kit, int], Graphs]
    ReadKit = Callable[[bytes], bytes]
    """The kit's blob by its digest; asked only when it is not at hand."""

KITS = 4
"""At most this many kits are kept ready; jobs that are compared mostly share one."""


class VisitTrainer:
    """Does for all devices what `edge_agent.training.trainer.Trainer` does for one.

    It keeps graphs, and features where a kit has a trunk; not samples.
    """

    def __init__(self, make: MakeGraphs = Graphs, threads: int = 1) -> None:
        """Make graphs with `make`; use `threads` threads unless a task says how many."""
        self._make, self._threads = make, threads
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
        """Do the work as the device would, on `store`; a failure is an outcome too, with its reason."""
        store = store or MemoryBlobs()
        for digest, data in blobs.items():
            store.put(data, digest)
        visit = _DeviceTrainer(self, shards, device, store, kit)
        # Of a trainer nothing is used but `perform`.
        return outcome_of(attempt(key, work, visit, _no_progress), store)

    def prepare(self, shards: Shards, device: str, work: Train | Warm, read: ReadKit) -> Prepared:
        """The kit, the graphs and the device's samples for a visit, as the graphs take them."""
        task = work.task if isinstance(work, Warm) else work.visit.task
        place = kit_of(work).digest, task.threads or self._threads
        kit, graphs = self._ready(place, read)
        if not graphs.cuts or isinstance(work, Warm) or not trains(task):
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
    """The trainer of one device for one visit, in the shape that `attempt` expects."""

    def __init__(self, trainer: VisitTrainer, shards: Shards, device: str, blobs: MemoryBlobs, kit: ReadKit) -> None:
        self._trainer, self._shards, self._device, self._blobs, self._kit = trainer, shards, device, blobs, kit

    def perform(self, work: Warm | Train, progress: Progress) -> Warmed | Trained:
        """Warm up or train, with the graphs that all devices share."""
        prepared = self._trainer.prepare(self._shards, self._device, work, self._kit)
        if isinstance(work, Warm):
            return Warmed(len(prepared.samples))
        return train_visit(work, self._blobs, prepared, progress)


def _no_progress(_step: int, _steps: int) -> None:
    """Report no step: in a simulation the virtual clock makes the signs of life."""
