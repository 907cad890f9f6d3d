"""What is told of a rollout besides where it is: its rules, when it turned, its card, its devices page by page."""

from __future__ import annotations

from coordinator.console.rollout_tables import plan_lines
from sojourn.protocol.messages import Refused
from sojourn.protocol.release_messages import CardTold, InspectReleases, ReadCard, Releases, Steer
from tests.coordinator.machine.cloud_bench import OPERATOR
from tests.coordinator.machine.rollout_bench import RULES, goods, refs
from tests.coordinator.machine.test_rollouts import TEN, bench
from tests.sojourn.store.replays import sends


def lines(it, name: str | None = "l", **how):
    (answer,) = sends(it.hear(OPERATOR, InspectReleases("i", name, **how)))
    assert isinstance(answer, Releases)
    return answer.lines


def test_its_rules_and_when_it_turned() -> None:
    it = bench()
    it.begin()
    (view,) = lines(it)
    assert (view.plan.rules, view.plan.undo, view.plan.turns) == (RULES, True, ())
    it.hear(OPERATOR, Steer("p", "l", "pause"), now=50.0)
    it.hear(OPERATOR, Steer("r", "l", "resume"), now=60.0)
    it.hear(OPERATOR, Steer("b", "l", "rollback"), now=70.0)
    turns = lines(it)[0].plan.turns
    assert [(turn.at, turn.status, turn.version) for turn in turns][:3] == [
        (50.0, "paused", 1),
        (60.0, "running", 1),
        (70.0, "rolling-back", 1),
    ]
    assert [turn.status for turn in lines(it, None)[0].plan.turns] == [turn.status for turn in turns[-2:]]
    assert plan_lines(lines(it)[0])[0].startswith("turns back when 1 devices complain: more than 2 times as slow")
    assert it.replayed().state.lines["l"].turned == it.cloud.state.lines["l"].turned


def test_its_card_can_be_read_while_it_is_here() -> None:
    it = bench()
    it.begin()
    (told,) = sends(it.hear(OPERATOR, ReadCard("c", "l", 1)))
    wanted = goods(1)
    assert wanted is not None
    assert told == CardTold("c", refs(1)[1], wanted.graph)
    for line, version in (("l", 2), ("other", 1), ("l", 0)):
        (refused,) = sends(it.hear(OPERATOR, ReadCard("c", line, version)))
        assert isinstance(refused, Refused)
        assert refused.reason == f"the release {line} {version} is not here any more"


def test_its_devices_come_page_by_page() -> None:
    it = bench()
    it.begin(stages=(1.0,))
    every = [each.device for each in lines(it)[0].devices]
    assert sorted(every) == sorted(TEN)
    assert [each.device for each in lines(it, since=4)[0].devices] == every[4:]
    assert lines(it, since=100)[0].devices == ()
