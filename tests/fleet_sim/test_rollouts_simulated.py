"""Rollouts over a simulated fleet: good releases reach all devices, bad ones none, despite faults.

`CHAOS_SEEDS=5000 pytest tests/fleet_sim/test_rollouts_simulated.py` runs longer.
"""

from __future__ import annotations

import os
import random
from typing import Any

import pytest

from fleet_sim.world.memory_fleet import CLOUD
from sojourn.links.memory import Faults
from sojourn.node import node as node_module
from sojourn.node.machine import Send
from sojourn.protocol.release import HealthRules
from sojourn.protocol.release_messages import DeviceReport, ReleaseReport
from sojourn.protocol.topics import Address
from tests.fleet_sim.release_fleet import DEVICES, KINDS, NODES, SITES, STAGES, ReleaseFleet, serving
from tests.fleet_sim.test_kills import after, wait

SEEDS = int(os.environ.get("CHAOS_SEEDS", "60"))


def currents(fleet: ReleaseFleet) -> dict[str, int]:
    return {device: fleet.disks[device].current for device in DEVICES}


def all_at(version: int) -> dict[str, int]:
    return dict.fromkeys(DEVICES, version)


def test_first_release_reaches_all_devices_stage_by_stage() -> None:
    fleet = ReleaseFleet()
    fleet.world.run(lambda: fleet.machine.sites.count() == len(DEVICES))
    fleet.rollout(1)
    sizes = []
    while not fleet.line.over:
        stage = fleet.line.stage
        sizes.append(len(fleet.line.members))

        def went_on(stage: int = stage) -> bool:
            return fleet.line.stage != stage or fleet.line.over

        assert fleet.world.run(went_on)
    assert sizes == [1, 5, 10]
    fleet.settle()
    assert fleet.line.status == "done"
    assert currents(fleet) == all_at(1)
    fleet.check()


def test_good_release_replaces_the_previous_one() -> None:
    fleet = serving()
    fleet.rollout(2)
    fleet.settle()
    assert fleet.line.status == "done"
    assert currents(fleet) == all_at(2)
    fleet.check()


def test_release_files_that_are_not_inlined_are_fetched(monkeypatch) -> None:
    monkeypatch.setattr(node_module, "INLINE", 0)
    test_good_release_replaces_the_previous_one()


@pytest.mark.parametrize("undo", [True, False])
@pytest.mark.parametrize("kind", KINDS)
def test_bad_release_stops_at_its_stage_and_is_rolled_back(kind, undo) -> None:
    fleet = serving()
    fleet.bad[2] = (kind, DEVICES)
    fleet.rollout(2, undo=undo)
    if not undo:
        fleet.world.run(lambda: fleet.line.status == "halted", fleet.world.now + 100)
        assert fleet.line.status == "halted"
        fleet.steer("rollback")
    fleet.settle()
    assert (fleet.line.status, fleet.line.stage) == ("rolled-back", 1)
    assert currents(fleet) == all_at(1)
    touched = [device for device in DEVICES if 3 in fleet.orders[device]]
    assert len(touched) == 2  # the device of the first stage, and the second one that reported a failure
    assert sorted(site for site, there in SITES.items() if set(there) & set(touched)) == sorted(SITES)
    fleet.check()


@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.parametrize("stage", [1, 2, 3])
def test_single_complaining_device_is_rolled_back_alone(kind, stage) -> None:
    fleet = serving()
    fleet.rollout(2)
    victim = fleet.line.ranked(DEVICES)[{1: 0, 2: 2, 3: 9}[stage]]
    fleet.bad[2] = (kind, (victim,))
    fleet.settle()
    assert fleet.line.status == "done"
    assert list(fleet.line.set_aside) == [victim]
    assert currents(fleet) == all_at(2) | {victim: 1}
    fleet.check()
    fleet.rollout(3)  # the next release finds it in the same state as all others
    fleet.settle()
    assert currents(fleet) == all_at(3)
    fleet.check()


