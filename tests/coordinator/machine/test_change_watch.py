"""Who watches is told at once when something changes, and of the devices only those that did."""

from __future__ import annotations

from typing import Any

import msgspec

from coordinator.machine.change_watch import HOLD, WATCHERS
from coordinator.machine.coordinator import Coordinator
from sojourn.node.machine import Send, Woke
from sojourn.protocol.fleet_messages import AwaitChange, Changed, InspectFleet, VisitNow
from sojourn.protocol.messages import TourProgress
from sojourn.protocol.topics import Address
from tests.coordinator.machine.cloud_bench import OPERATOR
from tests.coordinator.machine.fleet_bench import WALL, FleetBench


def told(effects: list[Any]) -> list[Changed]:
    return [it.message for it in effects if isinstance(it, Send) and isinstance(it.message, Changed)]


def ask(bench: FleetBench, since: int = 0, now: float = 1.0, ticket: str = "t") -> Any:
    found = told(bench.hear(OPERATOR, AwaitChange(ticket, since), now=now))
    return found[0] if found else None


def devices(bench: FleetBench, since: int, form: int = 2) -> list[Any]:
    question = InspectFleet("t", "devices", form=form, since=since)
    answer: Any = bench.cloud._fleet_requests.inspect(bench.cloud.state, question, 3.0)
    return list(answer.devices)


def test_the_first_question_is_answered_at_once_and_the_next_when_a_device_comes() -> None:
    bench = FleetBench()
    first = ask(bench)
    assert first.mark >= 1000 * WALL
    assert ask(bench, first.mark) is None
    effects = bench.join("s1", ("a",))
    (answer,) = told(effects)
    assert (answer.ticket, answer.fleet > first.fleet, answer.releases) == ("t", True, first.releases)
    assert [it.device for it in devices(bench, first.mark)] == ["a"]
    assert devices(bench, answer.mark) == []


def test_who_wants_the_devices_is_told_those_that_changed_with_the_news() -> None:
    bench = FleetBench()
    mark = ask(bench).mark
    bench.hear(OPERATOR, AwaitChange("t", mark, True), now=1.0)
    (answer,) = told(bench.join("s1", ("a", "b")))
    assert [it.device for it in answer.devices or ()] == ["a", "b"]
    bench.hear(OPERATOR, AwaitChange("t", answer.mark, True), now=2.0)
    (later,) = told(bench.cloud.handle(Woke(), 2.0 + HOLD))
    assert later.devices == ()
    assert told(bench.hear(OPERATOR, AwaitChange("u", answer.mark - 9_000, True)))[0].devices is msgspec.UNSET
    many = tuple(f"device-{number:04}-{'d' * 40}" for number in range(900))
    bench.hear(OPERATOR, AwaitChange("t", later.mark, True), now=8.0)
    (large,) = told(bench.join("s2", many, now=9.0))
    assert large.devices is msgspec.UNSET


def test_where_nothing_happens_the_answer_comes_after_a_while_all_the_same() -> None:
    bench = FleetBench()
    mark = ask(bench).mark
    ask(bench, mark, now=2.0)
    assert bench.cloud._changes.wake_at() == 2.0 + HOLD
    assert told(bench.cloud.handle(Woke(), 2.0 + HOLD - 0.1)) == []
    (answer,) = told(bench.cloud.handle(Woke(), 2.0 + HOLD))
    assert answer.mark == mark
    assert bench.cloud._changes.wake_at() is None


def test_a_visit_under_way_is_told_with_the_device_and_forgotten_when_the_model_has_gone_on() -> None:
    bench = FleetBench()
    bench.running()
    mark = ask(bench, now=50.0).mark
    (job,) = bench.cloud.state.jobs.values()
    tour = job.tours[0]
    device, site = tour.hops[0], Address("edge", tour.site)
    progress = TourProgress(job.tour_id(tour), 0, 1, device, 3, 9, 0, 0)
    bench.hear(site, progress, 51.0)
    (found,) = devices(bench, mark)
    assert found.doing.visit == VisitNow(job.name, 1, tour.number, 0, 3, 9)
    assert found.device == device
    (older,) = devices(bench, mark, form=1)
    assert older.doing is msgspec.UNSET
    later = ask(bench, mark, now=52.0).mark
    gone = msgspec.structs.replace(progress, device=None)
    bench.hear(site, gone, 53.0)
    (found,) = devices(bench, later)
    assert found.doing.visit is None


def test_after_a_restart_all_marks_are_newer_and_all_devices_are_told() -> None:
    bench = FleetBench()
    bench.join("s1", ("a", "b"))
    old = ask(bench).mark
    again = Coordinator("cloud", wall=WALL + 60.0)
    again.restore(bench.cloud.snapshot())
    again.start(0.0)
    (answer,) = told(again._changes.wait(OPERATOR, AwaitChange("t", old), 1.0))
    assert answer.mark > old
    question = InspectFleet("t", "devices", since=old)
    found: Any = again._fleet_requests.inspect(again.state, question, 1.0)
    assert [it.device for it in found.devices] == ["a", "b"]


def test_no_more_wait_than_there_is_room_for() -> None:
    bench = FleetBench()
    mark = ask(bench).mark
    for number in range(WATCHERS):
        assert ask(bench, mark, ticket=f"t{number}") is None
    assert ask(bench, mark, ticket="more").ticket == "t0"
    assert len(told(bench.join("s1", ("a",)))) == WATCHERS
