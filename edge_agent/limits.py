"""The owner's limits of a device: when and how fast it trains, and which tasks it accepts."""

from __future__ import annotations

import datetime as dt
import re
import threading
from collections.abc import Callable
from pathlib import Path
from typing import Annotated

import msgspec

from edge_agent import machine_readings
from edge_agent.machine_readings import Readings
from sojourn.errors import ConfigError
from sojourn.parts import ClassCountEstimator, name_of
from sojourn.protocol.messages import Prepare, Visit
from sojourn.protocol.wire import Offer, Task, TrainingSize, VisitReason

Refusal = tuple[VisitReason, str]

Megabytes = Annotated[int, msgspec.Meta(ge=1, le=1 << 30)]
Celsius = Annotated[float, msgspec.Meta(gt=0, le=150)]
Interface = Annotated[str, msgspec.Meta(min_length=1, max_length=64)]
RESUME_MARGIN = 5.0
"""Degrees below `stop_at` at which training resumes if `throttle_at` is not set."""
_SPAN = re.compile(r"([01]\d|2[0-3]):([0-5]\d)-([01]\d|2[0-3]):([0-5]\d)")


class LimitSettings(msgspec.Struct, frozen=True, forbid_unknown_fields=True, kw_only=True):
    """Limits on training: the agent slows training first, and then declines visits with a reason."""

    memory: Megabytes | None = None
    """Maximum memory of the training process in megabytes. Example: `300`."""
    free_memory: Megabytes | None = None
    """Megabytes of memory that must stay available on the system. Example: `64`."""
    free_disk: Megabytes | None = None
    """Megabytes that must be free on the disk of the agent's store. Example: `256`."""
    feature_disk: Annotated[int, msgspec.Meta(ge=0, le=1 << 30)] = 512
    """Megabytes of the agent's store that stored features of samples may use; 0 stores none. With them, a job that
    trains only the last layers of a model does not run the frozen layers in every epoch."""
    throttle_at: Celsius | None = None
    """Temperature in degrees Celsius above which training is slowed; the hotter, the slower. Example: `70`."""
    stop_at: Celsius | None = None
    """Temperature in degrees Celsius above which visits are declined, until it is below throttle_at. Example: `80`."""
    zones: tuple[str, ...] = ()
    """The thermal zones to read, by type; empty for all except those known to report wrong values. Example:
    `["cpu-thermal"]`."""
    cpu_share: Annotated[float, msgspec.Meta(gt=0, le=1)] = 1.0
    """The share of all cores that training may use, on average over a step and the pause after it."""
    hours: tuple[str, ...] = ()
    """The times of day at which training is allowed, in local time; empty for always. Example: `["22:00-06:00"]`."""
    metered_interfaces: tuple[Interface, ...] = ()
    """Metered network interfaces: no visit is trained while the default route uses one. Example: `["wwan0"]`."""
    metered_file: str | None = None
    """No visit is trained while this file exists; another program may create it while the connection is metered.
    Example: `"/run/sojourn-agent/metered"`."""
    battery: Annotated[int, msgspec.Meta(ge=0, le=100)] | None = None
    """Minimum charge in percent while running on battery. Example: `30`."""
    warm_up_seconds: Annotated[float, msgspec.Meta(ge=1, le=86_400)] = 300.0
    """Maximum seconds to load graphs and data; after that the process is killed and the visit declined."""
    visit_seconds: Annotated[float, msgspec.Meta(ge=1, le=30 * 86_400)] = 6 * 3600.0
    """Maximum seconds of a whole visit; after that the process is killed and the visit declined."""
    readable: tuple[str, ...] = ()
    """Files and folders that training may read in addition to its data: the targets of links in a folder of images, or
    files that custom objectives open. If the kernel supports it, all other files are blocked. Example:
    `["/srv/photos"]`."""
    root: str = "/"
    """The folder with the machine's /proc and /sys, for a container that mounts them elsewhere."""

    def __post_init__(self) -> None:
        if self.throttle_at is not None and self.stop_at is not None and self.throttle_at >= self.stop_at:
            raise ValueError(f"throttle_at {self.throttle_at:g} must be below stop_at {self.stop_at:g}")
        for span in self.hours:
            if not _SPAN.fullmatch(span):
                raise ValueError(f"hours: {span!r} is not a span like '22:00-06:00'")

    @property
    def resume_at(self) -> float | None:
        """Return the temperature below which a device that was too hot trains again."""
        if self.stop_at is None:
            return None
        return self.stop_at - RESUME_MARGIN if self.throttle_at is None else self.throttle_at


