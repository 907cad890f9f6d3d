"""Tracks whether the coordinator is reachable, and which topics and devices have changed since the last poll."""

from __future__ import annotations

import logging
import time
from typing import TYPE_CHECKING

from fleet_web.sources.source import TOPICS, Reach, Topic
from sojourn.errors import LinkError, SojournError
from sojourn.text import clean

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable

    from coordinator.console.operator import Operator
    from sojourn.protocol.operator_messages import FleetDevice


FULL_RELOAD = 600.0
"""Seconds after which all devices are loaded again, because change lists omit forgotten devices."""
INTEREST_SECONDS = 30.0
"""Seconds after a page's request during which polls include device changes, which saves extra requests."""


class WatchedDevices:
    """The devices by name; only the operator's thread writes here."""

    def __init__(self) -> None:
        self._devices: dict[str, FleetDevice] = {}
        self._mark: int | None = None
        self._all_at = self._asked_at = float("-inf")

    @property
    def wanted(self) -> bool:
        """Return whether a page currently shows devices."""
        return time.monotonic() < self._asked_at + INTEREST_SECONDS

    def newest(self, operator: Operator, mark: int | None) -> list[FleetDevice]:
        """All devices by name. mark: the coordinator's newest mark; changes during the request are reported again."""
        now = self._asked_at = time.monotonic()
        if self._mark is None or mark is None or now > self._all_at + FULL_RELOAD:
            self._devices = {it.device: it for it in operator.devices()[0]}
            self._all_at, self._mark = now, mark
        elif self._mark != mark:
            self.take(operator.devices(since=self._mark)[0], self._mark, mark)
        return list(self._devices.values())

    def take(self, changed: Iterable[FleetDevice], since: int, mark: int) -> None:
        """Apply the devices that changed between two marks; ignore them if the first mark is unknown."""
        if since != self._mark:
            return
        found = {it.device: it for it in changed}
        new = found.keys() - self._devices.keys()
        self._devices |= found
        if new:
            self._devices = dict(sorted(self._devices.items()))
        self._mark = mark


MIN_PAUSE = 0.75
"""Minimum seconds between two polls, however many changes there are."""
IDLE_PAUSE = 5.0
"""The same while no page is open."""
PAGE_OPEN_SECONDS = 30.0
"""Seconds after its last request during which a page counts as open and polls are more frequent."""
SILENCE_TIMEOUT = 8.0
"""Seconds of silence after which the coordinator counts as unreachable; it replies at least every five."""
FIRST_REPLY_TIMEOUT = 4.0
"""Timeout for the first reply, in seconds."""
RETRY_PAUSE = 1.0
"""Seconds before an unreachable coordinator is polled again."""
log = logging.getLogger(__name__)


class ChangeFollower:
    """Change marks by topic, as last reported by the coordinator. `poll` runs on the operator's thread."""

    def __init__(self) -> None:
        self.reach = Reach(here=False, why="no reply yet", since=time.time())
        self.waits: Callable[[], bool] = lambda: False
        """Returns whether a request is waiting, so that `poll` should return."""
        self.devices = WatchedDevices()
        self.reported: int | None = None
        """The newest mark that the coordinator reported; None if it reports none."""
        self._marks = dict.fromkeys(TOPICS, 0)
        self._reach_changes = 0
        """Incremented when the coordinator becomes unreachable or reachable, so that pages update."""
        self._clock_offset = 0.0
        """The difference between the coordinator's clock and the local clock in seconds."""
        self._not_before = 0.0
        self._asked_at = float("-inf")

    def asked(self) -> None:
        """Record a request of a page, which makes polling more frequent."""
        now = time.monotonic()
        if now > self._asked_at + PAGE_OPEN_SECONDS:
            self._not_before = min(self._not_before, now)
        self._asked_at = now

    def mark(self, topic: Topic) -> int:
        """Return a number that changes with the topic."""
        return self._marks[topic] + self._reach_changes

    def now(self) -> float:
        """Return the time of the coordinator's clock."""
        return time.time() + self._clock_offset

    def poll(self, operator: Operator) -> None:
        """Wait for the next change, or until a request is waiting."""
        pause = self._not_before - time.monotonic()
        if pause > 0:
            time.sleep(min(pause, 0.05))
            return
        try:
            self._follow(operator)
        except SojournError as error:
            self._on_unreachable(error)

    def _follow(self, operator: Operator) -> None:
        if self.reported is None:
            found = operator.changed(0, FIRST_REPLY_TIMEOUT)
        else:
            answer = operator.changed_unless(self.reported, self.waits, SILENCE_TIMEOUT, devices=self.devices.wanted)
            if answer is None:
                return
            found = answer
            if found.devices is not None:
                self.devices.take(found.devices, self.reported, found.mark)
        self._marks = {"fleet": found.fleet, "jobs": found.jobs, "releases": found.releases, "audit": found.audit}
        if found.mark != self.reported:
            now = time.monotonic()
            self._not_before = now + (MIN_PAUSE if now < self._asked_at + PAGE_OPEN_SECONDS else IDLE_PAUSE)
        self.reported, self._clock_offset = found.mark, found.now - time.time()
        self._on_reachable()

    def _on_reachable(self) -> None:
        if not self.reach.here:
            log.info("coordinator is reachable")
            self._reach_changes += 1
        self.reach = Reach(here=True)

    def _on_unreachable(self, error: SojournError) -> None:
        self._not_before = time.monotonic() + RETRY_PAUSE
        why = clean(str(error), 400)
        if self.reach.here or self.reach.why != why:
            log.warning("coordinator is unreachable: %s", why)
        since = self.reach.since if not self.reach.here else time.time()
        self._reach_changes += self.reach.here
        self.reach = Reach(here=False, why=why, since=since or time.time())
        if isinstance(error, LinkError):  # a new coordinator may have been started
            self.reported = None
