"""Rollouts: stages, soaking, timeout, health issues and rollback, new devices, and restarts in every state."""

from __future__ import annotations

import random
from typing import Any

import msgspec
import pytest

from coordinator.machine import rollout_progress
from coordinator.machine.rollout_progress import MAX_DEVICES_PER_MESSAGE
from coordinator.rollout_records import DeviceReported, DevicesJoined, RolloutTurned
from sojourn.node.machine import Append, Present, TimerFired
from sojourn.protocol.messages import Birth, Death
from sojourn.protocol.release import Health, HealthRules, Order, Pace
from sojourn.protocol.wire import Epoch
from tests.coordinator.machine.cloud_bench import BOOT, BORN, DEAD, records, site
from tests.coordinator.machine.rollout_bench import RULES, RolloutBench, goods, ordered_devices, refs, shipped
from tests.sojourn.store.replays import sends

TEN = tuple(f"dev-{number}" for number in range(10))
SLOW = Health(pace=Pace(1.0, 3000.0), pace_before=Pace(1.0, 1000.0))


def bench(count=10, sites=2) -> RolloutBench:
    return RolloutBench(TEN[:count], sites)


# --- stages


@pytest.mark.parametrize(
    ("count", "stages", "sizes"),
    [
        (10, (0.05, 0.25, 1.0), [1, 3, 10]),
        (1, (0.05, 0.25, 1.0), [1, 1, 1]),
        (10, (0.3, 1.0), [3, 10]),
        (10, (0.0, 1.0), [1, 10]),
        (10, (1.0,), [10]),
        (3, (0.34, 1.0), [2, 3]),
    ],
)
def test_each_stage_reaches_its_share_of_devices(count, stages, sizes) -> None:
    it = bench(count)
    it.begin(stages=stages)
    found = []
    while it.line().status == "running":
        found.append(len(it.line().members))
        it.all_well(1)
        it.wait(RULES.soak + 0.5)
    assert found == sizes
    assert it.line().status == "done"


def test_rollout_without_devices_waits() -> None:
    it = RolloutBench()
    effects = it.begin()
    assert shipped(effects) == []
    assert (it.line().status, it.line().stage) == ("running", 0)
    assert shipped(it.wait(10_000)) == []
    assert ordered_devices(it.join("s0", ("a", "b"), revision=2)) == {max_ranked(it, ("a", "b"))}


def max_ranked(it: RolloutBench, devices) -> str:
    first: str = it.line().chosen(1, devices)[0] if not it.line().members else next(iter(it.line().members))
    return first


def test_device_order_depends_only_on_names_and_release() -> None:
    def first(version: int, sites: int, names=TEN) -> list[str]:
        it = RolloutBench(names, sites)
        it.begin(version, stages=(0.3, 1.0))
        return list(it.line().members)

    assert first(1, 1) == first(1, 2) == first(1, 5, tuple(reversed(TEN)))
    assert len({tuple(sorted(first(version, 1))) for version in range(1, 8)}) > 3


def test_each_stage_sends_orders_only_to_new_devices() -> None:
    it = bench()
    effects = it.begin(stages=(0.2, 1.0))
    first = ordered_devices(effects)
    assert len(first) == 2
    it.all_well(1)
    effects = it.wait(RULES.soak)
    assert ordered_devices(effects) == set(TEN) - first
    assert it.line().members == {device: 1 if device in first else 2 for device in TEN}


def test_orders_go_through_the_device_site_in_batches() -> None:
    names = tuple(f"dev-{number:04}" for number in range(MAX_DEVICES_PER_MESSAGE + 5))
    it = RolloutBench(names, 1)
    it.join("s1", (names[0], "other"))
    effects = it.begin(stages=(1.0,))
    assert [(where, len(devices)) for where, _, devices in shipped(effects)] == [
        ("s0", MAX_DEVICES_PER_MESSAGE),
        ("s0", 5),
        ("s1", 1),
    ]
    assert shipped(effects)[-1] == ("s1", 1, ("other",))


