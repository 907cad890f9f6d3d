"""The source over a coordinator: what has changed is asked for, and only that; who is away, old or back is told."""

from __future__ import annotations

import asyncio
import threading
import time
from typing import Any

import pytest

from fleet_web.live import change_follower
from fleet_web.live.change_follower import ChangeFollower
from fleet_web.live.known_devices import WatchedDevices
from fleet_web.live.live_source import LiveSource
from sojourn.errors import JobError, LinkError, UserError
from sojourn.protocol.fleet_messages import Changed
from tests.fleet_web.told_source import device
from tests.waiting import wait_until

BEFORE = time.time()


class ToldOperator:
    """An operator's connection on which a test decides what comes back."""

    def __init__(self) -> None:
        self.mark = 100
        self.error: Exception | None = None
        self.asked: list[Any] = []
        self.found = [device("a"), device("b")]
        self._woken = threading.Event()

    def interrupt(self) -> None:
        self._woken.set()

    def changed(self, since: int, patience: float) -> Changed:
        self.asked.append(("changed", since))
        if self.error:
            raise self.error
        return Changed("t", self.mark, time.time() + 50.0, "0.9.0", self.mark, self.mark, 1, 1)

    def changed_unless(self, since: int, stop, patience: float, *, devices: bool = False) -> Changed | None:
        while self.mark == since and not stop() and not self.error:
            self._woken.wait(0.005)
            self._woken.clear()
        return None if stop() else self.changed(since, patience)

    def jobs(self, patience: float = 10.0):
        if isinstance(self.error, LinkError):
            raise self.error
        self.asked.append("jobs")
        return ()

    def devices(self, name=None, since=None):
        if self.error:
            raise self.error
        self.asked.append(("devices", name, since))
        return ([it for it in self.found if name in (None, it.device)], BEFORE)


def told_operator() -> Any:
    return ToldOperator()


def test_only_what_changed_is_asked_for_and_the_first_time_all() -> None:
    operator, follower, known = told_operator(), ChangeFollower(), WatchedDevices()
    follower.look(operator)
    assert [it.device for it in known.newest(operator, follower.told)] == ["a", "b"]
    operator.mark, operator.found = 101, [device("c"), device("b", visits=99)]
    follower.told = 101
    newest = known.newest(operator, follower.told)
    assert [(it.device, it.visits) for it in newest] == [("a", 12), ("b", 99), ("c", 12)]
    assert operator.asked[1:] == [("devices", None, None), ("devices", None, 100)]
    assert follower.now() == pytest.approx(time.time() + 50.0, abs=45.0)  # by the coordinator's clock


def test_who_is_gone_is_told_with_the_reason_and_who_is_back_changes_every_mark() -> None:
    operator, follower = told_operator(), ChangeFollower()
    assert not follower.reach.here
    follower.look(operator)
    assert follower.reach.here
    before = follower.mark("jobs")
    operator.error = LinkError("no broker listens\x1b[2J")
    follower._not_before = 0.0
    follower.look(operator)
    assert (follower.reach.here, follower.reach.why) == (False, "no broker listens")
    assert follower.reach.since is not None
    gone = follower.mark("jobs")
    operator.error, follower._not_before = None, 0.0
    follower.look(operator)
    assert follower.reach.here
    assert before < gone < follower.mark("jobs")


def test_an_older_coordinator_is_looked_at_now_and_then_and_the_page_says_so(monkeypatch) -> None:
    operator, follower = told_operator(), ChangeFollower()
    operator.error = UserError("coordinator 'cloud' is of a version before 0.9.0")
    follower.look(operator)
    follower._not_before = 0.0
    follower.look(operator)
    assert follower.reach.here
    assert "every 3 seconds" in follower.reach.slow
    assert follower.told is None  # so that all devices are asked for each time
    before = follower.mark("fleet")
    follower._not_before = 0.0
    follower.look(operator)
    assert follower.mark("fleet") > before


def test_while_no_page_is_open_little_is_asked_and_the_first_question_changes_that() -> None:
    operator, follower = told_operator(), ChangeFollower()
    before = time.monotonic()
    follower.look(operator)
    assert follower._not_before >= before + change_follower.IDLE_PACE
    follower.asked()
    assert follower._not_before <= time.monotonic()
    operator.mark += 1
    follower.look(operator)
    assert follower._not_before <= time.monotonic() + change_follower.PACE


def test_a_refusal_is_no_old_version() -> None:
    operator, follower = told_operator(), ChangeFollower()
    operator.error = JobError("this coordinator takes only what an operator signed")
    follower.look(operator)
    assert follower.reach.why == "this coordinator takes only what an operator signed"
    assert not follower._old


def test_tabs_that_ask_the_same_share_an_answer_until_something_changes(monkeypatch) -> None:
    monkeypatch.setattr(change_follower, "PACE", 0.0)
    monkeypatch.setattr(change_follower, "IDLE_PACE", 0.0)
    operator = told_operator()
    source = LiveSource(operator)

    async def asked() -> None:
        source.start()
        await asyncio.to_thread(wait_until, lambda: source.reach().here, "the coordinator's first answer")
        found = await asyncio.gather(*(source.devices() for _ in range(5)))
        assert all(each is found[0] for each in found)
        mark = source.mark("fleet")
        operator.mark += 1
        await asyncio.to_thread(wait_until, lambda: source.mark("fleet") != mark, "another mark")
        await source.devices()
        operator.error = JobError("no device 'x' was ever seen here")
        with pytest.raises(JobError, match="was ever seen"):
            await source.device("x")
        operator.error = None
        assert (await source.device("a")).device == "a"

    try:
        asyncio.run(asked())
    finally:
        source.stop()
    assert [each for each in operator.asked if each[0] == "devices"][:2] == [
        ("devices", None, None),
        ("devices", None, 100),
    ]
