"""A running coordinator as a data source: a connection on its own thread, what has changed, and cached replies."""

from __future__ import annotations

import asyncio
import logging
import queue
import threading
import time
from collections.abc import Callable, Iterable, Sequence
from typing import TYPE_CHECKING, Any, NamedTuple, TypeVar

from coordinator.console.job_progress import JobProgress, progress_of
from fleet_web.sources.source import LIVE, TOPICS, Reach, Topic
from sojourn.errors import JobError, LinkError, SojournError
from sojourn.protocol.operator_messages import FleetChange, FleetDevice, VisitNote
from sojourn.protocol.operators import AuditEntry
from sojourn.protocol.release import BlobRef, Card, LineView
from sojourn.protocol.wire import JobView
from sojourn.text import clean, cleaned

if TYPE_CHECKING:
    from coordinator.console.operator import Operator


_T = TypeVar("_T")
log = logging.getLogger(__name__)


class _Asked(NamedTuple):
    question: Callable[[Operator], Any]
    answer: asyncio.Future[Any]
    loop: asyncio.AbstractEventLoop


class OperatorThread:
    """Runs requests, and calls `idle` between them; `idle` returns soon, or when `waits` reports a waiting request."""

    def __init__(self, operator: Operator, idle: Callable[[Operator], None]) -> None:
        self._operator = operator
        self._idle = idle
        self._asked: queue.SimpleQueue[_Asked] = queue.SimpleQueue()
        self._over = threading.Event()
        self._thread = threading.Thread(target=self._run, name="operator", daemon=True)

    def start(self) -> None:
        """Start the thread."""
        self._thread.start()

    def stop(self) -> None:
        """Stop after the current request."""
        self._over.set()
        self._operator.interrupt()
        self._thread.join(timeout=1.0)

    def waits(self) -> bool:
        """Return whether a request or a stop is waiting."""
        return self._over.is_set() or not self._asked.empty()

    async def ask(self, question: Callable[[Operator], _T]) -> _T:
        """Return the reply of the operator's connection, or raise its error."""
        loop = asyncio.get_running_loop()
        asked = _Asked(question, loop.create_future(), loop)
        self._asked.put(asked)
        self._operator.interrupt()
        found: _T = await asked.answer
        return found

    def _run(self) -> None:
        while not self._over.is_set():
            while not self._asked.empty() and not self._over.is_set():
                _answer(self._asked.get(), self._operator)
            if not self._over.is_set():
                self._idle(self._operator)


def _answer(asked: _Asked, operator: Operator) -> None:
    if asked.answer.cancelled():
        return
    try:
        found, error = asked.question(operator), None
    except Exception as caught:  # noqa: BLE001  # raised again in the caller's thread
        found, error = None, caught

    def settle() -> None:
        if asked.answer.done():
            return
        if error is None:
            asked.answer.set_result(found)
        else:
            asked.answer.set_exception(error)

    asked.loop.call_soon_threadsafe(settle)


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
        """Whether a page currently shows devices."""
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


class ChangeFollower:
    """Change marks by topic, as last reported by the coordinator. `poll` runs on the operator's thread."""

    def __init__(self) -> None:
        self.reach = Reach(reachable=False, why="no reply yet", since=time.time())
        self.waits: Callable[[], bool] = lambda: False
        """Returns whether a request is waiting, so that `poll` should return."""
        self.devices = WatchedDevices()
        self.newest_mark: int | None = None
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
        if self.newest_mark is None:
            found = operator.changed(0, FIRST_REPLY_TIMEOUT)
        else:
            answer = operator.changed_unless(self.newest_mark, self.waits, SILENCE_TIMEOUT, devices=self.devices.wanted)
            if answer is None:
                return
            found = answer
            if found.devices is not None:
                self.devices.take(found.devices, self.newest_mark, found.mark)
        self._marks = {"fleet": found.fleet, "jobs": found.jobs, "releases": found.releases, "audit": found.audit}
        if found.mark != self.newest_mark:
            now = time.monotonic()
            self._not_before = now + (MIN_PAUSE if now < self._asked_at + PAGE_OPEN_SECONDS else IDLE_PAUSE)
        self.newest_mark, self._clock_offset = found.mark, found.now - time.time()
        self._on_reachable()

    def _on_reachable(self) -> None:
        if not self.reach.reachable:
            log.info("coordinator is reachable")
            self._reach_changes += 1
        self.reach = Reach(reachable=True)

    def _on_unreachable(self, error: SojournError) -> None:
        self._not_before = time.monotonic() + RETRY_PAUSE
        why = clean(str(error), 400)
        if self.reach.reachable or self.reach.why != why:
            log.warning("coordinator is unreachable: %s", why)
        since = self.reach.since if not self.reach.reachable else time.time()
        self._reach_changes += self.reach.reachable
        self.reach = Reach(reachable=False, why=why, since=since or time.time())
        if isinstance(error, LinkError):  # a new coordinator may have been started
            self.newest_mark = None