def test_ordered_devices_are_on_disk_before_orders_are_sent() -> None:
    it = bench()
    effects = it.begin()
    kinds = [type(effect).__name__ for effect in effects]
    (joined,) = [at for at, e in enumerate(effects) if isinstance(e, Append) and isinstance(e.record, DevicesJoined)]
    assert effects[joined].sync
    assert joined < kinds.index("Send")


# --- asking again


def test_unanswered_orders_are_resent() -> None:
    it = bench(2)
    it.begin(stages=(1.0,), rules=HealthRules(quorum=1, timeout=1000.0))
    start, times = it.now, []
    while it.now < start + 60:
        wake = it.cloud.wake_at()
        assert wake is not None
        it.now = wake
        if ordered_devices(it.handle(TimerFired())):
            times.append(it.now - start)
    assert times[:6] == [1.0, 3.0, 7.0, 15.0, 30.0, 45.0]
    it.report(TEN[0], 1, 0, "checking")
    assert ordered_devices(it.wait(16)) == {TEN[0], TEN[1]}
    it.report(TEN[0], 1)
    assert ordered_devices(it.wait(16)) == {TEN[1]}
    it.report(TEN[1], 1)
    assert ordered_devices(it.wait(5)) == set()


def test_returning_devices_get_the_order_at_once() -> None:
    it = bench(2, sites=1)
    it.begin(stages=(1.0,), rules=HealthRules(quorum=1, timeout=1000.0))
    it.wait(50)
    it.join("s0", (), revision=2)
    assert ordered_devices(it.wait(20)) == set()
    assert ordered_devices(it.join("s0", TEN[:2], revision=3)) == set(TEN[:2])
    assert it.cloud.wake_at() == it.now + 1.0


def test_returning_site_with_same_roster_gets_orders_at_once() -> None:
    it = bench(2, sites=1)
    it.handle(Present(site("s0"), BOOT, Death()))
    it.begin(stages=(1.0,))
    assert it.line().stage == 0
    assert ordered_devices(it.handle(Present(site("s0"), BOOT, Birth()))) == set(TEN[:2])


def test_returning_device_is_checked_once_after_rollout() -> None:
    it = bench(2, sites=1)
    it.begin(stages=(1.0,))
    it.through()
    assert it.line().status == "done"
    assert ordered_devices(it.wait(1000)) == set()
    it.join("s0", TEN[:1], revision=2)
    assert ordered_devices(it.join("s0", TEN[:2], revision=3)) == {TEN[1]}
    it.report(TEN[1], 1, 0, "fetching")  # its disk was replaced
    assert it.line().reports[TEN[1]].state == "serving"
    assert ordered_devices(it.wait(16)) == {TEN[1]}
    it.report(TEN[1], 1)
    assert ordered_devices(it.wait(1000)) == set()


# --- soaking and timeout


def test_stage_soaks_from_when_all_devices_are_healthy() -> None:
    it = bench(2, sites=1)
    it.begin(stages=(1.0,), rules=HealthRules(quorum=1, soak=50.0, timeout=1000.0))
    it.report(TEN[0], 1)
    it.wait(100)
    assert it.line().status == "running"
    it.report(TEN[1], 1)
    it.wait(49.9)
    assert it.line().status == "running"
    it.wait(0.1)
    assert it.line().status == "done"


def test_zero_soak_advances_as_fast_as_devices_answer() -> None:
    it = bench(10)
    it.begin(stages=(0.1, 0.2, 0.3, 1.0), rules=HealthRules(quorum=1, soak=0.0))
    for _ in range(4):
        it.all_well(1)
    assert it.line().status == "done"
    assert it.now == 0.0


def test_twenty_stages_on_one_device_end_at_once_without_soak() -> None:
    it = bench(1)
    it.begin(stages=tuple((at + 1) / 20 for at in range(20)), rules=HealthRules(quorum=1, soak=0.0))
    it.all_well(1)
    assert (it.line().status, it.line().stage) == ("done", 20)


