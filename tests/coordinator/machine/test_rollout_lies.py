"""What devices and sites may not do to a rollout: speak for others, of other orders, for ever, or with figures that
cannot be; and how one device's word finds company."""

from __future__ import annotations

from collections import Counter

import msgspec
import pytest

from coordinator.machine.rollout_progress import CHANGES, LEAST
from coordinator.machine.routes import TRIES
from coordinator.rollout_records import AHEAD, DeviceReported, DevicesSetAside
from sojourn.node.machine import Present, Say
from sojourn.protocol.messages import Death
from sojourn.protocol.release import Health, HealthRules
from sojourn.protocol.wire import Epoch
from tests.coordinator.machine.cloud_bench import BOOT, records, site
from tests.coordinator.machine.rollout_bench import RolloutBench, shipped, told
from tests.coordinator.machine.test_rollouts import TEN, bench, rejoin

RULES = HealthRules(soak=10.0, patience=100.0)
ILL = Health(drift=0.9)


def begun(count=10, sites=2, stages=(0.1, 1.0), **rules) -> RolloutBench:
    it = bench(count, sites)
    it.begin(stages=stages, rules=msgspec.structs.replace(RULES, **rules))
    return it


def first(it: RolloutBench) -> str:
    return str(next(iter(it.line().members)))


def warnings(effects) -> list[str]:
    return [effect.text for effect in effects if isinstance(effect, Say) and effect.level == "warning"]


# --- reports count only for devices that the reporting site has


def test_a_site_speaks_only_for_devices_that_it_has() -> None:
    it = begun(stages=(1.0,), quorum=1)
    assert it.home(TEN[1]) == "s1"
    assert it.report(TEN[1], 1, 0, "failed", detail="a lie", through="s0") == []
    assert it.report(TEN[1], 1, 0, "failed", detail="a lie", through="nowhere") == []
    assert it.line().reports == {}
    it.report(TEN[1], 1, 0, "failed", detail="the truth")
    assert it.line().status == "rolling-back"


def test_a_site_still_speaks_for_a_device_that_it_had_when_it_was_told() -> None:
    it = begun(stages=(1.0,))
    it.join("s1", (), revision=2)
    assert records(it.report(TEN[1], 1, through="s1")) == [DeviceReported]
    assert it.report(TEN[0], 1, 0, "failed", through="s1") == []


def test_devices_that_the_rollout_has_not_reached_or_that_nobody_knows_change_nothing() -> None:
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
def test_a_report_that_contradicts_its_order_changes_nothing(serial, version, state) -> None:
    it = begun(stages=(1.0,))
    assert it.report(TEN[0], serial, version, state) == []
    assert it.line().reports == {}


def test_a_report_of_an_earlier_rollout_that_is_played_again_counts_for_nothing() -> None:
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


def test_a_lie_about_a_far_order_is_forgotten_when_the_device_speaks() -> None:
    it = begun(stages=(1.0,))
    it.report(TEN[0], 2 + AHEAD, 9)
    assert "obeys order" in it.ask("l")[0].detail
    it.report(TEN[0], 1)
    assert (it.line().reports[TEN[0]].serial, it.ask("l")[0].detail) == (1, "")


def test_a_device_that_changes_its_mind_for_ever_fills_neither_journal_nor_log() -> None:
    it = begun(stages=(1.0,))
    written, said = 0, []
    for _ in range(500):
        for state, version in (("failed", 0), ("serving", 1)):
            effects = it.report(TEN[0], 1, version, state, detail="one way or the other")
            written += records(effects).count(DeviceReported)
            said += warnings(effects)
    assert written == CHANGES
    assert len(said) <= CHANGES + 1
    for device in TEN[1:]:
        it.report(device, 1)
    it.wait(RULES.soak)
    assert it.line().status == "done"


def test_a_device_whose_site_is_silent_is_told_through_another_that_names_it() -> None:
    it = RolloutBench(("a",), 1)
    it.join("s1", ("a",))
    effects = [*it.begin(stages=(1.0,), rules=RULES), *it.wait(14)]
    assert [count for _, count in Counter(where for where, _, _ in shipped(effects)).items()] == [TRIES]
    effects += it.wait(2)
    assert {where for where, _, _ in shipped(effects)} == {"s0", "s1"}
    it.report("a", 1, 0, "fetching", through="s1")
    heard = it.wait(60)
    assert len({where for where, _, _ in shipped(heard)}) == 1  # it answers: it stays with whom it was told by


# --- company


