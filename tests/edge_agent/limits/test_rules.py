"""Limits: training is slowed first, then declined with the reason; every limit can be switched off."""

from __future__ import annotations

import datetime as dt
import os
from typing import get_args

import pytest

from edge_agent.limits import (
    MIN_PACE,
    Limits,
    LimitSettings,
    allowed_now,
    lack_of_memory,
    pace,
    read_machine,
    refusal,
    too_hot,
)
from edge_agent.machine_readings import Readings
from edge_agent.settings import AgentSettings
from sojourn.errors import ConfigError
from sojourn.protocol.wire import VisitReason
from sojourn.settings import read_text
from tests.edge_agent.limits.fake_root import FakeRoot
from tests.there import there

NOON = dt.time(12)
HEAT = LimitSettings(throttle_at=70, stop_at=80)
ALL = LimitSettings(
    memory=200,
    free_memory=64,
    free_disk=100,
    throttle_at=70,
    stop_at=80,
    hours=("08:00-18:00",),
    metered_interfaces=("wwan0",),
    metered_file="/run/metered",
    battery=30,
)
FINE = Readings(60.0, 300.0, 500.0, ("eth0",), marked_metered=False, charge=90, worker=150.0)


def seen(**what) -> Readings:
    return Readings(**({name: getattr(FINE, name) for name in FINE.__dataclass_fields__} | what))


def why(settings: LimitSettings, found: Readings, now: dt.time = NOON, *, hot: bool = False) -> str | None:
    refused = refusal(settings, found, now, hot=hot)
    return refused[0] if refused else None


def test_pace_falls_from_full_to_slowest_with_temperature() -> None:
    expected = {20: 1.0, 69.9: 1.0, 70: 1.0, 75: 0.55, 80: MIN_PACE, 95: MIN_PACE}
    assert {celsius: pace(HEAT, Readings(celsius)) for celsius in expected} == pytest.approx(expected)
    assert pace(LimitSettings(throttle_at=70), Readings(70)) == MIN_PACE
    assert pace(LimitSettings(stop_at=80), Readings(79)) == 1.0
    assert pace(HEAT, Readings(None)) == 1.0


def test_too_hot_ends_only_below_the_throttle_temperature() -> None:
    course = [(79, False), (80, True), (79, True), (70, True), (69.9, False), (79, False), (85, True)]
    hot = False
    for celsius, expected in course:
        hot = too_hot(HEAT, celsius, was=hot)
        assert hot == expected, celsius


def test_without_throttling_too_hot_ends_five_degrees_lower() -> None:
    only = LimitSettings(stop_at=80)
    assert [too_hot(only, celsius, was=True) for celsius in (75, 74.9)] == [True, False]


def test_no_limit_or_no_sensor_is_never_too_hot() -> None:
    assert not too_hot(LimitSettings(throttle_at=70), 140, was=False)
    assert not too_hot(HEAT, None, was=True)


@pytest.mark.parametrize(
    ("hours", "now", "expected"),
    [
        ((), "00:00", True),
        (("22:00-06:00",), "22:00", True),
        (("22:00-06:00",), "05:59", True),
        (("22:00-06:00",), "00:00", True),
        (("22:00-06:00",), "06:00", False),
        (("22:00-06:00",), "21:59", False),
        (("08:00-12:00", "13:00-17:00"), "12:00", False),
        (("08:00-12:00", "13:00-17:00"), "16:59", True),
        (("07:00-07:00",), "03:00", True),
    ],
)
def test_allowed_hours_are_applied_by_time_of_day(hours, now, expected) -> None:
    assert allowed_now(hours, dt.time.fromisoformat(now)) == expected


def test_visit_is_accepted_when_all_limits_are_met() -> None:
    assert refusal(ALL, FINE, NOON, hot=False) is None


@pytest.mark.parametrize(
    ("found", "word", "lifted"),
    [
        (seen(worker=200.1), "memory", "memory"),
        (seen(free_memory=63.9), "memory", "free_memory"),
        (seen(free_disk=99.0), "disk", "free_disk"),
        (seen(routes=("eth0", "wwan0")), "metered", "metered_interfaces"),
        (seen(charge=29), "power", "battery"),
    ],
)
def test_each_limit_declines_with_its_reason_unless_removed(found, word, lifted) -> None:
    assert word in get_args(VisitReason)
    assert why(ALL, found) == word
    others = {name: getattr(ALL, name) for name in ALL.__struct_fields__ if name != lifted}
    assert why(LimitSettings(**others), found) is None


def test_heat_hours_and_metered_marker_file_decline() -> None:
    assert refusal(ALL, seen(celsius=81.2), NOON, hot=True) == ("hot", "81 °C; training resumes below 70 °C")
    assert refusal(ALL, FINE, dt.time(18, 5), hot=False) == (
        "hours",
        "local time 18:05; training is allowed at 08:00-18:00",
    )
    assert why(ALL, seen(marked_metered=True)) == "metered"