def test_silent_devices_are_left_behind_after_timeout() -> None:
    it = bench(4)
    it.begin(stages=(0.5, 1.0))
    silent, answering = it.line().members
    it.report(answering, 1)
    it.wait(RULES.timeout - 0.1)
    assert it.line().stage == 1
    it.wait(0.1 + RULES.soak)
    assert it.line().stage == 2
    for device in TEN[:4]:
        if device != silent:
            it.report(device, 1)
    it.wait(RULES.timeout + RULES.soak)
    assert it.line().status == "done"
    assert ordered_devices(it.wait(20)) == {silent}
    it.report(silent, 1)
    assert ordered_devices(it.wait(20)) == set()


def test_silent_stage_tries_other_devices_then_pauses() -> None:
    it = bench(4)
    it.begin()
    first = set(it.line().members)
    assert ordered_devices(it.wait(RULES.timeout)) == set(TEN[:4])
    assert (it.line().stage, set(it.line().members)) == (1, set(TEN[:4]))
    assert len(first) == 2
    effects = it.wait(RULES.timeout)
    assert (it.line().status, it.line().detail) == ("paused", "no device of stage 1 answered within 100 s")
    assert RolloutTurned in records(effects)
    assert shipped(it.wait(1000)) == []
    assert ordered_devices(it.steer("resume")) == set(it.line().members)
    it.all_well(1)
    it.wait(RULES.soak)
    assert it.line().stage == 2


# --- health issues

KINDS = [
    ("failed", Health(), "failed: it does not load"),
    ("refused", Health(), "refused: it does not load"),
    ("fell-back", Health(), "fell-back: it does not load"),
    ("serving", SLOW, "3.0 times as slow"),
    ("serving", Health(live=Pace(1.0, 3000.0), live_before=Pace(1.0, 1000.0)), "3.0 times as slow"),
    ("serving", Health(rows=9, accuracy=0.5, accuracy_before=0.75), "accuracy fell by 25.0 points"),
    ("serving", Health(drift=0.5), "moved by 50 %"),
    ("serving", Health(live_drift=0.5), "moved by 50 %"),
    ("serving", Health(errors=1), "programs reported 1 errors"),
]


@pytest.mark.parametrize("undo", [True, False])
@pytest.mark.parametrize(("state", "health", "message"), KINDS)
def test_unhealthy_device_ends_rollout_and_rolls_back_or_halts(state, health, message, undo) -> None:
    it = bench()
    it.begin(undo=undo)
    members = list(it.line().members)
    effects = it.report(members[0], 1, 1, state, health, "it does not load" if state != "serving" else "")
    assert it.line().detail.startswith(f"stage 1: {members[0]}: ")
    assert message in it.line().detail
    if not undo:
        assert it.line().status == "halted"
        assert shipped(effects) == []
        it.all_well(1)
        assert shipped(it.wait(1000)) == []
        assert it.line().status == "halted"
        effects = it.steer("rollback")
    assert it.line().status == "rolling-back"
    assert {(serial, device) for _, serial, devices in shipped(effects) for device in devices} == {
        (2, device) for device in members
    }
    for device in members:
        assert it.line().status == "rolling-back"
        it.report(device, 2, 0, "withdrawn")
    assert it.line().status == "rolled-back"
    assert shipped(it.wait(1000)) == []


def test_failure_in_later_stage_undoes_earlier_stages() -> None:
    it = bench()
    it.begin()
    it.all_well(1)
    it.wait(RULES.soak)
    it.all_well(1)
    effects = it.report(next(iter(it.line().members)), 1, 1, "serving", SLOW)
    assert ordered_devices(effects) == set(TEN)


def test_allowed_number_of_unhealthy_devices_is_exact() -> None:
    for failures, borne in ((0.0, 0), (0.1, 1), (0.29, 2), (0.3, 3), (1.0, 10)):
        it = bench()
        it.begin(stages=(1.0,), rules=HealthRules(quorum=1, failures=failures))
        for number, device in enumerate(TEN):
            it.report(device, 1, 0, "failed", detail="no")
            assert (it.line().status != "running") == (number + 1 > borne)
    hundred = RolloutBench(tuple(f"d{number}" for number in range(100)), 1)
    hundred.begin(stages=(1.0,), rules=HealthRules(quorum=1, failures=0.29))  # 0.29 * 100 is a little less than 29
    for number in range(29):
        hundred.report(f"d{number}", 1, 0, "failed")
    assert hundred.line().status == "running"


