"""How long things take on devices that are not here: profiles by name or from a file, and the time of a visit."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING

from fleet_sim.profile_table import LINKS, PROFILES
from sojourn.errors import ConfigError
from sojourn.model.workload import counted_cost, measure
from sojourn.profile import DeviceProfile, LinkProfile, Profile
from sojourn.settings import nearest, read_file

if TYPE_CHECKING:
    from sojourn.protocol.spec import Kit

__all__ = [
    "LINKS", "PROFILES", "DeviceProfile", "LinkProfile", "Profile",
    "counted_cost", "find_link", "find_profile", "measure", "measured_cost", "seconds_there", "training_seconds",
]  # fmt: skip
CUSTOM = "custom"


def find_profile(name: str) -> Profile:
    """A board of the table, or the profile in a TOML file, as `sojourn agent profile --output FILE` writes it."""
    if name in PROFILES:
        return PROFILES[name]
    if name == CUSTOM:
        raise ConfigError(f"a {CUSTOM} profile is a file: make one with `sojourn agent profile --output FILE`, name it")
    if name.endswith(".toml"):
        return read_file(Path(name).expanduser(), Profile)
    raise ConfigError(f"unknown profile {name!r}; {nearest(name, [*PROFILES, CUSTOM])}; or name a .toml file")


def find_link(name: str) -> LinkProfile:
    """A line of the table, or that of the profile in a TOML file."""
    if name in LINKS:
        return LINKS[name][0]
    if name.endswith(".toml"):
        return find_profile(name).link
    raise ConfigError(f"unknown link {name!r}; {nearest(name, LINKS)}; or name a .toml file")


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
    """What takes so long here, taken there: by the ratio of the speeds in training."""
    return seconds * here.flops / there.flops


def measured_cost(kit: Kit, batch: int, here: DeviceProfile) -> float:
    """The operations of one sample as this machine feels them: unlike `counted_cost`, with all that is not a product.

    It differs from run to run, and with it every time that is derived from it.
    """
    taken = measure(kit, batch, threads=here.cores)
    return max(0.0, taken - here.step_seconds) * here.flops / batch