def spans_of(hours: tuple[str, ...]) -> list[tuple[dt.time, dt.time]]:
    """Return each span of the day as its start and its end (exclusive)."""
    found = [_SPAN.fullmatch(span) for span in hours]
    if None in found:
        raise ConfigError(f"limits.hours: {hours} are not spans like '22:00-06:00'")
    numbers = [tuple(map(int, match.groups())) for match in found if match]
    return [(dt.time(a, b), dt.time(c, d)) for a, b, c, d in numbers]


# Whether a device may train now, and how fast. The decisions depend only on settings, readings and the time.
#
# Training is slowed first and then declined. A limit that is not set causes no readings.

_WITHOUT_READINGS = ("root", "cpu_share", "warm_up_seconds", "visit_seconds", "readable", "feature_disk")
"""Settings that need no readings."""
_MB = 1 << 20
MIN_PACE = 0.1
"""Minimum share of the time that a hot device trains before it declines visits."""


def too_hot(settings: LimitSettings, celsius: float | None, *, was: bool) -> bool:
    """Whether it is too hot to train: from `stop_at` on, until the temperature falls below `resume_at`."""
    if settings.stop_at is None or settings.resume_at is None or celsius is None:
        return False
    return celsius >= (settings.resume_at if was else settings.stop_at)


def pace(settings: LimitSettings, seen: Readings) -> float:
    """Return the share of the time that training may run: 1 below `throttle_at`, then decreasing up to `stop_at`."""
    low, high = settings.throttle_at, settings.stop_at
    if low is None or seen.celsius is None or seen.celsius < low:
        return 1.0
    if high is None:
        return MIN_PACE
    return max(MIN_PACE, 1.0 - (1.0 - MIN_PACE) * (seen.celsius - low) / (high - low))


def allowed_now(hours: tuple[str, ...], now: dt.time) -> bool:
    """Whether a time is within one of the spans; a span whose end is before its start includes midnight."""
    if not hours:
        return True
    return any(
        begin <= now < end if begin < end else now >= begin or now < end  # equal start and end mean the whole day
        for begin, end in spans_of(hours)
    )


def refusal(settings: LimitSettings, seen: Readings, now: dt.time, *, hot: bool) -> Refusal | None:
    """Return why no visit may be trained now, as a reason and a text for people; None if training is allowed."""
    if hot:
        return "hot", f"{seen.celsius or 0:.0f} °C; training resumes below {settings.resume_at:g} °C"
    if not allowed_now(settings.hours, now):
        return "hours", f"local time {now:%H:%M}; training is allowed at {', '.join(settings.hours)}"
    if over := [name for name in seen.routes if name in settings.metered_interfaces]:
        return "metered", f"the default route uses {', '.join(over)}"
    if seen.marked_metered:
        return "metered", f"{settings.metered_file} exists: the connection is metered"
    if settings.battery is not None and seen.charge is not None and seen.charge < settings.battery:
        return "power", f"on battery with {seen.charge} % left; at least {settings.battery} % or mains power is needed"
    return _low_resources(settings, seen)


def _low_resources(settings: LimitSettings, seen: Readings) -> Refusal | None:
    if settings.memory is not None and seen.worker is not None and seen.worker > settings.memory:
        return "memory", f"training used {seen.worker:.0f} MB; the limit is {settings.memory} MB"
    if settings.free_memory is not None and seen.free_memory is not None and seen.free_memory < settings.free_memory:
        return "memory", f"only {seen.free_memory:.0f} MB of memory are free; {settings.free_memory} MB are required"
    if settings.free_disk is not None and seen.free_disk is not None and seen.free_disk < settings.free_disk:
        return "disk", f"only {seen.free_disk:.0f} MB of the disk are free; {settings.free_disk} MB are required"
    return None