def test_recovered_device_no_longer_counts_as_unhealthy() -> None:
    it = bench()
    it.begin(stages=(1.0,), rules=HealthRules(quorum=1, failures=0.1))
    it.report(TEN[0], 1, health=SLOW)
    it.report(TEN[0], 1)
    it.report(TEN[1], 1, health=SLOW)
    assert it.line().status == "running"
    it.report(TEN[2], 1, health=SLOW)
    assert it.line().status == "rolling-back"
    assert it.line().detail.index(TEN[1]) < it.line().detail.index(TEN[2])


def test_one_report_does_not_recheck_all_devices(monkeypatch) -> None:
    it = RolloutBench(tuple(f"d{number}" for number in range(300)), 1)
    it.begin(stages=(1.0,))
    for number in range(300):
        it.report(f"d{number}", 1)
    looked: list[Health] = []
    monkeypatch.setattr(rollout_progress, "complaint", lambda health, _rules: looked.append(health))
    it.report("d7", 1, health=Health(predictions=5))
    assert len(looked) <= 3


def test_health_report_of_earlier_order_is_ignored() -> None:
    it = bench(2)
    it.begin(stages=(1.0,))
    it.through()
    it.report(TEN[0], 1, 1, "serving", SLOW)
    assert it.line().status == "done"
    it.begin(2, before=1, serial=3, ticket="t2", stages=(1.0,))
    assert it.line().status == "running"
    it.report(TEN[0], 1, 1, "serving", SLOW)
    it.report(TEN[1], 3, 1, "checking", SLOW)
    assert it.line().status == "running"


def test_device_with_newer_order_does_not_count_as_serving() -> None:
    it = bench(2)
    it.begin(stages=(1.0,))
    it.report(TEN[0], 9, 5)
    assert it.line().status == "rolling-back"
    assert "already follows order 9" in it.line().detail


def test_late_report_does_not_replace_newer_one() -> None:
    it = bench(2)
    it.begin(stages=(1.0,), rules=HealthRules(quorum=1, failures=1.0))
    it.report(TEN[0], 1)
    it.report(TEN[0], 1, 0, "fetching")
    assert it.line().reports[TEN[0]].state == "serving"
    it.report(TEN[0], 1, 0, "fell-back", detail="no")
    it.report(TEN[0], 1, 1, "serving")
    assert it.line().reports[TEN[0]].state == "fell-back"
    it.report(TEN[0], 0, 1, "serving")
    assert it.line().reports[TEN[0]].serial == 1


def test_metrics_alone_are_not_recorded() -> None:
    it = bench(2)
    it.begin(stages=(1.0,))
    assert records(it.report(TEN[0], 1, health=Health(predictions=1))) == [DeviceReported]
    assert records(it.report(TEN[0], 1, health=Health(predictions=2))) == []
    (view,) = [view for view in it.ask("l")[0].devices if view.device == TEN[0]]
    assert view.health == Health(predictions=2)
    assert records(it.report(TEN[0], 1, health=SLOW))[0] is DeviceReported


def test_report_for_unknown_line_is_ignored() -> None:
    assert bench().report("dev-0", 1, line="other") == []


# --- going back


def test_rollback_waits_for_silent_devices_until_timeout() -> None:
    it = bench(4)
    it.begin(stages=(1.0,))
    it.all_well(1)
    it.steer("rollback")
    for device in TEN[:3]:
        it.report(device, 2, 0, "withdrawn")
    it.wait(RULES.timeout - 1)
    assert it.line().status == "rolling-back"
    it.wait(1)
    assert it.line().status == "rolled-back"
    assert ordered_devices(it.wait(16)) == {TEN[3]}
    it.report(TEN[3], 2, 0, "withdrawn")
    assert ordered_devices(it.wait(100)) == set()


