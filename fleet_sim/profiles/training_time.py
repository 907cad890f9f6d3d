"""How long training takes on a device that is not here, from its profile and the cost of a sample."""

from __future__ import annotations

from typing import TYPE_CHECKING

from sojourn.model.workload import measure

if TYPE_CHECKING:
    from sojourn.profile import DeviceProfile
    from sojourn.protocol.spec import Kit


def training_seconds(
    device: DeviceProfile, *, cost: float, steps: int, batch: float, threads: int | None = None, warm: bool = False
) -> float:
    """How long a visit trains: `steps` steps of `batch` samples (a mean, where they differ) of `cost` operations each.

    With fewer threads than cores it gets slower in proportion, which is what matrix products do. A warm device has its
    worker running already.
    """
    share = min(threads or device.cores, device.cores) / device.cores
    start = 0.0 if warm else device.visit_seconds
    return start + steps * (device.step_seconds + batch * cost / (device.flops * share))


def seconds_there(seconds: float, here: DeviceProfile, there: DeviceProfile) -> float:
    """How long work of `seconds` on `here` takes on `there`, by the ratio of their flops."""
    return seconds * here.flops / there.flops


def measured_cost(kit: Kit, batch: int, here: DeviceProfile) -> float:
    """The cost of one sample in operations, derived from measured time.

    Unlike `counted_cost` it includes everything that is not a matrix product. It differs from run to run, and
    with it every time that is derived from it.
    """
    taken = measure(kit, batch, threads=here.cores)
    return max(0.0, taken - here.step_seconds) * here.flops / batch