@pytest.mark.parametrize("kind", KINDS)
def test_quorum_of_one_rolls_back_on_a_single_complaint(kind) -> None:
    fleet = serving()
    fleet.rollout(2, rules=HealthRules(soak=5.0, timeout=300.0, quorum=1))
    victim = fleet.line.ranked(DEVICES)[9]
    fleet.bad[2] = (kind, (victim,))
    fleet.settle()
    assert fleet.line.status == "rolled-back"
    assert victim in fleet.line.detail
    assert currents(fleet) == all_at(1)
    fleet.check()


@pytest.mark.parametrize("kind", KINDS)
def test_two_complaints_roll_back_unless_from_one_site(kind) -> None:
    for where, ends in ((("dev-1", "dev-8"), 1), (("dev-1", "dev-2"), 2)):
        fleet = serving()
        fleet.bad[2] = (kind, where)
        fleet.rollout(2)
        fleet.settle()
        assert fleet.line.status == ("rolled-back" if ends == 1 else "done"), fleet.line.detail
        assert currents(fleet) == all_at(ends) | dict.fromkeys(where, 1)
        fleet.check()


def test_lying_site_does_not_block_the_release_elsewhere() -> None:
    """The site forwards no orders, and reports failures of all devices."""
    fleet = serving()
    edge: Any = fleet.nodes["site-b"].node.machine
    edge._shipping.take = lambda _message, _present: [
        Send(Address("cloud", CLOUD), DeviceReport(device, ReleaseReport("l", 3, 1, "failed", "a lie")))
        for device in (*DEVICES, "invented")
    ]
    fleet.rollout(2)
    fleet.world.run(lambda: fleet.line.over, fleet.world.now + 3000)
    assert fleet.line.status == "done", fleet.line.detail
    wait(fleet, 60)
    assert currents(fleet) == dict.fromkeys(SITES["site-a"], 2) | dict.fromkeys(SITES["site-b"], 1)
    assert set(fleet.line.set_aside) == set(SITES["site-b"])
    assert "invented" not in fleet.line.reports


def test_bad_first_release_is_withdrawn() -> None:
    fleet = ReleaseFleet()
    fleet.world.run(lambda: fleet.machine.sites.count() == len(DEVICES))
    fleet.bad[1] = ("inaccurate", DEVICES)
    fleet.rollout(1)
    fleet.settle()
    assert fleet.line.status == "rolled-back"
    assert currents(fleet) == all_at(0)
    fleet.check()


def test_next_release_after_a_rollback_reaches_all_devices() -> None:
    fleet = serving()
    fleet.bad[2] = ("slow", DEVICES)
    fleet.rollout(2)
    fleet.settle()
    fleet.rollout(3)
    fleet.settle()
    assert fleet.line.status == "done"
    assert currents(fleet) == all_at(3)
    fleet.steer("rollback")
    wait(fleet, 1.0)
    fleet.settle()
    assert currents(fleet) == all_at(1)
    fleet.check()


def test_device_offline_during_rollout_gets_the_release_later() -> None:
    fleet = serving()
    fleet.kill("dev-3")
    wait(fleet, 5)
    fleet.rollout(2)
    fleet.world.run(lambda: fleet.line.over)
    assert fleet.disks["dev-3"].current == 1
    fleet.start("dev-3")
    wait(fleet, 5)
    fleet.settle()
    assert currents(fleet) == all_at(2)
    fleet.check()


def test_device_offline_during_rollback_is_rolled_back_later() -> None:
    fleet = serving()
    fleet.rollout(2)
    fleet.world.run(lambda: fleet.line.status == "done")
    fleet.kill("dev-3")
    fleet.steer("rollback")
    fleet.world.run(lambda: fleet.line.status == "rolled-back")
    assert fleet.disks["dev-3"].current == 2
    fleet.start("dev-3")
    wait(fleet, 5)
    fleet.settle()
    assert currents(fleet) == all_at(1)
    fleet.check()