def lack_of_memory(
    settings: LimitSettings, needed: float, available: float | None, worker: float = 0.0
) -> Refusal | None:
    """Return why training that needs `needed` megabytes does not fit, or None if it fits.

    available: megabytes of memory and swap available to a new process; worker: megabytes that the training process
    uses now and would reuse.
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
        keeps = f", and limits.free_memory reserves {kept} MB of it" if kept else ""
        advice = "stop other programs, add swap, or use a smaller model or batch"
        return "memory", f"{takes}; {available + worker:.0f} MB are available here{keeps}: {advice}"
    return None


def read_machine(settings: LimitSettings, store: Path, worker: int | None = None) -> Readings:
    """Read the measurements that the limits need."""
    root = Path(settings.root)
    heat = settings.throttle_at is not None or settings.stop_at is not None
    return Readings(
        celsius=machine_readings.temperature(root, settings.zones) if heat else None,
        free_memory=machine_readings.free_memory(root) if settings.free_memory is not None else None,
        free_disk=machine_readings.free_disk(store) if settings.free_disk is not None else None,
        routes=machine_readings.routes(root) if settings.metered_interfaces else (),
        marked_metered=settings.metered_file is not None and Path(settings.metered_file).expanduser().exists(),
        charge=machine_readings.charge(root) if settings.battery is not None else None,
        worker=machine_readings.resident(worker) if settings.memory is not None and worker is not None else None,
    )


class Limits:
    """The limits of one device; the only state between two checks is whether it was too hot."""

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
        """Whether no limit needs to be checked during training."""
        default = LimitSettings()
        watched = [name for name in LimitSettings.__struct_fields__ if name not in _WITHOUT_READINGS]
        return all(getattr(self.settings, name) == getattr(default, name) for name in watched)

    def objection(self) -> Refusal | None:
        """Return why this device declines visits now; None if it accepts them."""
        return self.judge()[1]

    def room(self, needed: int, worker: int | None = None) -> Refusal | None:
        """Return why training that needs this many bytes does not fit now, or None; the process `worker` is reused."""
        root = Path(self.settings.root)
        held = machine_readings.resident(worker) if worker is not None else None
        return lack_of_memory(self.settings, needed / _MB, machine_readings.available_memory(root), held or 0.0)

    def judge(self, worker: int | None = None) -> tuple[float, Refusal | None]:
        """Return the share of the time that training may run, and why it must stop, if so; `worker` is its process."""
        seen = read_machine(self.settings, self._store, worker)
        with self._lock:
            self._hot = too_hot(self.settings, seen.celsius, was=self._hot)
            return pace(self.settings, seen), refusal(self.settings, seen, self._clock().time(), hot=self._hot)


CLASS_COUNTS = "class-counts"
WIDTHS = {"float32": 4, "float16": 2, "int8": 1}
"""Bytes per parameter in each encoding."""


def unsupported(task: Task, offer: Offer) -> str | None:
    """Return why a device with this offer cannot do a task, or None. An estimation always uses the plain loss."""
    if task.kind == "train" and name_of(task.objective) not in offer.objectives:
        return f"the objective {name_of(task.objective)!r} is not installed or not allowed on this device"
    if isinstance(task.estimator, ClassCountEstimator) and CLASS_COUNTS not in offer.shares:
        return f"the owner of this device does not share its class counts (`shares` does not list {CLASS_COUNTS!r})"
    asks = task.objective.consent if task.kind == "train" else None
    if asks and asks not in offer.shares:
        return f"the owner of this device does not share what the objective sends (`shares` does not list {asks!r})"
    if (task.threads or 1) > offer.threads:
        return f"the task needs {task.threads} threads; this device allows {offer.threads}"
    return None


def memory_needed(order: Visit | Prepare) -> int:
    """Estimate the bytes that training takes, from the size in the order; the vectors in the order set the minimum."""
    size = order.size or TrainingSize(0, 0, 0)
    vectors = order.vectors.values() if isinstance(order, Visit) else ()
    shown = max((ref.size // WIDTHS[ref.encoding] for ref in vectors if ref.encoding in WIDTHS), default=0)
    size = msgspec.structs.replace(size, parameters=max(size.parameters, shown))
    return size.memory(order.task.training.batch, order.kit.size)


def remembers(task: Task) -> bool:
    """Whether the task uses the objective's memory of the job; an estimation never does."""
    return task.kind == "train" and task.objective.keeps
