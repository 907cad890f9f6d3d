"""Whether a device may train now, and how fast: decisions from settings, readings and the time, and nothing else.

Training is slowed first and declined then. What is asked of the machine follows from the settings: a limit that is not
set reads nothing.
"""

from __future__ import annotations

import datetime as dt
import threading
from pathlib import Path
from typing import TYPE_CHECKING

from edge_agent.limits import readings
from edge_agent.limits.readings import Readings
from edge_agent.limits.settings import LimitSettings, spans_of

if TYPE_CHECKING:
    from collections.abc import Callable

    from sojourn.protocol.wire import VisitReason

    Refusal = tuple[VisitReason, str]

_UNWATCHED = ("root", "cpu_share", "warm_up_seconds", "visit_seconds", "readable", "feature_disk")
"""Settings that ask for no readings."""
_MB = 1 << 20
SLOWEST = 0.1
"""The least share of the time that a hot device trains before it declines."""


def too_hot(settings: LimitSettings, celsius: float | None, *, was: bool) -> bool:
    """Whether it is too hot to train: from `stop_at` on, and then until it is cooler than `resume_at`."""
    if settings.stop_at is None or settings.resume_at is None or celsius is None:
        return False
    return celsius >= (settings.resume_at if was else settings.stop_at)


def pace(settings: LimitSettings, seen: Readings) -> float:
    """The share of the time in which training may run: 1 below `throttle_at`, then less and less up to `stop_at`."""
    low, high = settings.throttle_at, settings.stop_at
    if low is None or seen.celsius is None or seen.celsius < low:
        return 1.0
    if high is None:
        return SLOWEST
    return max(SLOWEST, 1.0 - (1.0 - SLOWEST) * (seen.celsius - low) / (high - low))


def allowed_now(hours: tuple[str, ...], now: dt.time) -> bool:
    """Whether a time is within one of the spans; a span that ends before it begins goes over midnight."""
    if not hours:
        return True
    return any(
        begin <= now < end if begin < end else now >= begin or now < end  # the same twice is the whole day
        for begin, end in spans_of(hours)
    )


def refusal(settings: LimitSettings, seen: Readings, now: dt.time, *, hot: bool) -> Refusal | None:
    """Why nothing is trained here now, if so: the reason's word and what a person wants to know."""
    if hot:
        return "hot", f"{seen.celsius or 0:.0f} °C; works again below {settings.resume_at:g} °C"
    if not allowed_now(settings.hours, now):
        return "hours", f"it is {now:%H:%M} here; works at {', '.join(settings.hours)}"
    if over := [name for name in seen.routes if name in settings.metered_interfaces]:
        return "metered", f"the network is reached over {', '.join(over)}"
    if seen.marked_metered:
        return "metered", f"{settings.metered_file} says that the connection is metered"
    if settings.battery is not None and seen.charge is not None and seen.charge < settings.battery:
        return "power", f"on battery with {seen.charge} % left; works on mains, or from {settings.battery} %"
    return _want_of_room(settings, seen)


def _want_of_room(settings: LimitSettings, seen: Readings) -> Refusal | None:
    if settings.memory is not None and seen.worker is not None and seen.worker > settings.memory:
        return "memory", f"training took {seen.worker:.0f} MB; it may take {settings.memory} MB"
    if settings.free_memory is not None and seen.free_memory is not None and seen.free_memory < settings.free_memory:
        return "memory", f"only {seen.free_memory:.0f} MB of memory are free; {settings.free_memory} MB must be"
    if settings.free_disk is not None and seen.free_disk is not None and seen.free_disk < settings.free_disk:
        return "disk", f"only {seen.free_disk:.0f} MB of the disk are free; {settings.free_disk} MB must be"
    return None


def lack_of_memory(
    settings: LimitSettings, needed: float, available: float | None, worker: float = 0.0
) -> Refusal | None:
    """Why training that takes `needed` megabytes does not fit, if so.

    available: megabytes of memory and swap that a new process can have; worker: those that the training process has
    now, and that it would use again.
    """
    takes = f"training this model takes about {needed:.0f} MB"
    if settings.memory is not None and needed > settings.memory:
        return (
            "memory",
            f"{takes}; limits.memory allows {settings.memory} MB: raise it, or use a smaller model or batch",
        )
    if available is None:
        return None
    kept = settings.free_memory or 0
    if needed > available + worker - kept:
        keeps = f" and limits.free_memory keeps {kept} MB of it" if kept else ""
        advice = "stop other programs, add swap, or use a smaller model or batch"
        return "memory", f"{takes}; {available + worker:.0f} MB are available here{keeps}: {advice}"
    return None


def look(settings: LimitSettings, store: Path, worker: int | None = None) -> Readings:
    """Read what the limits need to know."""
    root = Path(settings.root)
    heat = settings.throttle_at is not None or settings.stop_at is not None
    return Readings(
        celsius=readings.temperature(root, settings.zones) if heat else None,
        free_memory=readings.free_memory(root) if settings.free_memory is not None else None,
        free_disk=readings.free_disk(store) if settings.free_disk is not None else None,
        routes=readings.routes(root) if settings.metered_interfaces else (),
        marked_metered=settings.metered_file is not None and Path(settings.metered_file).expanduser().exists(),
        charge=readings.charge(root) if settings.battery is not None else None,
        worker=readings.resident(worker) if settings.memory is not None and worker is not None else None,
    )


class Limits:
    """The limits of one device, looked at again and again: all that it remembers is whether it was too hot."""

    def __init__(
        self, settings: LimitSettings, store: Path, clock: Callable[[], dt.datetime] = dt.datetime.now
    ) -> None:
        self.settings = settings
        self._store = store
        self._clock = clock
        self._hot = False
        self._lock = threading.Lock()

    @property
    def idle(self) -> bool:
        """Whether nothing has to be watched while training."""
        watched = {
            name: getattr(LimitSettings(), name) for name in LimitSettings.__struct_fields__ if name not in _UNWATCHED
        }
        return all(getattr(self.settings, name) == default for name, default in watched.items())

    def objection(self) -> Refusal | None:
        """Why this device takes no visit now; None if it does."""
        return self.judge()[1]

    def room(self, needed: int, worker: int | None = None) -> Refusal | None:
        """Why training that takes so many bytes does not fit here now, if so; `worker` would be used or replaced."""
        root = Path(self.settings.root)
        held = readings.resident(worker) if worker is not None else None
        return lack_of_memory(self.settings, needed / _MB, readings.available_memory(root), held or 0.0)

    def judge(self, worker: int | None = None) -> tuple[float, Refusal | None]:
        """The share of the time that training may run, and why it may not at all; `worker` is who trains."""
        seen = look(self.settings, self._store, worker)
        with self._lock:
            self._hot = too_hot(self.settings, seen.celsius, was=self._hot)
            return pace(self.settings, seen), refusal(self.settings, seen, self._clock().time(), hot=self._hot)