KEPT = 64
"""Maximum number of cached replies."""


class LiveSource:
    """The coordinator behind an operator's connection. All pages share one connection and one cache."""

    name = LIVE

    def __init__(self, operator: Operator) -> None:
        self._follower = ChangeFollower()
        self._thread = OperatorThread(operator, self._follower.poll)
        self._follower.waits = self._thread.waits
        self._devices = self._follower.devices
        self._jobs: dict[str, JobProgress] = {}
        self._acts: list[AuditEntry] = []
        self._answers: dict[tuple[object, ...], tuple[int, asyncio.Future[Any]]] = {}

    def start(self) -> None:
        """Connect, and retry until stopped."""
        self._thread.start()

    def stop(self) -> None:
        """Close the connection."""
        self._thread.stop()

    def reach(self) -> Reach:
        """Return whether the coordinator is currently reachable."""
        return self._follower.reach

    def mark(self, topic: Topic) -> int:
        """Return a number that increases with each change, also of the coordinator's reachability."""
        return self._follower.mark(topic)

    def now(self) -> float:
        """Return the time of the coordinator's clock."""
        return self._follower.now()

    async def act(self, what: Callable[[Operator], object]) -> None:
        """Run an action; pages use it only through `fleet_web.operator_actions`."""
        await self._thread.ask(what)

    async def devices(self) -> Sequence[FleetDevice]:
        """Return every known device; only changes are requested."""
        return await self._once("fleet", ("devices",), lambda it: self._devices.newest(it, self._follower.newest_mark))

    async def device(self, name: str) -> FleetDevice:
        """Return one device with its full offer."""
        return await self._once("fleet", ("device", name), lambda it: it.devices(name)[0][0])

    async def visits(self, device: str | None = None, job: str | None = None, last: int = 200) -> Sequence[VisitNote]:
        """Return the last visits, newest first."""
        return await self._once("fleet", ("visits", device, job, last), lambda it: it.visits(device, job, last)[::-1])

    async def changes(self, device: str | None = None, last: int = 200) -> Sequence[FleetChange]:
        """Return the last connection events, newest first."""
        return await self._once("fleet", ("changes", device, last), lambda it: it.changes(device, last)[::-1])

    async def jobs(self) -> Sequence[JobView]:
        """Return all jobs, newest first."""
        return await self._once("jobs", ("jobs",), lambda it: it.jobs()[::-1])

    async def job(self, name: str) -> JobProgress:
        """Return one job with its whole history; only new rounds are requested."""
        return await self._once("jobs", ("job", name), lambda it: self._progress(it, name))

    async def lines(self) -> Sequence[LineView]:
        """Return all model lines."""
        return await self._once("releases", ("lines",), lambda it: it.releases())

    async def line(self, name: str) -> LineView:
        """Return one model line with its devices."""
        return await self._once("releases", ("line", name), lambda it: _line(it, name))

    async def card(self, line: str, version: int) -> tuple[Card, BlobRef]:
        """Return the card of a release, and the graph it describes."""
        return await self._once("releases", ("card", line, version), lambda it: it.card(line, version))

    async def acts(self, last: int = 200) -> Sequence[AuditEntry]:
        """Return the last operator actions, newest first."""
        return await self._once("audit", ("acts", last), lambda it: self._newest_acts(it, last))

    async def _once(self, topic: Topic, key: tuple[object, ...], question: Callable[[Operator], _T]) -> _T:
        """Return the cached reply if the topic is unchanged, or send the request."""
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
            if self._answers.get(key) is known:  # the next caller retries
                del self._answers[key]
            raise

    # --- on the operator's thread

    def _progress(self, operator: Operator, name: str) -> JobProgress:
        before = self._jobs.get(name)
        found = progress_of(operator, name, before)
        if before and found.view.round < len(found.history):  # another job with the same name
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
