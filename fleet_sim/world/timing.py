"""Computes how long a visit takes on a simulated device, including the start of its training process."""

from __future__ import annotations

from collections.abc import Mapping

from edge_agent.training.estimates import trains
from edge_agent.training.messages import Train
from edge_agent.training.process import IDLE_SECONDS
from sojourn.model.workload import counted_cost, measure
from sojourn.profile import DeviceProfile
from sojourn.protocol.envelope import unpack_blob
from sojourn.protocol.spec import Kit
from sojourn.store.blobs import BlobStore

Times = tuple[float, float]
"""When a device's process is ready, and until when it is busy."""


def training_seconds(
    device: DeviceProfile, *, cost: float, steps: int, batch: float, threads: int | None = None, warm: bool = False
) -> float:
    """Return the duration of `steps` steps of `batch` samples (a mean if they differ) with `cost` operations each.

    With fewer threads than cores, speed is proportional to threads, as for matrix products. A warm device already runs
    its worker.
    """
    share = min(threads or device.cores, device.cores) / device.cores
    start = 0.0 if warm else device.visit_seconds
    return start + steps * (device.step_seconds + batch * cost / (device.flops * share))


def seconds_there(seconds: float, here: DeviceProfile, there: DeviceProfile) -> float:
    """Convert a duration measured on `here` to the machine `there`, by the ratio of their flops."""
    return seconds * here.flops / there.flops


def measured_cost(kit: Kit, batch: int, here: DeviceProfile) -> float:
    """Return the cost of one sample in operations, derived from measured time.

    Unlike `counted_cost`, it includes everything in addition to matrix products. It differs from run to run, and so
    does every duration derived from it.
    """
    taken = measure(kit, batch, threads=here.cores)
    return max(0.0, taken - here.step_seconds) * here.flops / batch


class Timing:
    """Computes the duration of visits from the device's speed, its samples, and the cost of the model's step."""

    def __init__(self, devices: Mapping[str, DeviceProfile], samples: Mapping[str, int]) -> None:
        self._devices = devices
        self._samples = samples
        self._costs: dict[bytes, float] = {}

    def __call__(self, name: str, work: Train, blobs: BlobStore) -> float:
        """Return how long a device needs for a visit."""
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
    """Return how many times a visit iterates over the device's samples."""
    task = work.visit.task
    if not trains(task):
        return 0
    if task.kind == "train":
        return task.objective.passes(task.training.epochs, work.visit.earlier)
    return task.training.epochs


class WorkerStarts:
    """Models training processes, which start shortly before work and stop when idle, as in `TrainingProcess`."""

    def __init__(self, starts: Mapping[str, float], times: Mapping[str, Times] | None = None) -> None:
        """`starts` is the start time of each device's process; `times` resumes an earlier simulation."""
        self._starts = starts
        self.times: dict[str, Times] = dict(times or {})

    def wait(self, device: str, now: float) -> float:
        """Return how long it takes until the device's process is ready; start it if it is not running."""
        ready, busy = self.times.get(device, (0.0, float("-inf")))
        if now > max(ready, busy) + IDLE_SECONDS or device not in self.times:
            ready = now + self._starts[device]
            self.times[device] = ready, ready
        return max(0.0, ready - now)

    def use(self, device: str, until: float) -> None:
        """Record that the device's process is busy until this time."""
        self.times[device] = self.times[device][0], until
