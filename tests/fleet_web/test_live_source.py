"""The coordinator as a source: only changes are requested, and a lost or restored connection is reported."""

from __future__ import annotations

import asyncio
import threading
import time
from typing import Any

import pytest

from fleet_web.sources import live_source
from fleet_web.sources.live_source import ChangeFollower, LiveSource, WatchedDevices
from sojourn.errors import JobError, LinkError
from sojourn.protocol.operator_messages import Changed
from tests.fleet_web.fake_source import device
from tests.waiting import wait_until

BEFORE = time.time()


class FakeOperator:
    """An operator's connection with replies set by the test."""

    def __init__(self) -> None:
        self.mark = 100
        self.error: Exception | None = None
        self.asked: list[Any] = []
        self.found = [device("a"), device("b")]
        self._woken = threading.Event()

    def interrupt(self) -> None:
        self._woken.set()

    def changed(self, since: int, timeout: float) -> Changed:
        self.asked.append(("changed", since))
        if self.error:
            raise self.error
        return Changed("t", self.mark, time.time() + 50.0, "1.0.0", self.mark, self.mark, 1, 1)

    def changed_unless(self, since: int, stop, timeout: float, *, devices: bool = False) -> Changed | None:
        while self.mark == since and not stop() and not self.error:
            self._woken.wait(0.005)
            self._woken.clear()
        return None if stop() else self.changed(since, timeout)

    def devices(self, name=None, since=None):
        if self.error:
            raise self.error
        self.asked.append(("devices", name, since))
        return ([it for it in self.found if name in (None, it.device)], BEFORE)


def fake_operator() -> Any:
    return FakeOperator()


def test_only_changes_are_requested_after_the_first_time() -> None:
    operator, follower, known = fake_operator(), ChangeFollower(), WatchedDevices()
    follower.poll(operator)
    assert [it.device for it in known.newest(operator, follower.newest_mark)] == ["a", "b"]
    operator.mark, operator.found = 101, [device("c"), device("b", visits=99)]
    follower.newest_mark = 101
    newest = known.newest(operator, follower.newest_mark)
    assert [(it.device, it.visits) for it in newest] == [("a", 12), ("b", 99), ("c", 12)]
    assert operator.asked[1:] == [("devices", None, None), ("devices", None, 100)]
    assert follower.now() == pytest.approx(time.time() + 50.0, abs=45.0)  # the coordinator's clock


def test_lost_coordinator_is_reported_and_its_return_is_a_change() -> None:
    operator, follower = fake_operator(), ChangeFollower()
    assert not follower.reach.reachable
    follower.poll(operator)
    assert follower.reach.reachable
    before = follower.mark("jobs")
    operator.error = LinkError("no broker listens\x1b[2J")
    follower._not_before = 0.0
    follower.poll(operator)
    assert (follower.reach.reachable, follower.reach.why) == (False, "no broker listens")
    assert follower.reach.since is not None
    gone = follower.mark("jobs")
    operator.error, follower._not_before = None, 0.0
    follower.poll(operator)
    assert follower.reach.reachable
    assert before < gone < follower.mark("jobs")


def test_polling_is_slow_until_a_page_is_open() -> None:
    operator, follower = fake_operator(), ChangeFollower()
    before = time.monotonic()
    follower.poll(operator)
    assert follower._not_before >= before + live_source.IDLE_PAUSE
    follower.asked()
    assert follower._not_before <= time.monotonic()
    operator.mark += 1
    follower.poll(operator)
    assert follower._not_before <= time.monotonic() + live_source.MIN_PAUSE


def test_a_refusal_is_reported() -> None:
    operator, follower = fake_operator(), ChangeFollower()
    operator.error = JobError("this coordinator accepts only signed requests")
    follower.poll(operator)
    assert follower.reach.why == "this coordinator accepts only signed requests"


def test_tabs_with_the_same_query_share_an_answer(monkeypatch) -> None:
    monkeypatch.setattr(live_source, "MIN_PAUSE", 0.0)
    monkeypatch.setattr(live_source, "IDLE_PAUSE", 0.0)
    operator = fake_operator()
    source = LiveSource(operator)

    async def asked() -> None:
        source.start()
        await asyncio.to_thread(wait_until, lambda: source.reach().reachable, "the coordinator's first reply")
        found = await asyncio.gather(*(source.devices() for _ in range(5)))
        assert all(each is found[0] for each in found)
        mark = source.mark("fleet")
        operator.mark += 1
        await asyncio.to_thread(wait_until, lambda: source.mark("fleet") != mark, "another mark")
        await source.devices()
        operator.error = JobError("no device 'x' has ever connected")
        with pytest.raises(JobError, match="has ever connected"):
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
