"""Track what changed and when, and notify operators who watch.

The marks are volatile: nothing is journalled, and the marks after a restart are higher than all earlier ones.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable
from typing import Literal, NamedTuple

from coordinator.audit_records import AuditRecorded
from coordinator.fleet_records import DeviceForgotten, FleetChanged
from coordinator.machine.sites import RosterRead
from coordinator.records import DevicesEstimated, Record, RoundClosed, RoundFailed
from coordinator.rollout_records import DeviceReported, DevicesJoined, DevicesSetAside, RolloutBegun, RolloutTurned
from coordinator.state import CoordinatorState
from sojourn import __version__
from sojourn.node.machine import Append, Effect, Event, Received, Send, WorkDone, WorkProgress, earliest
from sojourn.protocol.messages import TourProgress
from sojourn.protocol.operator_messages import AwaitChange, Changed, FleetDevice
from sojourn.protocol.release_messages import DeviceReport
from sojourn.protocol.topics import Address

Topic = Literal["fleet", "jobs", "releases", "audit"]

MAX_WAIT = 5.0
"""Seconds after which a watcher gets an answer even if nothing changed, to show that the coordinator is online."""
MAX_WATCHERS = 64
"""Maximum number of waiting watchers; beyond it, the oldest is answered first."""


class _Waiter(NamedTuple):
    """A watcher's request and the time of its answer."""

    request: AwaitChange
    until: float


class ChangeWatch:
    """Marks of the latest changes, and the operators that wait for the next one."""

    def __init__(self, wall: float) -> None:
        """`wall` is the time in seconds since 1970 at which `now` is 0."""
        self._wall = wall
        self.mark = max(1, int(1000 * wall))
        self._topics: dict[Topic, int] = dict.fromkeys(("fleet", "jobs", "releases", "audit"), self.mark)
        self._first = self.mark
        """The mark of everything that has not changed since the start."""
        self._devices: dict[str, int] = {}
        self._training: dict[int, str | None] = {}
        """The device that each tour last reported as training."""
        self._clashing: dict[str, frozenset[str]] = {}
        """By site, the devices whose names two agents use."""
        self._waiting: dict[tuple[Address, str], _Waiter] = {}
        self.rows: Callable[[int, float], tuple[FleetDevice, ...] | None] = lambda _mark, _now: None
        """Returns the devices that changed after a mark, if they fit in one answer."""

    def start(self, now: float) -> None:
        """Start at marks above those of an earlier run; a second adds at most a thousand marks."""
        self.mark = self._first = max(1, int(1000 * (self._wall + now)))
        self._topics = dict.fromkeys(self._topics, self.mark)

    def changed_since(self, mark: int, known: Iterable[str]) -> set[str] | None:
        """Return the devices that changed after a mark; None for all of them if the mark is from an earlier run."""
        if mark < self._first:
            return None
        return {device for device in known if self._devices.get(device, 0) > mark}

    # --- events

    def note(self, event: Event, effects: list[Effect], durable: CoordinatorState) -> None:
        """Record what an event changed."""
        for effect in effects:
            if isinstance(effect, Append):
                self._recorded(effect.record)
        match event:
            case Received(message=TourProgress() as progress):
                number, device = progress.tour.number, progress.device
                if (before := self._training.get(number)) != device:
                    self._training[number] = device
                    known = durable.seen.devices
                    self._touch("fleet", (it for it in (before, device) if it in known))
                self._touch("jobs")
            case Received(message=DeviceReport()):
                self._touch("releases")
            case WorkProgress():
                self._touch("jobs")
            case WorkDone(outcome=RosterRead() as read):
                clashing = frozenset(it.device for it in read.members if it.clash)
                changed = clashing ^ self._clashing.get(read.site, frozenset())
                self._clashing[read.site] = clashing
                self._touch("fleet", (it for it in changed if it in durable.seen.devices))
            case _:
                pass

    def _recorded(self, record: Record) -> None:
        match record:
            case FleetChanged():
                self._touch("fleet", (*(it.device for it in record.joined), *record.left))
            case DeviceForgotten():
                self._touch("fleet")
            case AuditRecorded():
                self._touch("audit")
            case RoundClosed() | RoundFailed() | DevicesEstimated():
                self._training.clear()
                self._touch("jobs")
                self._touch("fleet", (it.device for it in record.visited))
            case DeviceReported():
                self._touch("releases")
                self._touch("fleet", (record.device,))
            case DevicesJoined() | DevicesSetAside():
                self._touch("releases")
                self._touch("fleet", record.devices)
            case RolloutBegun() | RolloutTurned():
                self._touch("releases")
            case _:
                self._touch("jobs")

    def _touch(self, topic: Topic, devices: Iterable[str | None] = ()) -> None:
        self.mark += 1
        self._topics[topic] = self.mark
        for device in devices:
            if device is not None:
                self._devices[device] = self.mark

    # --- watchers

    def wait(self, sender: Address, message: AwaitChange, now: float) -> list[Effect]:
        """Answer at once if something changed since the watcher's mark, otherwise when it does."""
        waiter = _Waiter(message, now + MAX_WAIT)
        if message.since != self.mark:
            return [Send(sender, self._changed(waiter, now))]
        self._waiting.pop((sender, message.ticket), None)
        self._waiting[sender, message.ticket] = waiter
        if len(self._waiting) > MAX_WATCHERS:
            (oldest, ticket) = next(iter(self._waiting))
            return [Send(oldest, self._changed(self._waiting.pop((oldest, ticket)), now))]
        return []

    def answers(self, before: int, now: float) -> list[Effect]:
        """Return the answers to watchers if the mark has changed or their time is up."""
        if not self._waiting:
            return []
        late = self.mark == before
        due = [key for key, waiter in self._waiting.items() if not late or waiter.until <= now]
        return [Send(key[0], self._changed(self._waiting.pop(key), now)) for key in due]

    def wake_at(self) -> float | None:
        """When the first watcher must be answered."""
        return earliest(*(waiter.until for waiter in self._waiting.values()))

    def _changed(self, waiter: _Waiter, now: float) -> Changed:
        request, rows = waiter.request, None
        if request.devices and request.since >= self._first:
            rows = self.rows(request.since, now) if self._topics["fleet"] > request.since else ()
        return Changed(
            request.ticket,
            self.mark,
            max(0.0, self._wall + now),
            __version__,
            **self._topics,
            devices=rows,
        )
