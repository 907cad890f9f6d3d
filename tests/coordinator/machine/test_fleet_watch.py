"""Connections and disconnections are recorded and logged, within limits however often they happen."""

from __future__ import annotations

from typing import Any

from coordinator.fleet_records import FleetChanged
from coordinator.machine.fleet_view import MAX_LOG_LINES, STARTUP_GRACE
from coordinator.machine.sites import CLASH_TIME, ReadRoster, RosterRead
from sojourn.node.machine import Append, Log, Present, Pulled, TimerFired
from sojourn.protocol.messages import Roster
from sojourn.protocol.wire import Epoch, Member
from sojourn.store.blobs import ref_of
from tests.coordinator.machine.cloud_bench import BOOT, DEAD, OFFER, site
from tests.coordinator.machine.fleet_bench import WALL, FleetBench


def changed(effects) -> list[FleetChanged]:
    return [it.record for it in effects if isinstance(it, Append) and isinstance(it.record, FleetChanged)]


def output(effects) -> list[str]:
    return [it.text for it in effects if isinstance(it, Log)]


def test_joins_and_leaves_are_recorded_with_wall_time_and_logged() -> None:
    bench = FleetBench()
    effects = bench.join("s1", ("a", "b"), now=5.0)
    (record,) = changed(effects)
    assert record.at == WALL + 5.0
    assert [(it.device, it.site, it.version, it.machine) for it in record.joined] == [
        ("a", "s1", "1", "m"),
        ("b", "s1", "1", "m"),
    ]
    assert output(effects) == ["device a is online (site s1, 1, m)", "device b is online (site s1, 1, m)"]
    effects = bench.join("s1", ("b",), revision=2, now=7.0)
    assert (changed(effects)[0].left, output(effects)) == (("a",), ["device a is offline (site s1)"])
    assert changed(bench.join("s1", ("b",), revision=3, now=8.0)) == []


def test_dead_site_loses_devices_unless_another_reaches_them() -> None:
    bench = FleetBench()
    bench.join("s1", ("a", "b"))
    bench.join("s2", ("b",))
    (record,) = changed(bench.handle(Present(site("s1"), BOOT, DEAD), 9.0))
    assert record.left == ("a",)
    assert [(it.device, it.site) for it in record.joined] == [("b", "s2")]


def test_flapping_device_does_not_fill_the_journal() -> None:
    bench, before = FleetBench(), 0
    for number in range(400):
        bench.join("s1", ("a", "b") if number % 2 else ("b",), revision=number + 1, now=number * 1.0)
        before = len(bench.records)
    assert before < 60  # 20 at once, then one change in a minute
    assert [it.online for it in bench.ask("devices", 400.0).devices] == [True, True]  # according to the roster
    bench.join("s1", ("b",), revision=3000, now=401.0)
    for now in (470.0, 540.0, 610.0):
        bench.handle(TimerFired(), now)
    assert {name: it.online for name, it in bench.cloud.state.seen.devices.items()} == {"a": False, "b": True}
    assert bench.cloud.wake_at() is None


def test_many_joins_share_log_lines() -> None:
    bench = FleetBench()
    effects = bench.join("s1", tuple(f"dev-{number:03}" for number in range(100)))
    assert len(output(effects)) == MAX_LOG_LINES + 1
    assert output(effects)[-1] == f"and {100 - MAX_LOG_LINES} more devices are online: sojourn fleet status"


def test_restart_waits_for_sites_before_devices_count_as_gone() -> None:
    bench = FleetBench()
    bench.join("s1", ("a",))
    bench.join("s2", ("b", "c"))
    bench.cloud = bench.replayed()
    bench.note(bench.cloud.start(50.0))
    bench.join("s2", ("b",), now=51.0)  # it has reported, and no longer has c
    seen = bench.cloud.state.seen.devices
    assert {name: it.online for name, it in seen.items()} == {"a": True, "b": True, "c": False}
    assert seen["b"].since == WALL
    bench.handle(TimerFired(), 50.0 + STARTUP_GRACE)
    assert (seen["a"].online, seen["a"].since) == (False, WALL + 50.0 + STARTUP_GRACE)


def test_device_with_another_version_counts_as_joined_again() -> None:
    bench = FleetBench()
    bench.join("s1", ("a",))
    bench.cloud.state.seen.devices["a"].version = "0"
    effects = bench.cloud.handle(Present(site("s3"), BOOT, DEAD), 3.0)
    assert [it.version for it in changed(effects)[0].joined] == ["1"]


def rosters(bench: FleetBench, site_name: str, *members: Member, revision: int, now: float) -> list[Any]:
    """A site sends its roster."""
    members_ref = ref_of(f"{site_name} {revision}".encode())
    bench.receive(site(site_name), Roster(revision, members_ref), now)
    bench.handle(Pulled(members_ref.digest), now)
    return bench.did(ReadRoster, lambda work: RosterRead(work.site, work.epoch, work.revision, members), now)


def warnings_of(effects) -> list[str]:
    return [effect.text for effect in effects if isinstance(effect, Log) and effect.level == "warning"]


def test_name_clash_at_one_site_is_reported_until_resolved() -> None:
    bench = FleetBench()
    bench.join("s1", ("a", "b"))
    clash, fine = Member("a", BOOT, OFFER, clash=True), Member("b", BOOT, OFFER)
    (warning,) = warnings_of(rosters(bench, "s1", clash, fine, revision=2, now=5.0))
    assert warning.startswith("two agents use the name 'a' (site s1)")
    assert "give it another name" in warning
    assert warnings_of(rosters(bench, "s1", clash, fine, revision=3, now=6.0)) == []
    a, b = bench.ask(now=7.0).devices
    assert (a.notice, b.notice) == (warning, "")
    assert bench.ask(device="a", now=7.0).devices[0].notice == warning
    rosters(bench, "s1", Member("a", BOOT, OFFER), fine, revision=4, now=8.0)
    assert [it.notice for it in bench.ask(now=9.0).devices] == ["", ""]


def test_name_clash_between_sites_is_reported_after_a_delay() -> None:
    bench, other = FleetBench(), Epoch(4, b"another1")
    bench.join("s1", ("a",))
    bench.join("s2", ("b",))
    assert warnings_of(rosters(bench, "s2", Member("a", other, OFFER), revision=2, now=10.0)) == []
    assert bench.ask(now=11.0).devices[0].notice == ""  # it may have moved, and s1 does not know yet
    (warning,) = warnings_of(bench.handle(TimerFired(), 10.0 + CLASH_TIME))
    assert warning.startswith("two agents use the name 'a' (sites s1 and s2)")
    assert bench.ask(now=200.0).devices[0].notice == warning


def test_device_moving_between_sites_is_not_a_name_clash() -> None:
    bench, other = FleetBench(), Epoch(4, b"another1")
    bench.join("s1", ("a",))
    bench.join("s2", ("b",))
    rosters(bench, "s2", Member("a", other, OFFER), revision=2, now=10.0)
    bench.join("s1", (), revision=2, now=100.0)
    assert warnings_of(bench.handle(TimerFired(), 10.0 + CLASH_TIME)) == []
    assert bench.ask(now=500.0).devices[0].notice == ""
