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
    """Limits that hold while training: it is slowed first, then declined with the reason.

    memory: megabytes that the training process may take. free_memory: megabytes that the system must have to spare.
    free_disk: megabytes that must be free where the agent's store is.
    throttle_at: degrees Celsius from which training is slowed, the more the hotter; stop_at: from which it is declined,
    until it is cooler than throttle_at.
    zones: the thermal zones that count, by their type; empty for all but those known to tell nonsense.
    cpu_share: how much of all cores training may use, on average over a step and the pause after it.
    hours: when training is allowed, in local time, as "22:00-06:00"; empty for always.
    metered_interfaces: nothing is trained while the default route goes over one of these network interfaces.
    metered_file: nothing is trained while this file exists; whatever knows the connection's price may create it.
    battery: the least charge in percent when running on battery.
    warm_up_seconds: how long graphs and data may take to get ready; visit_seconds: how long a whole visit may take.
    Work that takes longer is ended with its process, and declined.
    readable: files and folders that training may read besides its data: what links in a folder of images point to, or
    what own objectives open. All other files are closed to it, where the system can.
    root: where the system's /proc and /sys are, for a container that has the machine's own elsewhere.
    """

    memory: Megabytes | None = None
    free_memory: Megabytes | None = None
    free_disk: Megabytes | None = None
    throttle_at: Celsius | None = None
    stop_at: Celsius | None = None
    zones: tuple[str, ...] = ()
    cpu_share: Annotated[float, msgspec.Meta(gt=0, le=1)] = 1.0
    hours: tuple[str, ...] = ()
    metered_interfaces: tuple[Interface, ...] = ()
    metered_file: str | None = None
    battery: Annotated[int, msgspec.Meta(ge=0, le=100)] | None = None
    warm_up_seconds: Annotated[float, msgspec.Meta(ge=1, le=86_400)] = 300.0
    visit_seconds: Annotated[float, msgspec.Meta(ge=1, le=30 * 86_400)] = 6 * 3600.0
    readable: tuple[str, ...] = ()
    root: str = "/"

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
