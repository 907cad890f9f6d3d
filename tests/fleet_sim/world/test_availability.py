"""Availability of devices: exact times, and properties of all plans."""

from __future__ import annotations

from itertools import pairwise
from math import inf

import msgspec
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from edge_agent.agent import Agent
from edge_agent.training.objectives import NAMES
from fleet_sim.world import availability
from fleet_sim.world.availability import (
    Availability,
    Diurnal,
    DutyCycle,
    Leaving,
    fails,
    follow,
    is_available,
    next_change,
    objection,
    presence,
)
from fleet_sim.world.memory_fleet import MemoryFleet
from fleet_sim.world.world import World
from hierarchy.edge.server import EdgeServer
from sojourn.data.source import DataSettings
from sojourn.protocol.task import ABILITIES
from sojourn.protocol.wire import Offer
from tests.fleet_sim.machines import machine_of

DEVICES = [f"dev-{number}" for number in range(200)]
ALWAYS = Availability()
HALF = Availability(duty_cycle=DutyCycle(on=30, of=60))
SPANS = st.floats(0.001, 1e6)
PLANS = st.builds(
    Availability,
    duty_cycle=st.none() | st.builds(DutyCycle, on=SPANS, of=SPANS),
    diurnal=st.none() | st.builds(Diurnal, opens=st.floats(0, 24), closes=st.floats(0, 24), spread=st.floats(0, 24)),
    leaving=st.none() | st.builds(Leaving, chance=st.floats(0, 1), within=SPANS),
)
TIMES = st.floats(0, 1e7)


@pytest.fixture
def share(monkeypatch) -> dict[str, float]:
    """Returns the given draws by name, instead of random ones."""
    given: dict[str, float] = {}
    monkeypatch.setattr(availability, "_share", lambda _seed, name, *_names: given[name])
    return given


def test_device_without_a_plan_is_always_available() -> None:
    assert is_available(ALWAYS, "dev", 1e9, 1)
    assert next_change(ALWAYS, "dev", 1e9, 1) == inf
    assert list(presence(ALWAYS, "dev", 1, 1e9)) == []
    assert not fails(ALWAYS, "dev", "visit", 1)


def test_duty_cycle_is_exact_to_the_second(share) -> None:
    share["duty-cycle"] = 0.25  # of 60 s: at 0 the cycle is 15 s old
    assert list(presence(HALF, "dev", 1, 140)) == [(15, False), (45, True), (75, False), (105, True), (135, False)]
    there = [is_available(HALF, "dev", now, 1) for now in (0, 14.999, 15, 44.999, 45, 74.999, 75)]
    assert there == [True, True, False, False, True, True, False]


def test_device_can_start_offline(share) -> None:
    share["duty-cycle"] = 0.75
    assert list(presence(HALF, "dev", 1, 100)) == [(0, False), (15, True), (45, False), (75, True)]


def test_always_on_duty_cycle_never_changes() -> None:
    plan = Availability(duty_cycle=DutyCycle(on=60, of=60))
    assert next_change(plan, "dev", 59.5, 1) == inf
    assert all(is_available(plan, device, 59.5, 1) for device in DEVICES)


def test_opening_hours_can_span_midnight(share) -> None:
    share["diurnal"] = 0.5  # the middle: no shift
    plan = Availability(diurnal=Diurnal(opens=22, closes=6))
    hour = 3600
    assert list(presence(plan, "dev", 1, 48 * hour)) == [
        (6 * hour, False),
        (22 * hour, True),
        (30 * hour, False),
        (46 * hour, True),
    ]


def test_opening_hours_shift_by_up_to_half_the_spread(share) -> None:
    plan = Availability(diurnal=Diurnal(opens=8, closes=18, spread=4))
    for drawn, opens in ((0.0, 6), (0.5, 8), (0.75, 9)):
        share["diurnal"] = drawn
        assert list(presence(plan, "dev", 1, 86_400)) == [
            (0, False),
            (opens * 3600, True),
            ((opens + 10) * 3600, False),
        ]


@pytest.mark.parametrize(("opens", "closes"), [(0, 24), (7, 7), (24, 0)])
def test_full_day_opening_never_closes(opens, closes) -> None:
    plan = Availability(diurnal=Diurnal(opens=opens, closes=closes, spread=6))
    assert list(presence(plan, "dev", 1, 1e6)) == []


def test_device_that_left_never_returns(share) -> None:
    share |= {"leaving": 0.2, "leaving-when": 0.5, "duty-cycle": 0.0}
    plan = Availability(leaving=Leaving(chance=0.3, within=80), duty_cycle=HALF.duty_cycle)
    assert list(presence(plan, "dev", 1, 1e6)) == [(30, False)]  # 40 s: it leaves while it is offline
    assert next_change(plan, "dev", 30, 1) == 40
    assert next_change(plan, "dev", 40, 1) == inf
    share["leaving"] = 0.3  # not below the probability: it stays
    assert next_change(plan, "dev", 40, 1) == 60


def test_device_is_available_only_if_all_rules_agree(share) -> None:
    share |= {"duty-cycle": 0.0, "diurnal": 0.5}
    plan = Availability(duty_cycle=DutyCycle(on=7200, of=14_400), diurnal=Diurnal(opens=1, closes=5))
    hour = 3600
    assert list(presence(plan, "dev", 1, 24 * hour)) == [
        (0, False),
        (hour, True),
        (2 * hour, False),
        (4 * hour, True),
        (5 * hour, False),
    ]


