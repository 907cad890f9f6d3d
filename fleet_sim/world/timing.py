"""How long a visit takes on the devices that are simulated."""

from __future__ import annotations

from typing import TYPE_CHECKING

from edge_agent.training.estimates import trains
from fleet_sim.profiles.training_time import training_seconds
from sojourn.model.workload import counted_cost
from sojourn.protocol.envelope import unpack_blob
from sojourn.protocol.spec import Kit

if TYPE_CHECKING:
    from collections.abc import Mapping

    from edge_agent.training.work import Train
    from sojourn.profile import DeviceProfile
    from sojourn.store.blobs import BlobStore


class Timing:
    """The seconds of visits, from the devices' speed, their samples and what a step of the job's model costs."""

    def __init__(self, devices: Mapping[str, DeviceProfile], samples: Mapping[str, int]) -> None:
        self._devices = devices
        self._samples = samples
        self._costs: dict[bytes, float] = {}

    def __call__(self, name: str, work: Train, blobs: BlobStore) -> float:
        """How long a device needs for a visit."""
        task, digest = work.visit.task, work.visit.kit.digest
        if digest not in self._costs:
            self._costs[digest] = counted_cost(unpack_blob(blobs.read(digest), Kit))
        samples, batch = self._samples[name], task.training.batch
        steps = -(-samples // batch) * passes_of(work)
        mean = samples / max(1, -(-samples // batch))
        return training_seconds(
            self._devices[name], cost=self._costs[digest], steps=steps, batch=mean, threads=task.threads, warm=True
        )


def passes_of(work: Train) -> int:
    """How often a visit goes through the device's samples."""
    task = work.visit.task
    if not trains(task):
        return 0
    if task.kind == "train":
        return task.objective.passes(task.training.epochs, work.visit.earlier)
    return task.training.epochs
