"""Operators' requests about devices, connections and visits, a page at a time."""

from __future__ import annotations

from typing import Any

import msgspec
import pytest

from coordinator.fleet_records import (
    CHANGES,
    DEVICES,
    OLDEST,
    VISIT_BYTES,
    DeviceJoined,
    FleetChanged,
    FleetHistory,
    VisitOutcome,
)
from sojourn import __version__
from sojourn.protocol.operator_messages import ForgetDevice, InspectFleet, LastVisit, Refused, Submit
from tests.coordinator.machine.cloud_bench import OFFER, OPERATOR, text
from tests.coordinator.machine.fleet_bench import WALL, FleetBench
from tests.sojourn.store.replays import sends


def visited(reasons: dict[str, str] | None = None) -> FleetBench:
    """A fleet of two devices, one of which declines in the first round."""
    bench = FleetBench()
    bench.running()
    bench.toured(0, "s1")
    bench.toured(1, "s2")
    bench.close(60.0, reasons=reasons or {"b": "hot: 84 degrees"})
    return bench


def test_every_device_is_listed_with_its_last_visit() -> None:
    bench = visited()
    bench.join("s2", (), revision=2, now=70.0)
    answer = bench.ask(now=75.0)
    assert (answer.version, answer.now) == (__version__, WALL + 75.0)
    a, b = answer.devices
    assert (a.device, a.online, a.since, a.site, a.version, a.visits, a.failed) == ("a", True, WALL, "s1", "1", 1, 0)
    assert a.last == LastVisit(WALL + 60.0, "job", 1, "train", "done")
    assert (b.device, b.online, b.since, b.site, b.visits, b.failed) == ("b", False, WALL + 70.0, "s2", 0, 1)
    assert (a.offer, bench.ask(device="a").devices[0].offer) == (None, OFFER)


def test_visits_of_job_or_device_are_listed_newest_first() -> None:
    bench = visited()
    notes = bench.all("visits", job="job")
    assert [(it.device, it.status, it.reason, it.samples, it.loss) for it in notes] == [
        ("b", "declined", "hot: 84 degrees", 0, None),
        ("a", "done", "", 60, 0.75),
    ]
    assert bench.all("visits", device="a") == notes[1:]
    assert bench.all("visits", device="a", job="job") == notes[1:]
    bench.receive(OPERATOR, Submit("t2", text("other")))
    assert bench.all("visits", job="other") == []


def test_unknown_device_or_job_is_refused_with_suggestion() -> None:
    bench = FleetBench()
    bench.join("s1", ("pi-1",))
    refused = bench.ask(device="pi-2")
    assert isinstance(refused, Refused)
    hint = "did you mean 'pi-1'? all known devices: sojourn fleet status"
    assert refused.reason == f"no device 'pi-2' has ever connected; {hint}"
    assert bench.ask("visits", job="none") == Refused("t", "there is no job 'none'; the jobs are: none")


def test_long_lists_are_paged_to_fit_packets_without_gaps() -> None:
    bench = FleetBench()
    names = tuple(f"device-{number:04}-{'d' * 40}" for number in range(900))
    bench.join("s1", names)
    assert [it.device for it in bench.all("devices")] == list(names)
    assert [it.device for it in bench.all("changes")] == list(names)[::-1]
    outcomes = tuple(VisitOutcome(0, at, "s1", name, "lost", "€" * 2000) for at, name in enumerate(names[:100]))
    bench.cloud.state.seen.visited(WALL, "job", 1, "train", outcomes)
    found, after = 0, ""
    while found == 0 or after:
        answer = inspected(bench, InspectFleet("t", "visits", after=after))
        assert len(msgspec.msgpack.encode(answer)) < 60_000
        found, after = found + len(answer.visits), answer.next
    assert found == 100


def inspected(bench: FleetBench, question: InspectFleet) -> Any:
    """Return the answer after the test changed the state directly."""
    return bench.cloud._fleet_requests.page(question, 3.0)


@pytest.mark.parametrize("after", ["x", "-1", "1e9", "٣", "9" * 200, "0"])
def test_unknown_page_marker_is_harmless(after: str) -> None:
    bench = visited()
    assert len(bench.ask("visits", after=after).visits) in (0, 2)
    assert len(bench.ask("changes", after=after).changes) in (0, 2)


