"""Availability of devices on the virtual clock: a function of the plan, the device, the time and the seed."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator
from math import floor, inf
from typing import Annotated, Protocol

import msgspec

from edge_agent.visits import Objection
from fleet_sim.world.world import World
from sojourn.parts.part import Chance, Positive
from sojourn.randomness import derive

HOUR = 3600.0
DAY = 24 * HOUR
Hour = Annotated[float, msgspec.Meta(ge=0, le=24)]


class DutyCycle(msgspec.Struct, frozen=True, forbid_unknown_fields=True, kw_only=True):
    """Online for `on` of every `of` seconds, with a different phase for each device."""

    on: Positive
    of: Positive


class Diurnal(msgspec.Struct, frozen=True, forbid_unknown_fields=True, kw_only=True):
    """Online between two hours of the day, also across midnight; 0 to 24, or equal hours, mean all day.

    The virtual clock starts at midnight. Each device's day is shifted by up to half of `spread` hours either way.
    """

    opens: Hour
    closes: Hour
    spread: Hour = 0.0


class Leaving(msgspec.Struct, frozen=True, forbid_unknown_fields=True, kw_only=True):
    """Leaving permanently: each device leaves with this probability, at a random time in the first `within` seconds."""

    chance: Chance
    within: Positive


class Availability(msgspec.Struct, frozen=True, forbid_unknown_fields=True, kw_only=True):
    """`[availability]` of a simulation: a device is online when all of these conditions hold.

    dropout: the probability that a visit fails, at any time; see `fails`.
    """

    duty_cycle: DutyCycle | None = None
    diurnal: Diurnal | None = None
    leaving: Leaving | None = None
    dropout: Chance = 0.0


def is_available(plan: Availability, device: str, now: float, seed: int) -> bool:
    """Return whether the device is online."""
    return now < _leaves(plan, device, seed) and all(
        window.start(now) <= now < window.end(now) for window in _windows(plan, device, seed)
    )


def next_change(plan: Availability, device: str, now: float, seed: int) -> float:
    """Return a lower bound of the next time the device may go online or offline; infinity if it never does."""
    leaves = _leaves(plan, device, seed)
    if now >= leaves:
        return inf
    windows = _windows(plan, device, seed)
    # An offline device cannot return before all reasons for its absence have ended.
    if closed := [window.after(now) for window in windows if now >= window.end(now)]:
        return min(leaves, max(closed))
    return min([leaves, *(window.after(now) for window in windows)])


def fails(plan: Availability, device: str, visit: str, seed: int) -> bool:
    """Return whether this visit fails on this device; each attempt is a separate visit with its own draw."""
    return _share(seed, "dropout", device, visit) < plan.dropout


def presence(plan: Availability, device: str, seed: int, until: float) -> Iterator[tuple[float, bool]]:
    """Yield when the device goes online (True) and offline (False) before `until`; it is online at 0."""
    now, online = 0.0, True
    while now < until:
        if is_available(plan, device, now, seed) is not online:
            online = not online
            yield now, online
        now = next_change(plan, device, now, seed)


def objection(plan: Availability, device: str, seed: int, clock: Callable[[], float]) -> Objection:
    """Return why the device is unavailable, for an agent that stays connected but works only when available."""
    return lambda: None if is_available(plan, device, clock(), seed) else ("hours", "not at this time")


class RestartableFleet(Protocol):
    """Nodes on one clock that can be started and killed by name."""

    world: World

    def start(self, name: str) -> None:
        """Start a node with the contents of its store."""

    def kill(self, name: str) -> None:
        """Kill a node without notice to its peers."""


def follow(fleet: RestartableFleet, plan: Availability, devices: Iterable[str], seed: int) -> None:
    """Make these devices of a running fleet come and go: they are killed and started again."""
    for device in devices:
        _follow(fleet, plan, device, seed, was_online=True)


def _follow(fleet: RestartableFleet, plan: Availability, device: str, seed: int, *, was_online: bool) -> None:
    now = fleet.world.now
    online = is_available(plan, device, now, seed)
    if online is not was_online:
        (fleet.start if online else fleet.kill)(device)
    after = next_change(plan, device, now, seed)
    if after < inf:
        # If rounding wakes it slightly early, nothing has changed yet, and the remaining wait is exact.
        fleet.world.later(after - now, lambda: _follow(fleet, plan, device, seed, was_online=online))


class _Window(msgspec.Struct, frozen=True):
    """Online for `on` of every `of` seconds, starting at -`phase`.

    Availability and its next change are computed from the same sums, so that they agree to the last bit.
    """

    on: float
    of: float
    phase: float

    def start(self, now: float) -> float:
        """Return the start of the period that contains this time."""
        return self._start(self._period(now))

    def end(self, now: float) -> float:
        """Return the end of the online time in the period that contains this time."""
        return self.start(now) + self.on if self.on < self.of else inf

    def after(self, now: float) -> float:
        """Return the next time the device goes online or offline."""
        if self.on >= self.of:
            return inf
        return self.end(now) if now < self.end(now) else self._start(self._period(now) + 1)

    def _start(self, period: int) -> float:
        return period * self.of - self.phase

    def _period(self, now: float) -> int:
        guess = floor((now + self.phase) / self.of)
        if now < self._start(guess):  # rounding may be off by one in either direction
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
    """Return a number in [0, 1) that depends only on the seed and the names."""
    return derive(seed, *names) / (1 << 53)