def test_device_with_a_new_disk_gets_the_current_release() -> None:
    fleet = serving()
    fleet.kill("dev-3")
    wait(fleet, 5)
    del fleet.stores["dev-3"], fleet.disks["dev-3"]
    fleet.orders["dev-3"].clear()
    fleet.start("dev-3")
    wait(fleet, 60)
    assert currents(fleet) == all_at(1)
    fleet.check()


@pytest.mark.parametrize("name", ["dev-0", "site-a", "cloud"])
@pytest.mark.parametrize("kind", ["good", "does not load", "slow"])
def test_node_killed_at_any_time_does_not_change_the_outcome(kind, name) -> None:
    ends = {"good": ("done", 2)}.get(kind, ("rolled-back", 1))
    for moment in range(1, 420, 41):
        fleet = serving()
        fleet.lag = 0.05
        fleet.bad[2] = (kind, DEVICES)
        fleet.rollout(2, stages=(1.0,))
        after(fleet, moment)
        fleet.kill(name)
        wait(fleet, 3)
        fleet.start(name)
        wait(fleet, 1)
        fleet.settle()
        assert fleet.line.status == ends[0], (moment, fleet.line.detail)
        assert currents(fleet) == all_at(ends[1]), moment
        fleet.check()


@pytest.mark.parametrize("seed", range(SEEDS))
def test_random_failures_keep_rollouts_consistent(seed, monkeypatch) -> None:
    draw = random.Random(seed)
    monkeypatch.setattr(node_module, "INLINE", draw.choice([0, 64 << 10]))
    monkeypatch.setattr(node_module, "RECORDS_PER_SNAPSHOT", draw.choice([1, 5, 512]))
    monkeypatch.setattr(node_module, "SECONDS_PER_SWEEP", draw.choice([0.5, 30.0]))
    fleet = serving()
    kind = disturbed(fleet, draw)
    recovered(fleet)
    fleet.check()
    if fleet.line.status == "rolled-back":
        assert currents(fleet) == all_at(1)
    elif kind == "good":
        assert currents(fleet) == all_at(2)


def disturbed(fleet: ReleaseFleet, draw: random.Random) -> str:
    """Run a rollout over bad links, with nodes that die and restart, and with interfering operators."""
    faults = Faults(draw.random() * 0.3, draw.random() * 0.3, 0.01, draw.random() * 3)
    for broker in fleet.brokers.values():
        broker.faults = faults
        broker._random.seed(draw.random())
    fleet.pace, fleet.lag = draw.choice([0.1, 1.0, 10.0]), draw.choice([0.0, 0.1, 5.0])
    kind = draw.choice(["good"] * len(KINDS) + [*KINDS])
    where = draw.choice([DEVICES, tuple(draw.sample(DEVICES, draw.randint(1, 3)))])
    fleet.bad[2] = (kind, where)
    rules = HealthRules(soak=draw.choice([0.0, 5.0, 40.0]), timeout=draw.choice([20.0, 300.0]))
    fleet.rollout(2, stages=draw.choice([STAGES, (1.0,)]), rules=rules, undo=draw.random() < 0.8)
    for _ in range(draw.randint(1, 6)):
        after(fleet, draw.randint(1, 150))
        if draw.random() < 0.2:
            fleet.steer(draw.choice(["pause", "resume", "rollback"]))
        down = draw.sample(NODES, draw.randint(1, 3))
        for name in down:
            fleet.kill(name)
        wait(fleet, draw.choice([0.0, 0.1, 2.0, 20.0]))
        for name in down:
            fleet.start(name)
    return kind


def recovered(fleet: ReleaseFleet) -> None:
    """Restore links and nodes, and let an operator handle what waits for a decision."""
    for broker in fleet.brokers.values():
        broker.faults = Faults()
    for device in DEVICES:
        fleet.use(device)
    wait(fleet, 30.0)
    for _ in range(20):
        if fleet.line.status == "paused":
            fleet.steer("resume")
        elif fleet.line.status == "halted":
            fleet.steer("rollback")
        wait(fleet, 400.0)
        if fleet.line.over:
            break
    fleet.settle()