def test_unrecorded_device_is_shown_without_oversized_offer() -> None:
    bench = FleetBench()
    bench.join("s1", ("a",))
    del bench.cloud.state.seen.devices["a"]
    question = InspectFleet("t", "devices", "a")
    (device,) = inspected(bench, question).devices
    assert (device.online, device.since, device.first, device.offer) == (True, WALL + 3.0, WALL + 3.0, OFFER)
    large = msgspec.structs.replace(OFFER, objectives=("€" * 200,) * 64)
    read = bench.cloud.sites._rosters["s1"]
    members = tuple(msgspec.structs.replace(it, offer=large) for it in read.members)
    bench.cloud.sites._rosters["s1"] = msgspec.structs.replace(read, members=members)
    bench.cloud.sites._forget()
    (device,) = inspected(bench, question).devices
    assert (device.device, device.offer) == ("a", None)


# --- what is remembered, and for how long


def joined(name: str, at: float) -> FleetChanged:
    return FleetChanged(at, (DeviceJoined(name, "s1", "1", "m"),))


def test_history_drops_changes_by_age_and_count() -> None:
    history = FleetHistory()
    history.apply(joined("a", 0.0))
    history.apply(FleetChanged(1.0, left=("a",)))
    history.apply(joined("b", OLDEST + 0.5))
    assert [it.device for it in history.changes] == ["a", "b"]
    assert list(history.devices) == ["a", "b"]
    history.apply(joined("c", OLDEST + 2.0))
    assert [it.device for it in history.changes] == ["b", "c"]
    assert list(history.devices) == ["b", "c"]  # gone for too long
    for number in range(CHANGES):
        history.apply(FleetChanged(OLDEST + 3.0, left=("b",) if number % 2 else (), joined=()))
    many = tuple(DeviceJoined(f"d-{number}", "s1", "1", "m") for number in range(CHANGES))
    history.apply(FleetChanged(OLDEST + 4.0, many))
    assert len(history.changes) == CHANGES
    numbers = [number for number, _ in history.numbered_changes()]
    assert numbers == list(range(numbers[0], numbers[0] - CHANGES, -1))


def test_history_drops_longest_offline_devices_first() -> None:
    history = FleetHistory()
    history.apply(joined("old", 0.0))
    history.apply(FleetChanged(1.0, left=("old",)))
    history.apply(joined("older", 2.0))
    many = tuple(DeviceJoined(f"d-{number}", "s1", "1", "m") for number in range(DEVICES - 1))
    history.apply(FleetChanged(4.0, many))
    assert "old" not in history.devices
    assert "older" in history.devices
    assert len(history.devices) == DEVICES


def test_history_limits_visit_bytes_and_keeps_numbering() -> None:
    history = FleetHistory()
    long = tuple(VisitOutcome(0, hop, "s1", "a", "lost", "x" * 2000) for hop in range(100))
    for number in range(40):
        history.visited(float(number), "job", number + 1, "train", long)
    assert history.visit_bytes == sum(it.bytes for it in history.rounds) <= VISIT_BYTES
    assert history.rounds[-1].round == 40
    numbers = [number for number, _ in history.notes()]
    assert numbers[0] == 3999
    assert numbers == sorted(numbers, reverse=True)


def test_offline_device_can_be_forgotten() -> None:
    bench = visited()
    bench.join("s2", (), revision=2, now=70.0)
    (answer,) = sends(bench.receive(OPERATOR, ForgetDevice("f", "b"), 75.0))
    assert [(it.device, it.online) for it in answer.devices] == [("b", False)]
    assert [it.device for it in bench.ask(now=76.0).devices] == ["a"]
    assert sends(bench.receive(OPERATOR, ForgetDevice("f", "b"), 77.0)) == [answer]  # the answer was lost
    assert [it.device for it in bench.all("visits", job="job")] == ["b", "a"]
    assert bench.cloud.state.audit.entries[-1].what == "forget-device b"
    assert set(bench.replayed().state.seen.devices) == {"a"}
    assert bench.replayed().snapshot() == bench.cloud.snapshot()
    bench.join("s2", ("b",), revision=3, now=80.0)
    assert [(it.device, it.visits) for it in bench.ask(now=81.0).devices] == [("a", 1), ("b", 0)]


def test_online_or_unknown_device_is_not_forgotten() -> None:
    bench = visited()
    before = bench.cloud.state.seen.devices.keys()
    (here,) = sends(bench.receive(OPERATOR, ForgetDevice("f", "a"), 75.0))
    assert here == Refused("f", here.reason)
    assert here.reason.startswith("device 'a' is online at site s1: stop its agent first")
    (unknown,) = sends(bench.receive(OPERATOR, ForgetDevice("g", "c"), 76.0))
    assert unknown.reason.startswith("no device 'c' has ever connected")
    assert bench.cloud.state.seen.devices.keys() == before
