"""A coordinator that runs, as the pages ask it. Nothing is kept but what was answered last."""

from __future__ import annotations

import asyncio
from typing import TYPE_CHECKING, Any, TypeVar

from coordinator.console.following import progress_of
from fleet_web.live.change_follower import ChangeFollower
from fleet_web.live.operator_thread import OperatorThread
from fleet_web.source import LIVE
from sojourn.errors import JobError
from sojourn.text import cleaned

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence

    from coordinator.console.following import JobProgress
    from coordinator.console.operator import Operator
    from fleet_web.source import Reach, Topic
    from sojourn.protocol.audit import AuditEntry
    from sojourn.protocol.fleet_messages import FleetChange, FleetDevice, VisitNote
    from sojourn.protocol.release import Card, LineView, Parcel
    from sojourn.protocol.wire import JobView

_T = TypeVar("_T")
KEPT = 64
"""Answers that are kept for the next page that asks the same."""


class LiveSource:
    """The coordinator that an operator's connection reaches. All pages share one connection and its answers."""

    name = LIVE

    def __init__(self, operator: Operator) -> None:
        self._follower = ChangeFollower()
        self._thread = OperatorThread(operator, self._follower.look)
        self._follower.waits = self._thread.waits
        self._devices = self._follower.devices
        self._jobs: dict[str, JobProgress] = {}
        self._acts: list[AuditEntry] = []
        self._answers: dict[tuple[object, ...], tuple[int, asyncio.Future[Any]]] = {}

    def start(self) -> None:
        """Connect, and go on trying for ever."""
        self._thread.start()

    def stop(self) -> None:
        """Close the connection."""
        self._thread.stop()

    def reach(self) -> Reach:
        """Whether it can be asked just now."""
        return self._follower.reach

    def mark(self, topic: Topic) -> int:
        """A number that rises with each change, and when the coordinator is gone or back."""
        return self._follower.mark(topic)

    def now(self) -> float:
        """What the coordinator's clock says."""
        return self._follower.now()

    async def act(self, what: Callable[[Operator], object]) -> None:
        """Have something done; pages do so only through `fleet_web.operate`."""
        await self._thread.ask(what)

    async def devices(self) -> Sequence[FleetDevice]:
        """Every device that was ever seen; only what has changed is asked for."""
        return await self._once("fleet", ("devices",), lambda it: self._devices.newest(it, self._follower.told))

    async def device(self, name: str) -> FleetDevice:
        """One device with all that it offers."""
        return await self._once("fleet", ("device", name), lambda it: it.devices(name)[0][0])

    async def visits(self, device: str | None = None, job: str | None = None, last: int = 200) -> Sequence[VisitNote]:
        """The last visits, the newest first."""
        return await self._once("fleet", ("visits", device, job, last), lambda it: it.visits(device, job, last)[::-1])

    async def changes(self, device: str | None = None, last: int = 200) -> Sequence[FleetChange]:
        """The last comings and goings, the newest first."""
        return await self._once("fleet", ("changes", device, last), lambda it: it.changes(device, last)[::-1])

    async def jobs(self) -> Sequence[JobView]:
        """All jobs, the newest first."""
        return await self._once("jobs", ("jobs",), lambda it: it.jobs()[::-1])

    async def job(self, name: str) -> JobProgress:
        """One job with its whole history; only what is new of it is asked for."""
        return await self._once("jobs", ("job", name), lambda it: self._progress(it, name))

    async def lines(self) -> Sequence[LineView]:
        """All model lines."""
        return await self._once("releases", ("lines",), lambda it: it.releases())

    async def line(self, name: str) -> LineView:
        """One model line with its devices."""
        return await self._once("releases", ("line", name), lambda it: _line(it, name))

    async def card(self, line: str, version: int) -> tuple[Card, Parcel]:
        """The card of a release, and which graph it is about."""
        return await self._once("releases", ("card", line, version), lambda it: it.card(line, version))

    async def acts(self, last: int = 200) -> Sequence[AuditEntry]:
        """The last acts of operators, the newest first."""
        return await self._once("audit", ("acts", last), lambda it: self._newest_acts(it, last))

    async def _once(self, topic: Topic, key: tuple[object, ...], question: Callable[[Operator], _T]) -> _T:
        """What was answered to the same question since the topic last changed, or is answered now."""
        self._follower.asked()
        mark, known = self.mark(topic), self._answers.get(key)
        if known is None or known[0] != mark or known[1].cancelled():
            known = mark, asyncio.ensure_future(self._thread.ask(question))
            self._answers.pop(key, None)
            self._answers[key] = known
            for old in list(self._answers)[:-KEPT]:
                del self._answers[old]
        try:
            return await asyncio.shield(known[1])
        except Exception:
            if self._answers.get(key) is known:  # the next one asks again
                del self._answers[key]
            raise

    # --- on the operator's thread

    def _progress(self, operator: Operator, name: str) -> JobProgress:
        before = self._jobs.get(name)
        found = progress_of(operator, name, before)
        if before and found.view.round < len(found.history):  # another job of that name
            found = progress_of(operator, name)
        self._jobs.pop(name, None)
        self._jobs[name] = found
        for old in list(self._jobs)[:-KEPT]:
            del self._jobs[old]
        return found

    def _newest_acts(self, operator: Operator, last: int) -> list[AuditEntry]:
        self._acts += operator.audit(self._acts[-1].number if self._acts else 0)
        return [cleaned(entry) for entry in self._acts[: -last - 1 : -1]]


def _line(operator: Operator, name: str) -> LineView:
    found = operator.whole_line(name)
    if found is None:
        raise JobError(f"there is no model line {name!r}")
    return found