def test_unknown_readings_never_decline() -> None:
    assert refusal(ALL, Readings(), NOON, hot=False) is None


def test_reading_exactly_at_the_limit_is_accepted() -> None:
    assert refusal(ALL, seen(worker=200.0, free_memory=64.0, free_disk=100.0, charge=30), NOON, hot=False) is None


def test_only_readings_required_by_limits_are_taken(tmp_path) -> None:
    root = FakeRoot(tmp_path)
    root.heat(50)
    root.memory(300)
    root.routes(("wwan0", 1))
    root.supply("BAT0", "Battery", status="Discharging", capacity=20)
    assert read_machine(LimitSettings(root=str(root.path)), tmp_path, 1) == Readings()
    full = read_machine(
        LimitSettings(
            **{name: getattr(ALL, name) for name in ALL.__struct_fields__}
            | {"root": str(root.path), "metered_file": str(tmp_path)}
        ),
        tmp_path,
    )
    assert (full.celsius, full.free_memory, full.routes, full.charge) == (50, 300, ("wwan0",), 20)
    assert full.marked_metered
    assert there(full.free_disk) > 0


def test_limits_stay_hot_until_cooled_below_throttle_at(tmp_path) -> None:
    root = FakeRoot(tmp_path)
    limits = Limits(LimitSettings(throttle_at=70, stop_at=80, root=str(root.path)), tmp_path)
    lines = []
    for celsius in (60, 75, 85, 75, 65):
        root.heat(celsius)
        share, refused = limits.judge()
        lines.append((round(share, 2), refused and refused[0], (limits.objection() or [None])[0]))
    assert lines == [
        (1.0, None, None),
        (0.55, None, None),
        (0.1, "hot", "hot"),
        (0.55, "hot", "hot"),
        (1.0, None, None),
    ]


def test_clock_is_read_at_every_check(tmp_path) -> None:
    times = iter([dt.datetime(2026, 1, 1, 23), dt.datetime(2026, 1, 2, 7)])  # noqa: DTZ001  # local time
    limits = Limits(LimitSettings(hours=("22:00-06:00",)), tmp_path, lambda: next(times))
    assert [limits.objection() is None for _ in range(2)] == [True, False]


def test_limits_without_readings_are_idle(tmp_path) -> None:
    assert Limits(LimitSettings(cpu_share=0.5, root="/host"), tmp_path).idle
    assert not Limits(HEAT, tmp_path).idle
    assert not Limits(LimitSettings(memory=100), tmp_path).idle


HEAD = 'name = "pi"\ndata = { path = "x.npz" }\n[limits]\n'


@pytest.mark.parametrize(
    ("text", "words"),
    [
        ("throttle_at = 80\nstop_at = 70", "throttle_at 80 must be below stop_at 70"),
        ('hours = ["22-6"]', "'22-6' is not a span like '22:00-06:00'"),
        ('hours = ["24:00-06:00"]', "is not a span"),
        ("cpu_share = 0.0", "limits.cpu_share"),
        ("memori = 5", "did you mean 'memory'?"),
    ],
)
def test_nonsensical_limits_are_rejected(text, words) -> None:
    with pytest.raises(ConfigError) as error:
        read_text(HEAD + text, AgentSettings, "agent.toml")
    assert words in str(error.value)


def test_limits_are_read_from_the_settings_file() -> None:
    limits = read_text(HEAD + 'memory = 300\nhours = ["22:00-06:00"]\ncpu_share = 0.5', AgentSettings, "a").limits
    assert (limits.memory, limits.hours, limits.cpu_share, limits.stop_at) == (300, ("22:00-06:00",), 0.5, None)


def test_memory_check_counts_swap_worker_and_reserve(tmp_path) -> None:
    root = FakeRoot(tmp_path)
    root.memory(200)
    needed = 250 << 20
    limits = Limits(LimitSettings(root=str(root.path)), tmp_path)
    reason, text = there(limits.room(needed))
    assert reason == "memory"
    assert "takes about 250 MB; 200 MB are available here" in text
    root.write("proc/meminfo", f"MemAvailable: {200 * 1024} kB\nSwapFree: {100 * 1024} kB\n")
    assert limits.room(needed) is None
    kept = Limits(LimitSettings(root=str(root.path), free_memory=64), tmp_path)
    assert "limits.free_memory reserves 64 MB" in there(kept.room(needed))[1]
    assert kept.room(1, os.getpid()) is None
    assert lack_of_memory(LimitSettings(), 250, 200, worker=60) is None
    assert lack_of_memory(LimitSettings(memory=240), 250, 1000) is not None
    assert lack_of_memory(LimitSettings(), 250, None) is None
