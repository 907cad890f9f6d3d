"""An engine without training for plans of time and traffic: results have the right size and take no time.

The returned model equals the input, except for its first numbers, which hold the device's class mix, and its last
trainable number, which differs for every visit; therefore blobs are new, as after training. `UntrainedGraphs` predicts
like a model that has learned the device's class mix exactly, so that arrangers see about the same devices as after
training.
"""

from __future__ import annotations

import hashlib
from collections.abc import Callable, Sequence
from concurrent.futures import Future
from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import NDArray

from edge_agent.training.descent import Batches, EpochResult, Prepared, Progress, metrics, steps_of
from edge_agent.training.estimates import class_counts, estimate, estimate_result, trains
from edge_agent.training.messages import Train, Trained, Warm, Warmed
from edge_agent.training.trainer import attempt, begin, visit_result
from edge_agent.training.visit_vectors import Unsupported, companions_of, memory_of, model_of, save_model
from fleet_sim.engines.engine import Outcome, Shards, Spent, brought, outcome_of
from sojourn.errors import DataError, Fault
from sojourn.model import vectors
from sojourn.model.graphs import Graphs, Streams
from sojourn.model.strata import strata_of
from sojourn.model.vectors import spec_of_vector
from sojourn.parts import OwnObjective, name_of
from sojourn.protocol.envelope import unpack_blob
from sojourn.protocol.messages import Visit
from sojourn.protocol.spec import Kit
from sojourn.protocol.wire import Ref
from sojourn.store.blobs import BlobStore
from sojourn.store.memory_blobs import MemoryBlobs

HUGE_SLOPE = 1e30
SMOOTHING = 0.01
"""Added to a device's samples of each class, since 0 has no logarithm."""


class UntrainedGraphs(Graphs):
    """Predicts the class mix stored in the model by an untrained visit, whatever the sample."""

    @property
    def has_trunk(self) -> bool:
        """Return False: samples have no features."""
        return False

    def outputs(self, vector: NDArray[np.float32], x: NDArray[np.generic]) -> NDArray[np.float32]:
        """Return the class mix in the model's first numbers for each sample; for tasks without classes, zeros."""
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
        reference_models: Sequence[NDArray[np.float32]] = (),
    ) -> NDArray[np.float64]:
        """For tasks without classes, return a lower loss for strata in which the device has more samples."""
        if not self.task:
            return super().losses(vector, x, y, reference_models)
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
        reference_models: Sequence[NDArray[np.float32]] = (),
        streams: Streams | None = None,
    ) -> tuple[float, NDArray[np.float32]]:
        """Return a huge gradient: without learning, no update is too long for the gate."""
        del vector, x, y, noise, reference_models, streams
        return 1.0, np.full(self._kit.model.trainable_size, HUGE_SLOPE, np.float32)

    def loss(self, vector: NDArray[np.float32], x: NDArray[np.generic], y: NDArray[np.generic]) -> float:
        """Return a constant: without learning, nothing gets worse."""
        del vector, x, y
        return 1.0


@dataclass(frozen=True)
class _Share:
    """A device's samples, reduced to their number and classes."""

    y: NDArray[Any]

    def __len__(self) -> int:
        return len(self.y)

    def batch(self, index: NDArray[np.int64], dtype: str) -> tuple[NDArray[np.generic], NDArray[Any]]:
        """Raise an error: a plan trains nothing."""
        raise Fault(f"a plan requested {len(index)} samples of {dtype}")


class UntrainedEngine:
    """When `start` returns, the visit is finished; only the virtual clock knows its duration."""

    def __init__(self, shards: Shards) -> None:
        self._shards, self.spent = shards, Spent()
        self._kits: dict[bytes, Kit] = {}

    def start(self, device: str, key: str, work: Train | Warm, blobs: BlobStore) -> Future[Outcome]:
        """Create the outcome of a visit."""
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
    """The trainer of one device for one visit, which creates the outcome."""

    shards: Shards
    device: str
    key: str
    blobs: MemoryBlobs
    kit: Callable[[bytes], Kit]

    def perform(self, work: Warm | Train, progress: Progress) -> Warmed | Trained:
        """Report what the device would report, with other numbers in its model."""
        kit = self.kit(work.kit.digest if isinstance(work, Warm) else work.visit.kit.digest)
        rows = self.shards.rows_of(self.device)
        # Samples without classes are assigned to strata by their values.
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
            sent |= {name: self._report_vector(name, visit, prepared) for name in visit.task.objective.reports}
            return Trained(sent, len(prepared.samples), metrics(passed), None, {})
        memory, remembered = memory_of(work, self.blobs, spec)
        received = companions_of(visit, self.blobs, prepared.kit)
        objective = begin(visit.task.objective, spec, start, received, memory)
        if objective is None:
            raise Unsupported(f"the objective {name_of(visit.task.objective)!r} is not available here")
        return visit_result(visit, self.blobs, prepared, start_and_end, objective, passed, remembered)

    def _report_vector(self, name: str, visit: Visit, prepared: Prepared) -> Ref:
        """Return a vector of the length of the device's report; its data is unknown."""
        spec = spec_of_vector(name, visit.task.objective, prepared.kit)
        return vectors.save(self.blobs, np.zeros(spec.size, np.float32), "float32", spec)

    def _model_with_mix(self, start: NDArray[np.float32], prepared: Prepared) -> NDArray[np.float32]:
        counts = np.array(class_counts(prepared)) + SMOOTHING
        end = start.copy()
        mix = np.log(counts / counts.sum())[: len(end)]
        end[: len(mix)] = mix
        end[prepared.kit.model.trainable_size - 1] += (
            int.from_bytes(hashlib.sha256(self.key.encode()).digest()[:3], "little") / 2**24
        )
        return end
