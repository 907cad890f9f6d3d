"""The details of a rollout: its rules, its status changes, its card, and its devices page by page."""

from __future__ import annotations

from coordinator.console.release_tables import plan_lines
from sojourn.protocol.operator_messages import Refused
from sojourn.protocol.release_messages import CardDetails, InspectReleases, ReadCard, Releases, Steer
from tests.coordinator.machine.cloud_bench import OPERATOR
from tests.coordinator.machine.rollout_bench import RULES, goods, refs
from tests.coordinator.machine.test_rollouts import TEN, bench
from tests.sojourn.store.replays import sends


def lines(it, name: str | None = "l", **how):
    (answer,) = sends(it.receive(OPERATOR, InspectReleases("i", name, **how)))
    assert isinstance(answer, Releases)
    return answer.lines


def test_view_contains_rules_and_time_of_each_turn() -> None:
    it = bench()
    it.begin()
    (view,) = lines(it)
    assert (view.plan.rules, view.plan.undo, view.plan.turns) == (RULES, True, ())
    it.receive(OPERATOR, Steer("p", "l", "pause"), now=50.0)
    it.receive(OPERATOR, Steer("r", "l", "resume"), now=60.0)
    it.receive(OPERATOR, Steer("b", "l", "rollback"), now=70.0)
    turns = lines(it)[0].plan.turns
    assert [(turn.at, turn.status, turn.version) for turn in turns][:3] == [
        (50.0, "paused", 1),
        (60.0, "running", 1),
        (70.0, "rolling-back", 1),
    ]
    assert [turn.status for turn in lines(it, None)[0].plan.turns] == [turn.status for turn in turns[-2:]]
    assert plan_lines(lines(it)[0])[0].startswith("rolls back when 1 devices complain: more than 2 times as slow")
    assert it.replayed().state.lines["l"].turned == it.cloud.state.lines["l"].turned


def test_card_can_be_read_while_available() -> None:
    it = bench()
    it.begin()
    (details,) = sends(it.receive(OPERATOR, ReadCard("c", "l", 1)))
    wanted = goods(1)
    assert wanted is not None
    assert details == CardDetails("c", refs(1)[1], wanted.graph)
    for line, version in (("l", 2), ("other", 1), ("l", 0)):
        (refused,) = sends(it.receive(OPERATOR, ReadCard("c", line, version)))
        assert isinstance(refused, Refused)
        assert refused.reason == f"the release {line} {version} is no longer available here"


def test_devices_are_listed_page_by_page() -> None:
    it = bench()
    it.begin(stages=(1.0,))
    every = [each.device for each in lines(it)[0].devices]
    assert sorted(every) == sorted(TEN)
    assert [each.device for each in lines(it, since=4)[0].devices] == every[4:]
    assert lines(it, since=100)[0].devices == ()
