"""Reports that a rollout ignores: for other devices, about other orders, without end, or with impossible metrics."""

from __future__ import annotations

from collections import Counter

import msgspec
import pytest

from coordinator.machine.rollout_progress import MAX_CHANGES, MIN_TIMEOUT, TRIES_PER_SITE
from coordinator.rollout_records import AHEAD, DeviceReported, DevicesSetAside
from sojourn.node.machine import Log, Present
from sojourn.protocol.messages import Death
from sojourn.protocol.release import Health, HealthRules
from sojourn.protocol.wire import Epoch
from tests.coordinator.machine.cloud_bench import BOOT, records, site
from tests.coordinator.machine.rollout_bench import RolloutBench, ordered_devices, shipped
from tests.coordinator.machine.test_rollouts import TEN, bench, rejoin

RULES = HealthRules(soak=10.0, timeout=100.0)
UNHEALTHY = Health(drift=0.9)


def begun(count=10, sites=2, stages=(0.1, 1.0), **rules) -> RolloutBench:
    it = bench(count, sites)
    it.begin(stages=stages, rules=msgspec.structs.replace(RULES, **rules))
    return it


def first(it: RolloutBench) -> str:
    return str(next(iter(it.line().members)))


def warnings(effects) -> list[str]:
    return [effect.text for effect in effects if isinstance(effect, Log) and effect.level == "warning"]


# --- reports count only for devices that the reporting site has


def test_site_can_report_only_for_its_devices() -> None:
    it = begun(stages=(1.0,), quorum=1)
    assert it.home(TEN[1]) == "s1"
    assert it.report(TEN[1], 1, 0, "failed", detail="a lie", through="s0") == []
    assert it.report(TEN[1], 1, 0, "failed", detail="a lie", through="nowhere") == []
    assert it.line().reports == {}
    it.report(TEN[1], 1, 0, "failed", detail="the truth")
    assert it.line().status == "rolling-back"


def test_site_can_report_for_device_it_had_when_ordered() -> None:
    it = begun(stages=(1.0,))
    it.join("s1", (), revision=2)
    assert records(it.report(TEN[1], 1, through="s1")) == [DeviceReported]
    assert it.report(TEN[0], 1, 0, "failed", through="s1") == []


def test_reports_of_unreached_or_unknown_devices_are_ignored() -> None:
    it = begun()
    reached = first(it)
    for device in (*TEN, "invented"):
        if device != reached:
            assert it.report(device, 1, 0, "failed", detail="a lie", through="s0") == []
            assert it.report(device, 1, 0, "failed", detail="a lie", through="s1") == []
    assert (it.line().status, it.line().reports, len(it.line().members)) == ("running", {}, 1)


@pytest.mark.parametrize(
    ("serial", "version", "state"),
    [(1, 7, "serving"), (1, 0, "serving"), (1, 0, "withdrawn"), (2, 1, "serving"), (2 + AHEAD + 1, 9, "serving")],
)
def test_report_that_contradicts_its_order_is_ignored(serial, version, state) -> None:
    it = begun(stages=(1.0,))
    assert it.report(TEN[0], serial, version, state) == []
    assert it.line().reports == {}


def test_replayed_report_of_earlier_rollout_is_ignored() -> None:
    it = bench(4)
    it.begin(stages=(1.0,))
    for device in TEN[:4]:
        it.report(device, 1, 0, "failed", detail="old")
    assert it.line().status == "rolling-back"
    for device in TEN[:4]:
        it.report(device, 2, 0, "withdrawn")
    it.begin(2, serial=3, ticket="u", stages=(1.0,), rules=RULES)
    for device in TEN[:4]:
        it.report(device, 1, 0, "failed", detail="old")
        it.report(device, 2, 0, "withdrawn")
    assert it.line().status == "running"
    for device in TEN[:4]:
        it.report(device, 3, 2)
    it.wait(RULES.soak)
    assert it.line().status == "done"


def test_false_future_order_is_replaced_by_real_report() -> None:
    it = begun(stages=(1.0,))
    it.report(TEN[0], 2 + AHEAD, 9)
    assert "follows order" in it.ask("l")[0].detail
    it.report(TEN[0], 1)
    assert (it.line().reports[TEN[0]].serial, it.ask("l")[0].detail) == (1, "")


def test_flapping_device_fills_neither_journal_nor_log() -> None:
    it = begun(stages=(1.0,))
    written, logged = 0, []
    for _ in range(500):
        for state, version in (("failed", 0), ("serving", 1)):
            effects = it.report(TEN[0], 1, version, state, detail="one way or the other")
            written += records(effects).count(DeviceReported)
            logged += warnings(effects)
    assert written == MAX_CHANGES
    assert len(logged) <= MAX_CHANGES + 1
    for device in TEN[1:]:
        it.report(device, 1)
    it.wait(RULES.soak)
    assert it.line().status == "done"


def test_order_is_sent_through_second_site_if_first_is_silent() -> None:
    it = RolloutBench(("a",), 1)
    it.join("s1", ("a",))
    effects = [*it.begin(stages=(1.0,), rules=RULES), *it.wait(14)]
    assert [count for _, count in Counter(where for where, _, _ in shipped(effects)).items()] == [TRIES_PER_SITE]
    effects += it.wait(2)
    assert {where for where, _, _ in shipped(effects)} == {"s0", "s1"}
    it.report("a", 1, 0, "fetching", through="s1")
    effects = it.wait(60)
    assert len({where for where, _, _ in shipped(effects)}) == 1  # it answers: its site stays the same


# --- quorum


