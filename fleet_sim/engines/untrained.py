"""No training at all: visits of the right size in no time, for plans of time and bytes.

A model comes back as it went, but for its first numbers, which hold the device's class mix, and the last that is
trained, which is different for every visit: so blobs are new, as after training, and `UntrainedGraphs` answers as a
device's model would that has learnt its own mix exactly. Arrangers then see the devices about as they would after
training.
"""

from __future__ import annotations

import hashlib
from concurrent.futures import Future
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import numpy as np

from edge_agent.training.descent import EpochResult, Prepared, metrics, steps_of
from edge_agent.training.estimates import class_counts, estimate, estimate_result, trains
from edge_agent.training.handover import companions_of, memory_of, model_of, save_model
from edge_agent.training.reasons import Unsupported
from edge_agent.training.trainer import attempt, begin, visit_result
from edge_agent.training.work import Train, Trained, Warm, Warmed
from fleet_sim.engines.engine import Outcome, brought, outcome_of
from fleet_sim.engines.spent import Spent
from sojourn.errors import DataError, Fault
from sojourn.model import vectors
from sojourn.model.graphs import Graphs
from sojourn.model.lengths import spec_of_vector
from sojourn.model.strata import strata_of
from sojourn.parts import OwnObjective, name_of
from sojourn.protocol.envelope import unpack_blob
from sojourn.protocol.spec import Kit
from sojourn.store.memory_blobs import MemoryBlobs

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence

    from numpy.typing import NDArray

    from edge_agent.training.descent import Batches, Progress
    from fleet_sim.engines.engine import Shards
    from sojourn.model.graphs import Streams
    from sojourn.protocol.messages import Visit
    from sojourn.protocol.wire import Ref
    from sojourn.store.blobs import BlobStore

STEEP = 1e30
RARE = 0.01
"""Added to a device's samples of each class, since 0 has no logarithm."""


class UntrainedGraphs(Graphs):
    """Answers every sample alike: with the class mix that an untrained visit left in the model."""

    @property
    def cuts(self) -> bool:
        """Never: nothing is made of samples."""
        return False

    def outputs(self, vector: NDArray[np.float32], x: NDArray[np.generic]) -> NDArray[np.float32]:
        """The class mix in the model's first numbers, for each sample; of a task without classes, nothing."""
        if self.task:
            return np.zeros((len(x), *self.task.output), np.float32)
        answers = np.zeros(len(self._kit.classes), np.float32)
        mix = vector[: len(answers)]
        answers[: len(mix)] = mix
        return np.broadcast_to(answers, (len(x), len(answers)))

    def losses(
        self,
        vector: NDArray[np.float32],
        x: NDArray[np.generic],
        y: NDArray[np.generic],
        beside: Sequence[NDArray[np.float32]] = (),
    ) -> NDArray[np.float64]:
        """Of a task without classes: less where the device has more of the stratum that a sample is of."""
        if not self.task:
            return super().losses(vector, x, y, beside)
        mix = np.zeros(self.task.strata.count)
        held = vector[: len(mix)].astype(np.float64)
        mix[: len(held)] = held
        return np.asarray(-self.task.blind * mix[strata_of(self.task, x, y)])

    def loss_and_gradient(
        self,
        vector: NDArray[np.float32],
        x: NDArray[np.generic],
        y: NDArray[np.generic],
        noise: Sequence[NDArray[np.float32]] = (),
        beside: Sequence[NDArray[np.float32]] = (),
        streams: Streams | None = None,
    ) -> tuple[float, NDArray[np.float32]]:
        """As steep as can be: where nothing is learnt, no way is too long for the gate."""
        del vector, x, y, noise, beside, streams
        return 1.0, np.full(self._kit.model.learnt, STEEP, np.float32)

    def loss(self, vector: NDArray[np.float32], x: NDArray[np.generic], y: NDArray[np.generic]) -> float:
        """Always the same: where nothing is learnt, nothing gets worse."""
        del vector, x, y
        return 1.0


@dataclass(frozen=True)
class _Share:
    """A device's samples, of which nothing is needed but their number and classes."""

    y: NDArray[Any]

    def __len__(self) -> int:
        return len(self.y)

    def batch(self, index: NDArray[np.int64], dtype: str) -> tuple[NDArray[np.generic], NDArray[Any]]:
        """Refuse: a plan trains nothing."""
        raise Fault(f"{len(index)} samples of {dtype} were asked for in a plan")


