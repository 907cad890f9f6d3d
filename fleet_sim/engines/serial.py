"""The plainest engine: every visit is trained at once, in the caller, with the device's own trainer."""

from __future__ import annotations

from concurrent.futures import Future
from time import process_time
from typing import TYPE_CHECKING

from fleet_sim.engines.engine import brought
from fleet_sim.engines.spent import Spent
from fleet_sim.engines.visit_trainer import VisitTrainer
from sojourn.model.graphs import Graphs

if TYPE_CHECKING:
    from edge_agent.training.work import Train, Warm
    from fleet_sim.engines.engine import Outcome, Shards
    from fleet_sim.engines.visit_trainer import MakeGraphs
    from sojourn.store.blobs import BlobStore


class SerialEngine:
    """One visit after another; when `start` returns, the visit is over."""

    def __init__(self, shards: Shards, make: MakeGraphs = Graphs) -> None:
        self._shards, self._trainer, self.spent = shards, VisitTrainer(make), Spent()

    def start(self, device: str, key: str, work: Train | Warm, blobs: BlobStore) -> Future[Outcome]:
        """Train the visit now; the future is done when this returns."""
        done: Future[Outcome] = Future()
        began = process_time()
        done.set_result(self._trainer.train(self._shards, device, key, work, brought(work, blobs), blobs.read))
        self.spent.add(visits=1, training=process_time() - began)
        return done

    def close(self) -> None:
        """Do nothing: no visit outlives `start`."""
