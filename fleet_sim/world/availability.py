"""When devices are there, under the virtual clock: a function of the plan, the device, the time and the seed alone."""

from __future__ import annotations

from math import floor, inf
from typing import TYPE_CHECKING, Annotated, Protocol

import msgspec

from sojourn.parts.part import Chance, Positive
from sojourn.randomness import derive

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable, Iterator

    from edge_agent.visits import Objection
    from fleet_sim.world.world import World

HOUR = 3600.0
DAY = 24 * HOUR
Hour = Annotated[float, msgspec.Meta(ge=0, le=24)]


class DutyCycle(msgspec.Struct, frozen=True, forbid_unknown_fields=True, kw_only=True):
    """There for `on` of every `of` seconds, each device with a phase of its own."""

    on: Positive
    of: Positive


class Diurnal(msgspec.Struct, frozen=True, forbid_unknown_fields=True, kw_only=True):
    """There from one hour of the day to another, over midnight too; 0 to 24, and equal hours, are all day.

    The virtual clock starts at midnight. Each device's day is shifted by up to half of `spread` hours either way.
    """

    opens: Hour
    closes: Hour
    spread: Hour = 0.0


class Leaving(msgspec.Struct, frozen=True, forbid_unknown_fields=True, kw_only=True):
    """Gone for good: a device is among those who leave with this chance, at some time in the first `within` seconds."""

    chance: Chance
    within: Positive


class Availability(msgspec.Struct, frozen=True, forbid_unknown_fields=True, kw_only=True):
    """`[availability]` of a simulation: a device is there when all of these say so.

    dropout: the chance that a visit fails, whenever it is; see `fails`.
    """

    duty_cycle: DutyCycle | None = None
    diurnal: Diurnal | None = None
    leaving: Leaving | None = None
    dropout: Chance = 0.0


def is_available(plan: Availability, device: str, now: float, seed: int) -> bool:
    """Whether the device is there now."""
    return now < _leaves(plan, device, seed) and all(
        window.start(now) <= now < window.end(now) for window in _windows(plan, device, seed)
    )


def next_change(plan: Availability, device: str, now: float, seed: int) -> float:
    """The next time at which the device may come or go, never later than it does; infinity when it is settled."""
    leaves = _leaves(plan, device, seed)
    if now >= leaves:
        return inf
    windows = _windows(plan, device, seed)
    # Away, it cannot be back before all that keeps it away is over.
    if closed := [window.after(now) for window in windows if now >= window.end(now)]:
        return min(leaves, max(closed))
    return min([leaves, *(window.after(now) for window in windows)])


def fails(plan: Availability, device: str, visit: str, seed: int) -> bool:
    """Whether this visit fails on this device; another attempt is another visit, and has another chance."""
    return _share(seed, "dropout", device, visit) < plan.dropout


def presence(plan: Availability, device: str, seed: int, until: float) -> Iterator[tuple[float, bool]]:
    """When the device comes (True) and goes (False) before `until`; it starts at 0 as if it had been there."""
    now, there = 0.0, True
    while now < until:
        if is_available(plan, device, now, seed) is not there:
            there = not there
            yield now, there
        now = next_change(plan, device, now, seed)


def objection(plan: Availability, device: str, seed: int, clock: Callable[[], float]) -> Objection:
    """For an agent that stays connected but works only when it is there."""
    return lambda: None if is_available(plan, device, clock(), seed) else ("hours", "not at this time")


class RestartableFleet(Protocol):
    """Nodes that can be started and ended by name, under one clock."""

    world: World

    def start(self, name: str) -> None:
        """Start a node, with what its store holds."""

    def kill(self, name: str) -> None:
        """End a node at once, without a farewell to its peers."""


def follow(fleet: RestartableFleet, plan: Availability, devices: Iterable[str], seed: int) -> None:
    """Let these devices of a running fleet come and go from now on: they vanish, and are started again."""
    for device in devices:
        _follow(fleet, plan, device, seed, there=True)


def _follow(fleet: RestartableFleet, plan: Availability, device: str, seed: int, *, there: bool) -> None:
    now = fleet.world.now
    is_there = is_available(plan, device, now, seed)
    if is_there is not there:
        (fleet.start if is_there else fleet.kill)(device)
    after = next_change(plan, device, now, seed)
    if after < inf:
        # Should rounding wake it a little early, nothing has changed yet, and the rest of the way is exact.
        fleet.world.later(after - now, lambda: _follow(fleet, plan, device, seed, there=is_there))


class _Window(msgspec.Struct, frozen=True):
    """There for `on` of every `of` seconds, the first time from -`phase` on.

    Whether a device is there and when that changes come from the same sums, so that they agree to the last bit.
    """

    on: float
    of: float
    phase: float

    def start(self, now: float) -> float:
        """When the period that holds this time began."""
        return self._start(self._period(now))

    def end(self, now: float) -> float:
        """Until when the device is there in the period that holds this time."""
        return self.start(now) + self.on if self.on < self.of else inf

    def after(self, now: float) -> float:
        """The next time after this one at which the device comes or goes."""
        if self.on >= self.of:
            return inf
        return self.end(now) if now < self.end(now) else self._start(self._period(now) + 1)

    def _start(self, period: int) -> float:
        return period * self.of - self.phase

    def _period(self, now: float) -> int:
        guess = floor((now + self.phase) / self.of)
        if now < self._start(guess):  # rounding may be off by one, either way
            return guess - 1
        return guess + 1 if now >= self._start(guess + 1) else guess


def _windows(plan: Availability, device: str, seed: int) -> list[_Window]:
    windows = []
    if duty := plan.duty_cycle:
        windows.append(_Window(duty.on, duty.of, duty.of * _share(seed, "duty-cycle", device)))
    if day := plan.diurnal:
        open_hours = (day.closes - day.opens) % 24 or 24
        shift = day.spread * (_share(seed, "diurnal", device) - 0.5)
        windows.append(_Window(open_hours * HOUR, DAY, -(day.opens + shift) * HOUR))
    return windows


def _leaves(plan: Availability, device: str, seed: int) -> float:
    leaving = plan.leaving
    if leaving is None or _share(seed, "leaving", device) >= leaving.chance:
        return inf
    return leaving.within * _share(seed, "leaving-when", device)


def _share(seed: int, *names: str) -> float:
    """A number in [0, 1) that depends on the seed and the names alone."""
    return derive(seed, *names) / (1 << 53)