def test_rollout_without_devices_is_rolled_back_at_once() -> None:
    it = RolloutBench()
    it.begin()
    it.steer("rollback")
    assert it.line().status == "rolled-back"


def test_rolled_back_first_release_is_not_sent_to_new_devices() -> None:
    it = bench(2, sites=1)
    it.begin(stages=(1.0,))
    it.steer("rollback")
    for device in TEN[:2]:
        it.report(device, 2, 0, "withdrawn")
    assert ordered_devices(it.join("s0", TEN[:3], revision=2)) == set()


# --- the second release, and newcomers


def second(it: RolloutBench, **how) -> list[Any]:
    it.begin(stages=(1.0,))
    it.through()
    return it.begin(2, before=1, serial=3, ticket="t2", **how)


def test_second_release_rolls_back_to_first() -> None:
    it = bench()
    second(it, stages=(0.5, 1.0))
    members = dict(it.line().members)
    assert len(members) == 5
    assert it.line().live() == {ref.digest for version in (1, 2) for ref in refs(version)}
    effects = it.report(next(iter(members)), 3, 1, "failed")
    (message, *_) = [message for message in sends(effects) if type(message).__name__ == "Ship"]
    assert (message.graph, message.card) == refs(1)
    assert msgspec.msgpack.decode(message.order.order, type=Order) == Order("sojourn", "l", 4, 1, goods(1), True)
    assert ordered_devices(effects) == set(members)
    for device in members:
        it.report(device, 4, 1)
    assert it.line().status == "rolled-back"
    # All others still follow the old order, and get the current one.
    assert ordered_devices(it.wait(5)) | ordered_devices(it.handle(TimerFired())) == set(TEN) - set(members)


def test_new_devices_get_the_served_release() -> None:
    it = bench(3, sites=1)
    second(it, stages=(1.0,))
    assert ordered_devices(it.join("s0", TEN[:4], revision=2)) == set(TEN[:3])  # the stage was chosen before it came
    it.through(3, 2)
    assert it.line().status == "done"
    assert shipped(it.wait(1)) == [("s0", 3, (TEN[3],))] or ordered_devices(it.wait(20)) == {TEN[3]}
    it.report(TEN[3], 3, 2)
    assert shipped(it.join("s0", TEN[:5], revision=3))[0][1:] == (3, (TEN[4],))
    it.report(TEN[4], 3, 2)
    it.steer("rollback")
    for device in TEN[:5]:
        it.report(device, 4, 1)
    assert it.line().status == "rolled-back"
    assert shipped(it.join("s0", TEN[:6], revision=4))[0][1:] == (4, (TEN[5],))


def test_new_devices_wait_while_rollout_is_paused_or_halted() -> None:
    it = bench(3, sites=1)
    second(it, stages=(1.0,))
    it.steer("pause")
    assert ordered_devices(it.join("s0", TEN[:4], revision=2)) == set()
    assert ordered_devices(it.wait(1000)) == set()


def test_device_joining_between_stages_is_in_the_next_one() -> None:
    it = bench(2, sites=1)
    it.begin(stages=(0.5, 1.0))
    it.join("s0", TEN[:4], revision=2)
    it.all_well(1)
    it.wait(RULES.soak)
    assert set(it.line().members) == set(TEN[:4])


# --- restarts


def rejoin(it: RolloutBench, epoch: Epoch = BOOT) -> list[Any]:
    effects = []
    for number in range(2):
        effects += it.join(f"s{number}", TEN[number::2], epoch)
    return effects


def reach_running(it: RolloutBench) -> None:
    it.begin()


def reach_soaking(it: RolloutBench) -> None:
    it.begin()
    it.all_well(1)
    it.wait(RULES.soak / 2)


def reach_paused(it: RolloutBench) -> None:
    it.begin()
    it.steer("pause", "earlier")