def test_device_offline_for_two_reasons_waits_for_the_later(share) -> None:
    share |= {"duty-cycle": 0.0, "diurnal": 0.5}
    plan = Availability(duty_cycle=DutyCycle(on=1, of=2), diurnal=Diurnal(opens=1, closes=5))
    assert next_change(plan, "dev", 1.5, 1) == 3600
    assert next_change(plan, "dev", 3600, 1) == 3601


def test_availability_shares_match_the_settings() -> None:
    at_once = sum(is_available(HALF, device, 1000.0, 5) for device in DEVICES)
    assert 80 < at_once < 120
    lost = sum(fails(Availability(dropout=0.4), device, f"visit {n}", 5) for device in DEVICES for n in range(10))
    assert 0.36 < lost / 2000 < 0.44
    plan = Availability(leaving=Leaving(chance=0.25, within=100))
    assert 30 < sum(not is_available(plan, device, 100, 5) for device in DEVICES) < 70
    assert all(is_available(plan, device, 0, 5) for device in DEVICES)


def test_availability_varies_by_device_seed_and_visit() -> None:
    def seen(seed: int) -> list[bool]:
        return [is_available(HALF, device, 1000.0, seed) for device in DEVICES]

    assert len(set(seen(1))) == 2
    assert seen(1) == seen(1)
    assert seen(1) != seen(2)
    plan = Availability(dropout=0.5)
    assert len({fails(plan, "dev", f"visit {number}", 1) for number in range(20)}) == 2
    assert not any(fails(Availability(), "dev", f"visit {number}", 1) for number in range(20))
    assert all(fails(Availability(dropout=1.0), "dev", f"visit {number}", 1) for number in range(20))


@settings(deadline=None)  # the machine may be busy
@given(PLANS, st.sampled_from(DEVICES), TIMES, st.integers(0, 99), st.floats(0, 1, exclude_max=True))
def test_availability_is_constant_until_the_next_change(plan, device, now, seed, share) -> None:
    after = next_change(plan, device, now, seed)
    assert after > now
    between = now + share * (min(after, now + 1e6) - now)
    if between < after:
        assert is_available(plan, device, between, seed) == is_available(plan, device, now, seed)


@settings(deadline=None)  # the machine may be busy
@given(st.floats(0.001, 1e5), st.floats(0.001, 1e5), st.sampled_from(DEVICES), TIMES)
def test_duty_cycle_flips_exactly_at_its_changes(first, second, device, now) -> None:
    plan = Availability(duty_cycle=DutyCycle(on=first, of=first + second))
    for _ in range(5):
        after = next_change(plan, device, now, 3)
        assert is_available(plan, device, after, 3) is not is_available(plan, device, now, 3)
        now = after


@settings(deadline=None)  # the machine may be busy
@given(PLANS, st.sampled_from(DEVICES), st.integers(0, 99))
def test_presence_alternates_and_matches_is_available(plan, device, seed) -> None:
    changes = []
    for change in presence(plan, device, seed, 1e5):
        changes.append(change)
        if len(changes) == 20:
            break
    assert all(first[1] is not second[1] and first[0] < second[0] for first, second in pairwise(changes))
    assert all(is_available(plan, device, when, seed) is there for when, there in changes)
    assert changes[:1] != [(0.0, True)]


def test_unknown_or_invalid_plan_keys_are_rejected() -> None:
    for wrong in ({"dropout": 1.5}, {"duty_cycle": {"on": 5}}, {"diurnal": {"opens": 25, "closes": 3}}, {"hours": 3}):
        with pytest.raises(msgspec.ValidationError):
            msgspec.convert(wrong, Availability)


def test_agent_declines_outside_its_hours(share) -> None:
    share["duty-cycle"] = 0.0
    world = World()
    offer = Offer("1", "simulated", "onnxruntime", 1, 0, NAMES, "simulated", (), ABILITIES)
    agent = Agent("dev", offer, objection=objection(HALF, "dev", 1, lambda: world.now))
    assert agent._objection() is None
    world.now = 30.0
    assert agent._objection() == ("hours", "not at this time")


class StartsAndKills:
    """A fleet that records starts and kills."""

    def __init__(self) -> None:
        self.world = World()
        self.received: list[tuple[float, str, str]] = []

    def start(self, name: str) -> None:
        self.received.append((self.world.now, "start", name))

    def kill(self, name: str) -> None:
        self.received.append((self.world.now, "kill", name))


def test_fleet_follows_the_plan() -> None:
    fleet = StartsAndKills()
    follow(fleet, HALF, DEVICES[:20], 7)
    fleet.world.run(lambda: False, limit=500)
    for device in DEVICES[:20]:
        times, words = zip(
            *((when, word == "start") for when, word, name in fleet.received if name == device), strict=True
        )
        expected = list(presence(HALF, device, 7, 500))
        assert times == pytest.approx([when for when, _ in expected], abs=1e-9)
        assert list(words) == [there for _, there in expected]


def test_nodes_run_only_while_their_device_is_available() -> None:
    devices = DEVICES[:8]
    fleet = MemoryFleet({name: DataSettings(path="none.npz") for name in devices}, {"site": tuple(devices)})
    follow(fleet, HALF, devices, 3)
    seen = set()
    for now in (1.0, 33.0, 64.0, 121.0):
        fleet.world.run(lambda: False, limit=now)
        for name in devices:
            there = is_available(HALF, name, now, 3)
            assert fleet.nodes[name]._alive is there
            assert (name in machine_of(fleet, "site", EdgeServer).roster.members) is there
            seen.add(there)
    assert seen == {True, False}
