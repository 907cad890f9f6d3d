"""The table of a release on a device: the machine does what it says, and never something that it does not."""

from __future__ import annotations

import pytest

from edge_agent.releases.table import DEVICE_RELEASE, REPORTED, DeviceReleaseEvent, DeviceReleaseState
from edge_agent.releases.work import Usage, Withdrawn
from sojourn.errors import UnexpectedEvent
from sojourn.node.machine import Did, DidNot, PullFailed, Told
from sojourn.protocol.release import Health
from tests.edge_agent.agent_bench import Bench, visit
from tests.edge_agent.releases.serving_bench import arrive, bench, goods, installed, line, release, serving
from tests.sojourn.node.table_rows import rows_taken

At, On = DeviceReleaseState, DeviceReleaseEvent


@pytest.fixture
def stepped(monkeypatch) -> set[tuple[str, str]]:
    """The rows that were used."""
    return rows_taken(monkeypatch, DEVICE_RELEASE)


def state(it: Bench) -> DeviceReleaseState:
    return it.agent._releases._state_of(it.agent.state.lines.get("l"))


def failing(version: int) -> Told:
    return Told(Usage("l", version, Health(), "no such operator"))


def failed(it: Bench) -> None:
    it.tell(DidNot(it.work, "failed", "bad"))


@pytest.mark.parametrize("at", [at for at in DEVICE_RELEASE.states if at != At.NONE])
def test_an_order_may_come_at_any_time_and_every_state_has_a_word_for_the_coordinator(at) -> None:
    assert DEVICE_RELEASE.knows(at, On.ORDERED)
    assert DEVICE_RELEASE.step(at, On.REPEATED) == at
    assert REPORTED[at]


def test_a_release_goes_through_the_states_of_its_table() -> None:
    it = bench()
    seen = [state(it)]
    it.ask(release(1, 1))
    seen.append(state(it))
    it.tell(PullFailed(goods(1).graph.digest, "gone"))
    seen.append(state(it))
    it.ask(release(1, 1))
    it.ask(visit())  # it has the processor
    arrive(it, 1)
    seen.append(state(it))
    it.tell(PullFailed(visit().kit.digest, "gone"))
    seen.append(state(it))
    installed(it)
    seen.append(state(it))
    assert seen == [At.NONE, At.FETCHING, At.ORDERED, At.WAITING, At.WORKING, At.SERVING]


def test_after_a_restart_an_order_that_did_not_end_is_taken_up_and_one_that_did_is_where_it_was() -> None:
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


def test_a_step_that_the_table_does_not_have_is_our_mistake() -> None:
    it = serving(1)
    with pytest.raises(UnexpectedEvent, match="release on a device: all fetched while serving, which knows not loaded"):
        it.agent._releases._step("l", line(it), On.ALL_FETCHED)


def test_every_row_happens(stepped) -> None:
    it = serving(1)
    it.ask(release(1, 1))  # repeated when it is served
    it.ask(release(2, 1))  # served already
    it.ask(release(3, 2))
    it.ask(release(3, 2))  # repeated while it is fetched
    it.tell(PullFailed(goods(2).graph.digest, "gone"))
    it.ask(release(3, 2))  # repeated, and fetched again
    it.tell(PullFailed(goods(2).graph.digest, "gone"))
    it.ask(release(4, 2))  # a newer one while nothing is under way
    it.ask(release(5, 2))  # a newer one while it is fetched
    arrive(it, 2)
    it.ask(release(5, 2))  # repeated while it is tried
    it.ask(release(6, 2))  # a newer one while it is tried
    arrive(it, 2)
    installed(it)
    it.ask(release(7, 1))  # older than what is served
    it.ask(release(7, 1))
    it.ask(release(8, 3))
    it.tell(PullFailed(goods(3).graph.digest, "disk"))
    installed(it, Health())  # what is served is made sure of
    it.ask(release(8, 3))
    it.ask(release(9, 3))
    arrive(it, 3)
    failed(it)
    installed(it, Health())
    it.tell(failing(2))  # what stayed, because the newer one failed, cannot be loaded either
    installed(it, Health())
    it.ask(release(9, 3))
    it.ask(release(10, 1))
    installed(it, Health())
    it.ask(release(11, 0, rollback=True))
    it.tell(Did(it.work, Withdrawn()))
    it.ask(release(11, 0, rollback=True))
    it.ask(release(12, 1))  # it was served before, but its files are damaged
    failed(it)
    arrive(it, 1)
    installed(it)
    it.ask(release(13, 2))
    it.ask(visit())  # it has the processor
    arrive(it, 2)
    it.ask(release(13, 2))  # repeated while it waits
    it.ask(release(14, 2))  # a newer one while it waits
    it.tell(PullFailed(visit().kit.digest, "gone"))
    arrive(it, 2)
    installed(it)
    it.ask(release(15, 1))
    it.tell(failing(2))  # while an older one was refused
    other = serving(1)
    other.tell(failing(1))
    assert {row for row in DEVICE_RELEASE.rows if row not in stepped} == set()