def reach_halted(it: RolloutBench) -> None:
    it.begin(undo=False)
    it.report(next(iter(it.line().members)), 1, 0, "failed")


def reach_rolling_back(it: RolloutBench) -> None:
    it.begin()
    it.report(next(iter(it.line().members)), 1, 0, "failed")


def reach_rolled_back(it: RolloutBench) -> None:
    reach_rolling_back(it)
    for device in it.line().members:
        it.report(device, 2, 0, "withdrawn")


def reach_done(it: RolloutBench) -> None:
    it.begin()
    it.through()


STATES = {
    "running": reach_running,
    "soaking": reach_soaking,
    "paused": reach_paused,
    "halted": reach_halted,
    "rolling-back": reach_rolling_back,
    "rolled-back": reach_rolled_back,
    "done": reach_done,
}


@pytest.mark.parametrize("state", STATES)
def test_restart_resumes_rollout_in_any_state(state) -> None:
    it = bench()
    STATES[state](it)
    before, members = it.line().status, dict(it.line().members)
    it.restart()
    assert (it.line().status, it.line().members) == (before, members)
    it.wait(3)
    asked = ordered_devices(rejoin(it)) | ordered_devices(it.wait(2))
    assert asked == (set() if before in ("paused", "halted") else set(members))
    if state == "soaking":
        it.all_well(1)
        it.wait(RULES.soak - 6)
        assert it.line().stage == 1  # it soaks again
    if before == "paused":
        it.steer("resume")
    if before == "halted":
        it.steer("rollback")
    if it.line().status == "running":
        it.through()
        assert it.line().status == "done"
    elif it.line().status == "rolling-back":
        for device in members:
            it.report(device, 2, 0, "withdrawn")
        assert it.line().status == "rolled-back"


def test_health_reports_survive_a_restart() -> None:
    it = bench()
    it.begin(stages=(1.0,), rules=HealthRules(quorum=1, failures=0.1, timeout=100.0))
    it.report(TEN[0], 1, 0, "failed")
    it.restart()
    rejoin(it)
    it.report(TEN[1], 1, 1, "serving", SLOW)
    assert it.line().status == "rolling-back"


# --- never woken for nothing


@pytest.mark.parametrize("seed", range(120))
def test_rollout_requests_no_wakeup_without_work(seed) -> None:
    draw = random.Random(seed)
    it = RolloutBench(TEN[: draw.randint(0, 4)], draw.randint(1, 2))
    serial, version, revision = 1, 1, 1
    for step in range(40):
        match draw.randrange(9):
            case 0:
                known = it.cloud.state.lines.get("l")
                before = known.serves.read.version if known else 0
                soak, timeout = draw.choice([0.0, 5.0]), draw.choice([0.0, 7.0, 50.0])
                it.begin(
                    version,
                    before=before,
                    serial=serial,
                    ticket=f"t{step}",
                    undo=draw.random() < 0.5,
                    rules=HealthRules(
                        soak=soak,
                        timeout=timeout,
                        failures=draw.choice([0.0, 0.5, 1.0]),
                        quorum=draw.choice([1, 2, 2, 3]),
                    ),
                    stages=draw.choice([(1.0,), (0.3, 1.0), (0.1, 0.2, 1.0)]),
                )
                serial, version = serial + 2, version + 1
            case 1:
                it.steer(draw.choice(["pause", "resume", "rollback"]), f"s{step}")
            case 2 | 3 | 4:
                state = draw.choice(["fetching", "checking", *["serving"] * 3, "failed", "fell-back", "withdrawn"])
                it.report(draw.choice(TEN), draw.randint(max(0, serial - 3), serial), draw.randint(0, version), state)
            case 5:
                revision += 1
                it.join(f"s{draw.randint(0, 1)}", tuple(draw.sample(TEN, draw.randint(0, 6))), revision=revision)
            case 6:
                it.restart()
            case 7:
                it.handle(Present(site("s0"), BOOT, draw.choice([BORN, DEAD])))
            case _:
                pass
        it.wait(draw.choice([0.0, 0.5, 3.0, 20.0, 200.0]))
