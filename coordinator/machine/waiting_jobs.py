"""The jobs that wait for devices: since when, for which devices, and when each is retried or times out.

Volatile: after a restart every job is tried, and its timeout starts again.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, NamedTuple

import msgspec

from coordinator.machine.sites import ROSTER_TIMEOUT, SETTLE_TIME, Sites
from sojourn.node.machine import earliest
from sojourn.parts import name_of
from sojourn.protocol.task import MANDATE, asked, asked_for

if TYPE_CHECKING:
    from coordinator.job_state import JobState

Reach = dict[str, tuple[str, ...]]
"""The devices of each site that can do a job."""
PLAN_AGAIN = 60.0
"""Seconds after which a waiting job is planned again, if nothing happens before."""


class Awaited(NamedTuple):
    """Why planning a round is delayed, and after how many seconds it is tried again."""

    reason: str
    seconds: float


class Waiting(msgspec.Struct):
    """The state of a job that waits for devices."""

    since: float
    """Since when it has not trained."""
    reach: Reach | None
    """The devices that the sites reached when it was last tried; None to try it at the next opportunity."""
    again_at: float
    """When it is tried again, if no device connects or disconnects before."""
    ends_at: float | None
    """When it times out; None for never."""
    failed: bool = False
    """Whether the devices that it reached tried, and none delivered a result."""
    passing: bool = False
    """Whether all of them declined for temporary reasons."""


class WaitingJobs:
    """The jobs that wait for devices, by name."""

    def __init__(self, sites: Sites) -> None:
        self._sites = sites
        self._waiting: dict[str, Waiting] = {}
        self._gathering: dict[str, float] = {}
        """When each job first had enough devices while more were connecting."""

    def reached(self, state: JobState) -> Reach:
        """Return the devices that can do the job, by site."""
        return self._sites.reach(*needs(state))

    def gathering(self, state: JobState, now: float) -> Awaited | None:
        """Return why the first round should wait for devices that a one-time arrangement would omit, or None.

        It waits for sites that are starting, and for devices that not all of their sites have named yet, so that the
        same fleet starts in the same way. A site whose roster keeps changing delays it no longer than a silent one.
        """
        if state.history:
            return None
        if unread := self._sites.unread(now):
            return Awaited(f"{unread[0]} has not sent its roster yet", ROSTER_TIMEOUT)
        if self._sites.is_settled(now) or not self._has_enough(state):
            return None
        if now >= self._gathering.setdefault(state.name, now) + ROSTER_TIMEOUT:
            return None
        return Awaited("devices are connecting", SETTLE_TIME)

    def _has_enough(self, state: JobState) -> bool:
        """Return whether enough devices can do the job for it to begin."""
        return len(set().union(*self.reached(state).values())) >= state.settings.fleet.devices

    def unable(self, state: JobState) -> tuple[str, ...]:
        """Return the online devices that cannot do the job."""
        return self._sites.unable(*needs(state))

    def add(self, state: JobState, now: float, reach: Reach | None, again: float = PLAN_AGAIN) -> None:
        """Record that a job waits, or still does: its timeout counts from when it began to."""
        before, timeout = self._waiting.get(state.name), state.settings.fleet.timeout
        since = before.since if before else now
        self._waiting[state.name] = Waiting(since, reach, now + again, since + timeout if timeout else None)

    def retry(self, state: JobState, now: float, *, passing: bool) -> None:
        """A round had no result: plan it again later, or as soon as another device can do it."""
        self.add(state, now, self.reached(state))
        waits = self._waiting[state.name]
        waits.failed, waits.passing = True, passing

    def retry_now(self, name: str, now: float) -> None:
        """Retry a waiting job at once, since its settings have changed."""
        if waits := self._waiting.get(name):
            waits.again_at = now

    def begins(self, name: str) -> None:
        """A round is planned; if all devices declined temporarily, the timeout continues until one of them trains."""
        waits = self._waiting.get(name)
        if waits is None or not waits.passing:
            self.forget(name)

    def forget(self, name: str) -> None:
        """Forget a job that has trained or ended."""
        self._waiting.pop(name, None)
        self._gathering.pop(name, None)

    def waited(self, name: str, now: float) -> float:
        """Return the seconds that a job has waited; 0 if it does not wait."""
        waits = self._waiting.get(name)
        return now - waits.since if waits else 0.0

    def is_due(self, name: str, now: float) -> bool:
        """Return whether a job has waited long enough to ask silent devices again."""
        waits = self._waiting.get(name)
        return waits is not None and waits.again_at <= now

    def can_continue(self, state: JobState, now: float) -> bool:
        """Return whether a waiting job should be tried: its devices have changed, or its time has come."""
        waits = self._waiting.get(state.name)
        if waits is None or waits.again_at <= now or waits.reach is None:
            return True
        reached = self.reached(state)
        if waits.failed and _devices(reached) <= _devices(waits.reach):
            waits.reach = reached  # a device that leaves changes nothing; one that returns may succeed
            return False
        return reached != waits.reach

    def is_over(self, state: JobState, now: float) -> bool:
        """Return whether a job's timeout has expired without another device."""
        waits = self._waiting.get(state.name)
        if waits is None or waits.ends_at is None or waits.ends_at > now:
            return False
        if waits.reach is not None and self.reached(state) != waits.reach:
            waits.ends_at = now + PLAN_AGAIN  # a device connected while another job had its turn
            return False
        return True

    def wake_at(self, names: list[str], *, idle: bool) -> float | None:
        """When one of these jobs times out or, when nothing else is in progress, one is tried again."""
        waits = [self._waiting[name] for name in names if name in self._waiting]
        again = [it.again_at for it in waits] if idle else []
        return earliest(*again, *(it.ends_at for it in waits))


def _devices(reach: Reach) -> set[str]:
    return set().union(*reach.values())


def needs(state: JobState) -> tuple[str, frozenset[str]]:
    """Return the objective that a device must offer to do a job, and the abilities that it needs."""
    settings, strategy = state.settings, state.strategy
    of_model = (*state.asks, *asked_for(strategy.objective), *((MANDATE,) if state.mandate else ()))
    words = asked(settings.encoding, strategy.training, strategy.estimator, of_model, strategy.objective.outcome)
    return name_of(strategy.objective), words