class UntrainedEngine:
    """When `start` returns, the visit is over; only the virtual clock knows how long it took."""

    def __init__(self, shards: Shards) -> None:
        self._shards, self.spent = shards, Spent()
        self._kits: dict[bytes, Kit] = {}

    def start(self, device: str, key: str, work: Train | Warm, blobs: BlobStore) -> Future[Outcome]:
        """Make up the outcome of a visit."""
        store, done = MemoryBlobs(), Future[Outcome]()
        for digest, data in brought(work, blobs).items():
            store.put(data, digest)
        visit = _UntrainedVisit(self._shards, device, key, store, lambda digest: self._kit(digest, blobs))
        done.set_result(outcome_of(attempt(key, work, visit, lambda _step, _steps: None), store))
        return done

    def close(self) -> None:
        """Do nothing: no visit outlives `start`."""

    def _kit(self, digest: bytes, blobs: BlobStore) -> Kit:
        if digest not in self._kits:
            self._kits = {digest: unpack_blob(blobs.read(digest), Kit)}
        return self._kits[digest]


@dataclass(frozen=True)
class _UntrainedVisit:
    """The trainer of one device for one visit, which makes up the outcome."""

    shards: Shards
    device: str
    key: str
    blobs: MemoryBlobs
    kit: Callable[[bytes], Kit]

    def perform(self, work: Warm | Train, progress: Progress) -> Warmed | Trained:
        """Report what the device would report, with other numbers in its model."""
        kit = self.kit(work.kit.digest if isinstance(work, Warm) else work.visit.kit.digest)
        rows = self.shards.rows_of(self.device)
        # By their values samples without classes fall into strata.
        share: Batches = _Share(self.shards.y[rows]) if not kit.task else self.shards.samples(self.device, kit)
        if not len(share):
            raise DataError(f"{self.device} has no samples")
        if isinstance(work, Warm):
            return Warmed(len(share))
        prepared = Prepared(kit, UntrainedGraphs(kit), share)
        if work.visit.task.kind == "estimate" and not trains(work.visit.task):
            return estimate(work.visit, self.blobs, prepared, progress)
        return self._result(work, prepared)

    def _result(self, work: Train, prepared: Prepared) -> Trained:
        visit, spec = work.visit, prepared.kit.model
        start = model_of(visit, self.blobs, spec)
        start_and_end = start, self._model_with_mix(start, prepared)
        training = visit.task.training
        passed = [EpochResult(1.0, steps_of(prepared.samples, training))] * training.epochs
        if visit.task.kind == "estimate":
            return estimate_result(visit, self.blobs, prepared, start_and_end, passed)
        if not visit.task.objective.one_descent and not isinstance(visit.task.objective, OwnObjective):
            sent = {"model": save_model(self.blobs, *start_and_end, visit.task, spec)}
            sent |= {name: self._told(name, visit, prepared) for name in visit.task.objective.tells}
            return Trained(sent, len(prepared.samples), metrics(passed), None, {})
        memory, remembered = memory_of(work, self.blobs, spec)
        received = companions_of(visit, self.blobs, prepared.kit)
        objective = begin(visit.task.objective, spec, start, received, memory)
        if objective is None:
            raise Unsupported(f"the objective {name_of(visit.task.objective)!r} is not known here")
        return visit_result(visit, self.blobs, prepared, start_and_end, objective, passed, remembered)

    def _told(self, name: str, visit: Visit, prepared: Prepared) -> Ref:
        """A vector of the length of what the device would tell; nothing is known of its data."""
        spec = spec_of_vector(name, visit.task.objective, prepared.kit)
        return vectors.save(self.blobs, np.zeros(spec.size, np.float32), "float32", spec)

    def _model_with_mix(self, start: NDArray[np.float32], prepared: Prepared) -> NDArray[np.float32]:
        counts = np.array(class_counts(prepared)) + RARE
        end = start.copy()
        mix = np.log(counts / counts.sum())[: len(end)]
        end[: len(mix)] = mix
        end[prepared.kit.model.learnt - 1] += (
            int.from_bytes(hashlib.sha256(self.key.encode()).digest()[:3], "little") / 2**24
        )
        return end
