"""A coordinator that runs, as the pages ask it. Nothing is kept but what was answered last."""

from __future__ import annotations

import time
from typing import TYPE_CHECKING

from coordinator.console.following import progress_of
from fleet_web.live.operator_thread import OperatorThread
from fleet_web.source import LIVE, TOPICS, Reach, Topic
from sojourn.errors import LinkError

if TYPE_CHECKING:
    from collections.abc import Sequence

    from coordinator.console.following import JobProgress
    from coordinator.console.operator import Operator
    from sojourn.protocol.audit import AuditEntry
    from sojourn.protocol.fleet_messages import FleetChange, FleetDevice, VisitNote
    from sojourn.protocol.release import LineView
    from sojourn.protocol.wire import JobView

EVERY = 2.0
"""Seconds between two looks at a coordinator that does not tell what has changed."""
SILENCE = 5.0
"""Seconds without an answer after which a coordinator counts as gone."""


class LiveSource:
    """The coordinator that an operator's connection reaches."""

    name = LIVE

    def __init__(self, operator: Operator) -> None:
        self._thread = OperatorThread(operator, self._look)
        self._marks = dict.fromkeys(TOPICS, 0)
        self._reach = Reach(here=False, why="not asked yet", since=time.time())
        self._jobs: dict[str, JobProgress] = {}

    def start(self) -> None:
        """Connect, and go on trying for ever."""
        self._thread.start()

    def stop(self) -> None:
        """Close the connection."""
        self._thread.stop()

    def reach(self) -> Reach:
        """Whether it can be asked just now."""
        return self._reach

    def mark(self, topic: Topic) -> int:
        """A number that rises with each change."""
        return self._marks[topic]

    def now(self) -> float:
        """What the clock here says."""
        return time.time()

    async def devices(self) -> Sequence[FleetDevice]:
        """Every device that was ever seen."""
        return (await self._thread.ask(lambda operator: operator.devices()))[0]

    async def device(self, name: str) -> FleetDevice:
        """One device with all that it offers."""
        return (await self._thread.ask(lambda operator: operator.devices(name)))[0][0]

    async def visits(self, device: str | None = None, job: str | None = None, last: int = 200) -> Sequence[VisitNote]:
        """The last visits, the newest first."""
        return (await self._thread.ask(lambda operator: operator.visits(device, job, last)))[::-1]

    async def changes(self, device: str | None = None, last: int = 200) -> Sequence[FleetChange]:
        """The last comings and goings, the newest first."""
        return (await self._thread.ask(lambda operator: operator.changes(device, last)))[::-1]

    async def jobs(self) -> Sequence[JobView]:
        """All jobs, the newest first."""
        return (await self._thread.ask(lambda operator: operator.jobs()))[::-1]

    async def job(self, name: str) -> JobProgress:
        """One job with its whole history; only what is new of it is asked for."""
        before = self._jobs.get(name)
        found = await self._thread.ask(lambda operator: progress_of(operator, name, before))
        self._jobs[name] = found
        return found

    async def lines(self) -> Sequence[LineView]:
        """All model lines."""
        return await self._thread.ask(lambda operator: operator.releases())

    async def line(self, name: str) -> LineView:
        """One model line with its devices."""
        return (await self._thread.ask(lambda operator: operator.releases(name)))[0]

    async def acts(self, last: int = 200) -> Sequence[AuditEntry]:
        """The last acts of operators."""
        return (await self._thread.ask(lambda operator: operator.audit()))[: -last - 1 : -1]

    def _look(self, operator: Operator) -> None:
        """Between two questions: whether it is there, and that things may have changed."""
        try:
            operator.jobs(SILENCE)
        except LinkError as error:
            self._reach = Reach(here=False, why=str(error), since=self._reach.since or time.time())
        else:
            self._reach = Reach(here=True)
        for topic in TOPICS:
            self._marks[topic] += 1
        until = time.monotonic() + EVERY
        while not self._thread.waits() and time.monotonic() < until:
            time.sleep(0.05)
