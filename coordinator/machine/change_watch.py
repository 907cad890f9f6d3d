"""What has changed and since when, for operators who watch: they are told at once, and ask for nothing in vain.

Volatile: nothing is written down for it, and after a restart all marks are newer than before.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Literal, NamedTuple

from msgspec import UNSET

from coordinator.audit_records import ActLogged
from coordinator.fleet_records import DeviceForgotten, FleetChanged
from coordinator.machine.sites import RosterRead
from coordinator.records import DevicesEstimated, RoundClosed, RoundFailed
from coordinator.rollout_records import DeviceReported, DevicesJoined, DevicesSetAside, RolloutBegun, RolloutTurned
from sojourn import __version__
from sojourn.node.machine import Append, Did, Doing, Received, Send, soonest
from sojourn.protocol.fleet_messages import Changed
from sojourn.protocol.messages import TourProgress
from sojourn.protocol.release_messages import DeviceReport

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable

    from coordinator.records import Record
    from coordinator.state import CoordinatorState
    from sojourn.node.machine import Effect, Event
    from sojourn.protocol.fleet_messages import AwaitChange, FleetDevice
    from sojourn.protocol.topics import Address

    Topic = Literal["fleet", "jobs", "releases", "audit"]

HOLD = 5.0
"""Seconds after which a watcher is answered, also where nothing has changed: so it knows that somebody is here."""
WATCHERS = 64
"""At most this many wait at a time; the oldest is answered first."""


class _Waiter(NamedTuple):
    """Who waits, with what they asked, and until when."""

    question: AwaitChange
    until: float


class ChangeWatch:
    """Marks of what changed last, and who waits for the next."""

    def __init__(self, wall: float) -> None:
        """`wall` is what a clock on the wall shows, in seconds since 1970, when `now` is 0."""
        self._wall = wall
        self.mark = max(1, int(1000 * wall))
        self._topics: dict[Topic, int] = dict.fromkeys(("fleet", "jobs", "releases", "audit"), self.mark)
        self._first = self.mark
        """What has not changed since the start counts as changed then."""
        self._devices: dict[str, int] = {}
        self._training: dict[int, str | None] = {}
        """By tour, which device was last said to train."""
        self._clashing: dict[str, frozenset[str]] = {}
        """The devices of each site whose names two agents use."""
        self._waiting: dict[tuple[Address, str], _Waiter] = {}
        self.rows: Callable[[int, float], tuple[FleetDevice, ...] | None] = lambda _mark, _now: None
        """The devices that changed after a mark as they are told, if they fit in one answer."""

    def start(self, now: float) -> None:
        """Marks of an earlier start are older than these: a second brings a thousand of them, at most."""
        self.mark = self._first = max(1, int(1000 * (self._wall + now)))
        self._topics = dict.fromkeys(self._topics, self.mark)

    def changed_since(self, mark: int, known: Iterable[str]) -> set[str] | None:
        """The devices that changed after a mark; None for all of them, where the mark is of an earlier start."""
        if mark < self._first:
            return None
        return {device for device in known if self._devices.get(device, 0) > mark}

    # --- what happens

    def note(self, event: Event, effects: list[Effect], durable: CoordinatorState) -> None:
        """Take down what an event has changed."""
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
            case Doing():
                self._touch("jobs")
            case Did(outcome=RosterRead() as read):
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
            case ActLogged():
                self._touch("audit")
            case RoundClosed() | RoundFailed() | DevicesEstimated():
                self._training.clear()
                self._touch("jobs")
                self._touch("fleet", (it.device for it in record.visited or ()))
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

    # --- who waits

    def wait(self, sender: Address, message: AwaitChange, now: float) -> list[Effect]:
        """Somebody asks what has changed: tell at once, or when something does."""
        waiter = _Waiter(message, now + HOLD)
        if message.since != self.mark:
            return [Send(sender, self._changed(waiter, now))]
        self._waiting.pop((sender, message.ticket), None)
        self._waiting[sender, message.ticket] = waiter
        if len(self._waiting) > WATCHERS:
            (oldest, ticket) = next(iter(self._waiting))
            return [Send(oldest, self._changed(self._waiting.pop((oldest, ticket)), now))]
        return []

    def answers(self, before: int, now: float) -> list[Effect]:
        """What is to be said to those who wait, if the mark is no longer the one before, or their time is up."""
        if not self._waiting:
            return []
        late = self.mark == before
        due = [key for key, waiter in self._waiting.items() if not late or waiter.until <= now]
        return [Send(key[0], self._changed(self._waiting.pop(key), now)) for key in due]

    def wake_at(self) -> float | None:
        """When the first who waits is answered, come what may."""
        return soonest(*(waiter.until for waiter in self._waiting.values()))

    def _changed(self, waiter: _Waiter, now: float) -> Changed:
        question, rows = waiter.question, None
        if question.devices and question.since >= self._first:
            rows = self.rows(question.since, now) if self._topics["fleet"] > question.since else ()
        return Changed(
            question.ticket,
            self.mark,
            max(0.0, self._wall + now),
            __version__,
            **self._topics,
            devices=UNSET if rows is None else rows,
        )