def test_complaint_asks_device_of_another_site_early() -> None:
    it = begun()
    lone = first(it)
    effects = it.report(lone, 1, health=UNHEALTHY)
    (other,) = set(it.line().members) - {lone}
    assert it.home(other) != it.home(lone)
    assert (it.line().status, it.line().stage, ordered_devices(effects)) == ("running", 1, {other})
    assert f"{lone}: the mix of predicted classes moved by 90 %" in it.ask("l")[0].detail
    assert "waiting for other devices" in it.ask("l")[0].detail
    effects = it.report(other, 1, health=UNHEALTHY)
    assert it.line().status == "rolling-back"
    assert ordered_devices(effects) == {lone, other}
    assert all(name in it.line().detail for name in (lone, other))


@pytest.mark.parametrize("state", ["failed", "refused", "fell-back", "serving"])
def test_lone_complaining_device_rolls_back_alone(state) -> None:
    it = begun()
    lone = first(it)
    it.report(lone, 1, int(state == "serving"), state, UNHEALTHY, "why")
    (other,) = set(it.line().members) - {lone}
    it.report(other, 1)
    effects = it.wait(RULES.soak)
    assert records(effects)[0] is DevicesSetAside
    assert {(serial, device) for _, serial, some in shipped(effects) for device in some} == {
        (2, lone),
        *((1, device) for device in TEN if device not in (lone, other)),
    }
    assert it.line().stage == 2
    for device in TEN:
        if device != lone:
            it.report(device, 1)
    assert ordered_devices(it.wait(RULES.soak)) == {lone}
    assert it.line().status == "done"
    it.report(lone, 2, 0, "withdrawn")
    assert ordered_devices(it.wait(1000)) == set()
    view = it.ask("l")[0]
    assert view.devices[0].device == lone
    assert view.devices[0].detail.startswith("set aside: ")
    assert "set aside: " in view.detail


def test_device_set_aside_counts_when_another_complains() -> None:
    it = begun()
    lone = first(it)
    it.report(lone, 1, health=UNHEALTHY)
    it.report(next(device for device in it.line().members if device != lone), 1)
    it.wait(RULES.soak)
    later = next(device for device in TEN if it.home(device) != it.home(lone) and device not in it.line().reports)
    it.report(later, 1, health=UNHEALTHY)
    assert it.line().status == "rolling-back"
    it.restart()
    assert set(it.line().set_aside) == {lone}


def test_complaints_of_one_site_are_not_enough_among_several() -> None:
    it = begun(stages=(1.0,))
    for device in TEN:
        it.report(device, 1, health=UNHEALTHY if it.home(device) == "s0" else None)
    it.wait(RULES.soak)
    assert (it.line().status, set(it.line().set_aside)) == ("done", set(TEN[::2]))


def test_two_complaints_are_enough_in_a_one_site_fleet() -> None:
    it = begun(sites=1, stages=(1.0,))
    it.report(TEN[0], 1, health=UNHEALTHY)
    assert it.line().status == "running"
    it.report(TEN[1], 1, health=UNHEALTHY)
    assert it.line().status == "rolling-back"


def test_single_device_fleet_needs_no_second_complaint() -> None:
    it = begun(count=1, sites=1)
    it.report(TEN[0], 1, 0, "failed")
    assert it.line().status == "rolling-back"


def test_silent_witnesses_are_replaced_until_complaint_counts() -> None:
    it = begun(count=4)
    it.report(first(it), 1, health=UNHEALTHY)
    seen = [len(it.line().members)]
    for _ in range(3):
        it.wait(RULES.timeout)
        seen.append(len(it.line().members))
    assert seen == [2, 3, 4, 4]
    assert it.line().status == "rolling-back"


def test_witnesses_get_a_minimum_time_if_timeout_is_zero() -> None:
    it = begun(timeout=0.0)
    it.report(first(it), 1, health=UNHEALTHY)
    at_once = len(it.line().members)
    assert at_once < 4
    it.wait(MIN_TIMEOUT)
    assert at_once < len(it.line().members) <= at_once + 2


def test_offline_devices_do_not_vouch_for_a_release() -> None:
    """All devices of one site complain; those of the other were healthy before their site went offline."""
    it = begun(stages=(1.0,))
    for device in TEN[1::2]:
        it.report(device, 1)
    it.handle(Present(site("s1"), BOOT, Death()))
    for device in TEN[::2]:
        it.report(device, 1, health=UNHEALTHY)
    it.wait(RULES.soak + 1)
    assert (it.line().status, it.line().set_aside) == ("running", {})
    assert ordered_devices(rejoin(it, Epoch(2, b"12345678"))) >= set(TEN[1::2])
    it.wait(1)
    assert it.line().status == "running"
    it.report(TEN[1], 1, health=UNHEALTHY)
    assert it.line().status == "rolling-back"


def test_restart_keeps_complaint_and_asked_witness() -> None:
    it = begun()
    lone = first(it)
    it.report(lone, 1, health=UNHEALTHY)
    (other,) = set(it.line().members) - {lone}
    it.restart()
    rejoin(it)
    assert set(it.line().members) == {lone, other}
    it.report(other, 1, health=UNHEALTHY)
    assert it.line().status == "rolling-back"


def test_halt_rule_stops_rollout_when_quorum_complains() -> None:
    it = bench()
    it.begin(stages=(1.0,), rules=RULES, undo=False)
    it.report(TEN[0], 1, health=UNHEALTHY)
    assert it.line().status == "running"
    it.report(TEN[1], 1, health=UNHEALTHY)
    assert it.line().status == "halted"