def test_a_complaint_is_kept_company_by_a_device_of_another_site_that_is_asked_before_its_turn() -> None:
    it = begun()
    lone = first(it)
    effects = it.report(lone, 1, health=ILL)
    (other,) = set(it.line().members) - {lone}
    assert it.home(other) != it.home(lone)
    assert (it.line().status, it.line().stage, told(effects)) == ("running", 1, {other})
    assert f"{lone}: the mix of predicted classes moved by 90 %" in it.ask("l")[0].detail
    assert "others are waited for" in it.ask("l")[0].detail
    effects = it.report(other, 1, health=ILL)
    assert it.line().status == "rolling-back"
    assert told(effects) == {lone, other}
    assert all(name in it.line().detail for name in (lone, other))


@pytest.mark.parametrize("state", ["failed", "refused", "fell-back", "serving"])
def test_a_device_that_stays_alone_goes_back_alone_and_the_rollout_goes_on(state) -> None:
    it = begun()
    lone = first(it)
    it.report(lone, 1, int(state == "serving"), state, ILL, "why")
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
    assert told(it.wait(RULES.soak)) == {lone}
    assert it.line().status == "done"
    it.report(lone, 2, 0, "withdrawn")
    assert told(it.wait(1000)) == set()
    view = it.ask("l")[0]
    assert view.devices[0].device == lone
    assert view.devices[0].detail.startswith("set aside: ")
    assert "set aside: " in view.detail


def test_who_was_set_aside_counts_when_another_complains_later() -> None:
    it = begun()
    lone = first(it)
    it.report(lone, 1, health=ILL)
    it.report(next(device for device in it.line().members if device != lone), 1)
    it.wait(RULES.soak)
    later = next(device for device in TEN if it.home(device) != it.home(lone) and device not in it.line().reports)
    it.report(later, 1, health=ILL)
    assert it.line().status == "rolling-back"
    it.restart()
    assert set(it.line().aside) == {lone}


def test_all_devices_of_one_site_together_are_not_company_enough_where_there_is_another() -> None:
    it = begun(stages=(1.0,))
    for device in TEN:
        it.report(device, 1, health=ILL if it.home(device) == "s0" else None)
    it.wait(RULES.soak)
    assert (it.line().status, set(it.line().aside)) == ("done", set(TEN[::2]))


def test_in_a_fleet_with_one_site_two_devices_are_enough() -> None:
    it = begun(sites=1, stages=(1.0,))
    it.report(TEN[0], 1, health=ILL)
    assert it.line().status == "running"
    it.report(TEN[1], 1, health=ILL)
    assert it.line().status == "rolling-back"


def test_a_fleet_of_one_device_takes_its_word() -> None:
    it = begun(count=1, sites=1)
    it.report(TEN[0], 1, 0, "failed")
    assert it.line().status == "rolling-back"


def test_where_those_who_are_asked_stay_silent_others_are_and_in_the_end_the_complaint_counts() -> None:
    it = begun(count=4)
    it.report(first(it), 1, health=ILL)
    seen = [len(it.line().members)]
    for _ in range(3):
        it.wait(RULES.patience)
        seen.append(len(it.line().members))
    assert seen == [2, 3, 4, 4]
    assert it.line().status == "rolling-back"


def test_without_patience_those_who_are_asked_besides_have_a_moment() -> None:
    it = begun(patience=0.0)
    it.report(first(it), 1, health=ILL)
    at_once = len(it.line().members)
    assert at_once < 4
    it.wait(LEAST)
    assert at_once < len(it.line().members) <= at_once + 2


def test_who_is_away_does_not_speak_for_a_release() -> None:
    """All of one site complain; those of the other were well, and then their site went down."""
    it = begun(stages=(1.0,))
    for device in TEN[1::2]:
        it.report(device, 1)
    it.tell(Present(site("s1"), BOOT, Death()))
    for device in TEN[::2]:
        it.report(device, 1, health=ILL)
    it.wait(RULES.soak + 1)
    assert (it.line().status, it.line().aside) == ("running", {})
    assert told(rejoin(it, Epoch(2, b"12345678"))) >= set(TEN[1::2])
    it.wait(1)
    assert it.line().status == "running"
    it.report(TEN[1], 1, health=ILL)
    assert it.line().status == "rolling-back"


def test_a_restart_in_the_middle_forgets_neither_complaint_nor_company() -> None:
    it = begun()
    lone = first(it)
    it.report(lone, 1, health=ILL)
    (other,) = set(it.line().members) - {lone}
    it.restart()
    rejoin(it)
    assert set(it.line().members) == {lone, other}
    it.report(other, 1, health=ILL)
    assert it.line().status == "rolling-back"


def test_with_halt_the_rollout_stops_when_there_is_company() -> None:
    it = bench()
    it.begin(stages=(1.0,), rules=RULES, undo=False)
    it.report(TEN[0], 1, health=ILL)
    assert it.line().status == "running"
    it.report(TEN[1], 1, health=ILL)
    assert it.line().status == "halted"
