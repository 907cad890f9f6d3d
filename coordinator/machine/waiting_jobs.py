"""The jobs that wait for devices: since when, for which devices, and when each is tried again or times out.

Volatile: after a restart every job is tried, and its timeout starts again.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, NamedTuple

import msgspec

from coordinator.machine.sites import ROSTER_PATIENCE, SETTLED
from sojourn.node.machine import soonest
from sojourn.parts import name_of
from sojourn.protocol.abilities import MANDATE, asked, asked_for

if TYPE_CHECKING:
    from coordinator.machine.sites import Sites
    from coordinator.state import JobState

Reach = dict[str, tuple[str, ...]]
"""The devices of each site that can do a job."""
PLAN_AGAIN = 60.0
"""Seconds after which a job that waits is planned again, if nothing happens before."""


class Awaited(NamedTuple):
    """Why a round is not planned at this moment, and after how many seconds it is tried again."""

    reason: str
    seconds: float


class Waiting(msgspec.Struct):
    """What is known of a job that waits for devices."""

    since: float
    """Since when it has not trained."""
    reach: Reach | None
    """Whom the sites reached when it was last tried; None to try it at the next occasion."""
    again_at: float
    """When it is tried again, if nobody comes or goes before."""
    ends_at: float | None
    """When it times out; None for never."""
    failed: bool = False
    """Whether the devices that it reached tried, and none brought a result."""
    passing: bool = False
    """Whether all of them declined for reasons that end by themselves."""


class WaitingJobs:
    """Which jobs wait for devices, by name."""

    def __init__(self, sites: Sites) -> None:
        self._sites = sites
        self._waiting: dict[str, Waiting] = {}
        self._gathering: dict[str, float] = {}
        """When each job had enough devices for the first time, and more were coming."""

    def reached(self, state: JobState) -> Reach:
        """The devices that can do the job, by site."""
        return self._sites.reach(*needs(state))

    def gathering(self, state: JobState, now: float) -> Awaited | None:
        """Who else is waited for before the first round: what is arranged once would leave it out.

        A site that is just coming up, and a device that not all sites which reach it have named: the first to name it
        would have it alone. The same fleet is to begin in the same way. Who lets rosters change on and on is waited for
        no longer than a site that says nothing.
        """
        if state.history:
            return None
        if unread := self._sites.unread(now):
            return Awaited(f"{unread[0]} has not said yet which devices it has", ROSTER_PATIENCE)
        if self._sites.is_settled(now) or not self._has_enough(state):
            return None
        if now >= self._gathering.setdefault(state.name, now) + ROSTER_PATIENCE:
            return None
        return Awaited("devices are coming just now", SETTLED)

    def _has_enough(self, state: JobState) -> bool:
        """Whether as many devices can do the job as it needs to begin."""
        return len(set().union(*self.reached(state).values())) >= state.settings.fleet.devices

    def unable(self, state: JobState) -> tuple[str, ...]:
        """The devices that are here and cannot do the job."""
        return self._sites.unable(*needs(state))

    def add(self, state: JobState, now: float, reach: Reach | None, again: float = PLAN_AGAIN) -> None:
        """A job waits, or still does: its timeout counts from when it began to."""
        before, timeout = self._waiting.get(state.name), state.settings.fleet.timeout
        since = before.since if before else now
        self._waiting[state.name] = Waiting(since, reach, now + again, since + timeout if timeout else None)

    def retry(self, state: JobState, now: float, *, passing: bool) -> None:
        """A round had no result: it is planned again after a while, or as soon as another device can do it."""
        self.add(state, now, self.reached(state))
        waits = self._waiting[state.name]
        waits.failed, waits.passing = True, passing

    def hurry(self, name: str, now: float) -> None:
        """A job that waits has other settings: it is tried again at once."""
        if waits := self._waiting.get(name):
            waits.again_at = now

    def begins(self, name: str) -> None:
        """A round is planned; if all devices declined for now, the timeout counts on until one of them trains."""
        waits = self._waiting.get(name)
        if waits is None or not waits.passing:
            self.forget(name)

    def forget(self, name: str) -> None:
        """A job has trained, or has ended."""
        self._waiting.pop(name, None)
        self._gathering.pop(name, None)

    def waited(self, name: str, now: float) -> float:
        """For how many seconds a job has waited; 0 if it does not."""
        waits = self._waiting.get(name)
        return now - waits.since if waits else 0.0

    def is_due(self, name: str, now: float) -> bool:
        """Whether a job has waited long enough for devices that were silent to be asked again."""
        waits = self._waiting.get(name)
        return waits is not None and waits.again_at <= now

    def may_go_on(self, state: JobState, now: float) -> bool:
        """Whether a job that waits is worth a try: who is here has changed, or it is time to."""
        waits = self._waiting.get(state.name)
        if waits is None or waits.again_at <= now or waits.reach is None:
            return True
        reached = self.reached(state)
        if waits.failed and _devices(reached) <= _devices(waits.reach):
            waits.reach = reached  # a device that leaves changes nothing; one that comes back may do better
            return False
        return reached != waits.reach

    def is_over(self, state: JobState, now: float) -> bool:
        """Whether a job has waited for as long as it may, and nobody came."""
        waits = self._waiting.get(state.name)
        if waits is None or waits.ends_at is None or waits.ends_at > now:
            return False
        if waits.reach is not None and self.reached(state) != waits.reach:
            waits.ends_at = now + PLAN_AGAIN  # somebody came while another job had its turn
            return False
        return True

    def wake_at(self, names: list[str], *, idle: bool) -> float | None:
        """When one of these jobs times out or, when nothing else is under way, one is tried again."""
        waits = [self._waiting[name] for name in names if name in self._waiting]
        again = [it.again_at for it in waits] if idle else []
        return soonest(*again, *(it.ends_at for it in waits))


def _devices(reach: Reach) -> set[str]:
    return set().union(*reach.values())


def needs(state: JobState) -> tuple[str, frozenset[str]]:
    """What a device must offer to do a job: its objective, and what else it asks for."""
    settings, strategy = state.settings, state.strategy
    of_model = (*(state.asks or ()), *asked_for(strategy.objective), *((MANDATE,) if state.mandate else ()))
    words = asked(settings.encoding, strategy.training, strategy.estimator, of_model, strategy.objective.outcome)
    return name_of(strategy.objective), words
