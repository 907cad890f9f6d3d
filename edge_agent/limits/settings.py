"""What an owner allows training to take of a device: the table `[limits]` of `agent.toml`."""

from __future__ import annotations

import datetime as dt
import re
from typing import Annotated

import msgspec

from sojourn.errors import ConfigError

Megabytes = Annotated[int, msgspec.Meta(ge=1, le=1 << 30)]
Celsius = Annotated[float, msgspec.Meta(gt=0, le=150)]
Interface = Annotated[str, msgspec.Meta(min_length=1, max_length=64)]
COOLER = 5.0
"""Degrees below `stop_at` at which work begins again, where there is no `throttle_at`."""
_SPAN = re.compile(r"([01]\d|2[0-3]):([0-5]\d)-([01]\d|2[0-3]):([0-5]\d)")


class LimitSettings(msgspec.Struct, frozen=True, forbid_unknown_fields=True, kw_only=True):
    """Limits that hold while training: it is slowed first, then declined with the reason."""

    memory: Megabytes | None = None
    """Megabytes that the training process may take. Example: `300`."""
    free_memory: Megabytes | None = None
    """Megabytes that the system must have to spare. Example: `64`."""
    free_disk: Megabytes | None = None
    """Megabytes that must be free where the agent's store is. Example: `256`."""
    feature_disk: Annotated[int, msgspec.Meta(ge=0, le=1 << 30)] = 512
    """Megabytes that features of samples may take where the agent's store is, so that a job whose model is frozen but
    for its last layers does not run all of it in every epoch; 0 keeps none."""
    throttle_at: Celsius | None = None
    """Degrees Celsius from which training is slowed, the more the hotter. Example: `70`."""
    stop_at: Celsius | None = None
    """Degrees Celsius from which it is declined, until it is cooler than throttle_at. Example: `80`."""
    zones: tuple[str, ...] = ()
    """The thermal zones that count, by their type; empty for all but those known to tell nonsense. Example:
    `["cpu-thermal"]`."""
    cpu_share: Annotated[float, msgspec.Meta(gt=0, le=1)] = 1.0
    """How much of all cores training may use, on average over a step and the pause after it."""
    hours: tuple[str, ...] = ()
    """When training is allowed, in local time; empty for always. Example: `["22:00-06:00"]`."""
    metered_interfaces: tuple[Interface, ...] = ()
    """Nothing is trained while the default route goes over one of these network interfaces. Example: `["wwan0"]`."""
    metered_file: str | None = None
    """Nothing is trained while this file exists; whatever knows the connection's price may create it. Example:
    `"/run/sojourn-agent/metered"`."""
    battery: Annotated[int, msgspec.Meta(ge=0, le=100)] | None = None
    """The least charge in percent when running on battery. Example: `30`."""
    warm_up_seconds: Annotated[float, msgspec.Meta(ge=1, le=86_400)] = 300.0
    """How long graphs and data may take to get ready; what takes longer is ended with its process, and declined."""
    visit_seconds: Annotated[float, msgspec.Meta(ge=1, le=30 * 86_400)] = 6 * 3600.0
    """How long a whole visit may take; what takes longer is ended with its process, and declined."""
    readable: tuple[str, ...] = ()
    """Files and folders that training may read besides its data: what links in a folder of images point to, or what own
    objectives open. All other files are closed to it, where the system can. Example: `["/srv/photos"]`."""
    root: str = "/"
    """Where the system's /proc and /sys are, for a container that has the machine's own elsewhere."""

    def __post_init__(self) -> None:
        if self.throttle_at is not None and self.stop_at is not None and self.throttle_at >= self.stop_at:
            raise ValueError(f"throttle_at {self.throttle_at:g} must be below stop_at {self.stop_at:g}")
        for span in self.hours:
            if not _SPAN.fullmatch(span):
                raise ValueError(f"hours: {span!r} is not a time of the day like '22:00-06:00'")

    @property
    def resume_at(self) -> float | None:
        """Below how many degrees a device that was too hot works again."""
        if self.stop_at is None:
            return None
        return self.stop_at - COOLER if self.throttle_at is None else self.throttle_at


def spans_of(hours: tuple[str, ...]) -> list[tuple[dt.time, dt.time]]:
    """Each span of the day as its beginning and its end, which is not part of it."""
    found = [_SPAN.fullmatch(span) for span in hours]
    if None in found:
        raise ConfigError(f"limits.hours: {hours} are not times of the day")
    numbers = [tuple(map(int, match.groups())) for match in found if match]
    return [(dt.time(a, b), dt.time(c, d)) for a, b, c, d in numbers]
