"""A watcher is notified at once when something changes, and gets only the devices that did."""

from __future__ import annotations

from typing import Any

import msgspec

from coordinator.machine.change_watch import MAX_WAIT, MAX_WATCHERS
from coordinator.machine.coordinator import Coordinator
from sojourn.node.machine import Send, TimerFired
from sojourn.protocol.messages import TourProgress
from sojourn.protocol.operator_messages import AwaitChange, Changed, InspectFleet, VisitNow
from sojourn.protocol.topics import Address
from tests.coordinator.machine.cloud_bench import OPERATOR
from tests.coordinator.machine.fleet_bench import WALL, FleetBench


def changes_in(effects: list[Any]) -> list[Changed]:
    return [it.message for it in effects if isinstance(it, Send) and isinstance(it.message, Changed)]


def ask(bench: FleetBench, since: int = 0, now: float = 1.0, ticket: str = "t") -> Any:
    found = changes_in(bench.receive(OPERATOR, AwaitChange(ticket, since), now=now))
    return found[0] if found else None


def devices(bench: FleetBench, since: int) -> list[Any]:
    question = InspectFleet("t", "devices", since=since)
    answer: Any = bench.cloud._fleet_requests.page(question, 3.0)
    return list(answer.devices)


def test_first_request_returns_at_once_and_next_on_device_join() -> None:
    bench = FleetBench()
    first = ask(bench)
    assert first.mark >= 1000 * WALL
    assert ask(bench, first.mark) is None
    effects = bench.join("s1", ("a",))
    (answer,) = changes_in(effects)
    assert (answer.ticket, answer.fleet > first.fleet, answer.releases) == ("t", True, first.releases)
    assert [it.device for it in devices(bench, first.mark)] == ["a"]
    assert devices(bench, answer.mark) == []


def test_watcher_gets_only_changed_devices() -> None:
    bench = FleetBench()
    mark = ask(bench).mark
    bench.receive(OPERATOR, AwaitChange("t", mark, True), now=1.0)
    (answer,) = changes_in(bench.join("s1", ("a", "b")))
    assert [it.device for it in answer.devices or ()] == ["a", "b"]
    bench.receive(OPERATOR, AwaitChange("t", answer.mark, True), now=2.0)
    (later,) = changes_in(bench.cloud.handle(TimerFired(), 2.0 + MAX_WAIT))
    assert later.devices == ()
    assert changes_in(bench.receive(OPERATOR, AwaitChange("u", answer.mark - 9_000, True)))[0].devices is None
    many = tuple(f"device-{number:04}-{'d' * 40}" for number in range(900))
    bench.receive(OPERATOR, AwaitChange("t", later.mark, True), now=8.0)
    (large,) = changes_in(bench.join("s2", many, now=9.0))
    assert large.devices is None


def test_request_returns_after_hold_time_without_changes() -> None:
    bench = FleetBench()
    mark = ask(bench).mark
    ask(bench, mark, now=2.0)
    assert bench.cloud._changes.wake_at() == 2.0 + MAX_WAIT
    assert changes_in(bench.cloud.handle(TimerFired(), 2.0 + MAX_WAIT - 0.1)) == []
    (answer,) = changes_in(bench.cloud.handle(TimerFired(), 2.0 + MAX_WAIT))
    assert answer.mark == mark
    assert bench.cloud._changes.wake_at() is None


def test_device_shows_current_visit_until_model_moves_on() -> None:
    bench = FleetBench()
    bench.running()
    mark = ask(bench, now=50.0).mark
    (job,) = bench.cloud.state.jobs.values()
    tour = job.tours[0]
    device, site = tour.hops[0], Address("edge", tour.site)
    progress = TourProgress(job.tour_id(tour), 0, 1, device, 3, 9, 0, 0)
    bench.receive(site, progress, 51.0)
    (found,) = devices(bench, mark)
    assert found.doing.visit == VisitNow(job.name, 1, tour.number, 0, 3, 9)
    assert found.device == device
    later = ask(bench, mark, now=52.0).mark
    gone = msgspec.structs.replace(progress, device=None)
    bench.receive(site, gone, 53.0)
    (found,) = devices(bench, later)
    assert found.doing.visit is None


def test_restart_renews_marks_and_sends_all_devices() -> None:
    bench = FleetBench()
    bench.join("s1", ("a", "b"))
    old = ask(bench).mark
    again = Coordinator("cloud", wall=WALL + 60.0)
    again.restore(bench.cloud.snapshot())
    again.start(0.0)
    (answer,) = changes_in(again._changes.wait(OPERATOR, AwaitChange("t", old), 1.0))
    assert answer.mark > old
    question = InspectFleet("t", "devices", since=old)
    found: Any = again._fleet_requests.page(question, 1.0)
    assert [it.device for it in found.devices] == ["a", "b"]


def test_number_of_watchers_is_limited() -> None:
    bench = FleetBench()
    mark = ask(bench).mark
    for number in range(MAX_WATCHERS):
        assert ask(bench, mark, ticket=f"t{number}") is None
    assert ask(bench, mark, ticket="more").ticket == "t0"
    assert len(changes_in(bench.join("s1", ("a",)))) == MAX_WATCHERS
