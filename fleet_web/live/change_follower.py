"""Whether the coordinator is there, and what of it has changed: asked between the questions of the pages."""

from __future__ import annotations

import logging
import time
from typing import TYPE_CHECKING

from msgspec import UNSET

from fleet_web.live.known_devices import WatchedDevices
from fleet_web.source import TOPICS, Reach, Topic
from sojourn.errors import JobError, LinkError, SojournError, UserError
from sojourn.text import clean

if TYPE_CHECKING:
    from collections.abc import Callable

    from coordinator.console.operator import Operator

PACE = 0.75
"""Seconds between two answers, at least: however much happens, little is asked."""
IDLE_PACE = 5.0
"""The same while no page is open."""
OPEN = 30.0
"""Seconds after the last question of a page in which one counts as open: each asks more often."""
SILENCE = 8.0
"""Seconds without a word after which a coordinator counts as gone: it speaks at least every five."""
FIRST = 4.0
"""Seconds for the first word."""
OLD_PACE = 3.0
"""Seconds between two looks at a coordinator that cannot tell what has changed."""
AGAIN = 1.0
"""Seconds until a coordinator that was not there is asked again."""
log = logging.getLogger(__name__)


class ChangeFollower:
    """Marks by topic, as the coordinator told them last. `look` runs on the operator's thread, the rest anywhere."""

    def __init__(self) -> None:
        self.reach = Reach(here=False, why="it has not answered yet", since=time.time())
        self.waits: Callable[[], bool] = lambda: False
        """Whether a question waits, so that `look` should return."""
        self.devices = WatchedDevices()
        self.told: int | None = None
        """The newest mark that the coordinator told; None where it tells none."""
        self._marks = dict.fromkeys(TOPICS, 0)
        self._turns = 0
        """Rises when it is gone or back: pages look again then."""
        self._ahead = 0.0
        """By how many seconds its clock is ahead of ours."""
        self._old = False
        self._not_before = 0.0
        self._asked_at = float("-inf")

    def asked(self) -> None:
        """A page asks something: from now on it wants to hear soon of what changes."""
        now = time.monotonic()
        if now > self._asked_at + OPEN:
            self._not_before = min(self._not_before, now)
        self._asked_at = now

    def mark(self, topic: Topic) -> int:
        """A number that changes with the topic."""
        return self._marks[topic] + self._turns

    def now(self) -> float:
        """What the coordinator's clock says."""
        return time.time() + self._ahead

    def look(self, operator: Operator) -> None:
        """Wait for the next change, until a question waits."""
        pause = self._not_before - time.monotonic()
        if pause > 0:
            time.sleep(min(pause, 0.05))
            return
        try:
            self._poll(operator) if self._old else self._follow(operator)
        except SojournError as error:
            self._is_gone(error)

    def _follow(self, operator: Operator) -> None:
        if self.told is None:
            found = operator.changed(0, FIRST)  # knows whether it is only too old for the question
        else:
            answer = operator.changed_unless(self.told, self.waits, SILENCE, devices=self.devices.wanted)
            if answer is None:
                return
            found = answer
            if found.devices is not UNSET:
                self.devices.take(found.devices, self.told, found.mark)
        self._marks = {"fleet": found.fleet, "jobs": found.jobs, "releases": found.releases, "audit": found.audit}
        if found.mark != self.told:
            now = time.monotonic()
            self._not_before = now + (PACE if now < self._asked_at + OPEN else IDLE_PACE)
        self.told, self._ahead = found.mark, found.now - time.time()
        self._is_here()

    def _poll(self, operator: Operator) -> None:
        operator.jobs(FIRST)
        self._not_before = time.monotonic() + OLD_PACE
        self._marks = {topic: mark + 1 for topic, mark in self._marks.items()}
        self._is_here()

    def _is_here(self) -> None:
        if not self.reach.here:
            log.info("the coordinator answers")
            self._turns += 1
        slow = f"The coordinator is of a version before 0.9.0: it is looked at every {OLD_PACE:g} seconds."
        self.reach = Reach(here=True, slow=slow if self._old else "")

    def _is_gone(self, error: SojournError) -> None:
        self._not_before = time.monotonic() + AGAIN
        if isinstance(error, UserError) and not isinstance(error, JobError):
            self._old = True  # it answers other questions
            return
        why = clean(str(error), 400)
        if self.reach.here or self.reach.why != why:
            log.warning("the coordinator cannot be asked: %s", why)
        since = self.reach.since if not self.reach.here else time.time()
        self._turns += self.reach.here
        self.reach = Reach(here=False, why=why, since=since or time.time())
        if isinstance(error, LinkError):  # a newer one may be started in its place
            self._old, self.told = False, None
