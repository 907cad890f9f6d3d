"""The transition table of a release on a device: the machine makes exactly its transitions."""

from __future__ import annotations

import pytest

from edge_agent.releases.orders import (
    DEVICE_RELEASE,
    REPORTED,
    DeviceReleaseEvent,
    DeviceReleaseState,
    Usage,
    Withdrawn,
)
from sojourn.errors import UnexpectedEvent
from sojourn.node.machine import LocalEvent, PullFailed, WorkDone, WorkFailed
from sojourn.protocol.release import Health
from tests.edge_agent.agent_bench import Bench, visit
from tests.edge_agent.releases.serving_bench import arrive, bench, goods, installed, line, release, serving
from tests.sojourn.node.table_rows import rows_taken

At, On = DeviceReleaseState, DeviceReleaseEvent


@pytest.fixture
def stepped(monkeypatch) -> set[tuple[DeviceReleaseState, DeviceReleaseEvent]]:
    """Return the rows that were used."""
    return rows_taken(monkeypatch, DEVICE_RELEASE)


def state(it: Bench) -> DeviceReleaseState:
    return it.agent._releases._state_of(it.agent.state.lines.get("l"))


def failing(version: int) -> LocalEvent:
    return LocalEvent(Usage("l", version, Health(), "no such operator"))


def failed(it: Bench) -> None:
    it.handle(WorkFailed(it.work, "failed", "bad"))


@pytest.mark.parametrize("at", [at for at in DEVICE_RELEASE.states if at != At.NONE])
def test_every_state_accepts_orders_and_has_a_reported_state(at) -> None:
    assert DEVICE_RELEASE.knows(at, On.ORDERED)
    assert DEVICE_RELEASE.step(at, On.REPEATED) == at
    assert REPORTED[at]


def test_release_follows_the_states_of_its_table() -> None:
    it = bench()
    seen = [state(it)]
    it.ask(release(1, 1))
    seen.append(state(it))
    it.handle(PullFailed(goods(1).graph.digest, "gone"))
    seen.append(state(it))
    it.ask(release(1, 1))
    it.ask(visit())  # the visit uses the processor
    arrive(it, 1)
    seen.append(state(it))
    it.handle(PullFailed(visit().kit.digest, "gone"))
    seen.append(state(it))
    installed(it)
    seen.append(state(it))
    assert seen == [At.NONE, At.FETCHING, At.ORDERED, At.WAITING, At.WORKING, At.SERVING]


def test_restart_resumes_only_unfinished_orders() -> None:
    it = bench()
    it.ask(release(1, 1))
    arrive(it, 1)
    assert state(it) == At.WORKING
    twin = it.reborn()
    assert state(it) == At.ORDERED
    twin.start(0.0)
    assert state(it) == At.FETCHING
    arrive(it, 1)
    installed(it)
    it.reborn()
    assert state(it) == At.SERVING


def test_event_missing_from_the_table_raises_an_error() -> None:
    it = serving(1)
    with pytest.raises(UnexpectedEvent, match="all fetched in state serving, which allows not loaded"):
        it.agent._releases._step("l", line(it), On.ALL_FETCHED)


def test_every_row_is_reached(stepped) -> None:
    it = serving(1)
    it.ask(release(1, 1))  # repeated while served
    it.ask(release(2, 1))  # served already
    it.ask(release(3, 2))
    it.ask(release(3, 2))  # repeated while it is fetched
    it.handle(PullFailed(goods(2).graph.digest, "gone"))
    it.ask(release(3, 2))  # repeated, and fetched again
    it.handle(PullFailed(goods(2).graph.digest, "gone"))
    it.ask(release(4, 2))  # a newer one while idle
    it.ask(release(5, 2))  # a newer one while it is fetched
    arrive(it, 2)
    it.ask(release(5, 2))  # repeated while it is tried
    it.ask(release(6, 2))  # a newer one while it is tried
    arrive(it, 2)
    installed(it)
    it.ask(release(7, 1))  # older than the served version
    it.ask(release(7, 1))
    it.ask(release(8, 3))
    it.handle(PullFailed(goods(3).graph.digest, "disk"))
    installed(it, Health())  # the served release is restored
    it.ask(release(8, 3))
    it.ask(release(9, 3))
    arrive(it, 3)
    failed(it)
    installed(it, Health())
    it.handle(failing(2))  # the older release, still served after the failure, cannot be loaded
    installed(it, Health())
    it.ask(release(9, 3))
    it.ask(release(10, 1))
    installed(it, Health())
    it.ask(release(11, 0, rollback=True))
    it.handle(WorkDone(it.work, Withdrawn()))
    it.ask(release(11, 0, rollback=True))
    it.ask(release(12, 1))  # it was served before, but its files are damaged
    failed(it)
    arrive(it, 1)
    installed(it)
    it.ask(release(13, 2))
    it.ask(visit())  # the visit uses the processor
    arrive(it, 2)
    it.ask(release(13, 2))  # repeated while it waits
    it.ask(release(14, 2))  # a newer one while it waits
    it.handle(PullFailed(visit().kit.digest, "gone"))
    arrive(it, 2)
    installed(it)
    it.ask(release(15, 1))
    it.handle(failing(2))  # while an older one was refused
    other = serving(1)
    other.handle(failing(1))
    assert {row for row in DEVICE_RELEASE.rows if row not in stepped} == set()
