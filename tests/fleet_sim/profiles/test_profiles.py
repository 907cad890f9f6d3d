"""Boards and links by name, their sources, and the times that follow from them."""

from __future__ import annotations

import re
from pathlib import Path

import msgspec
import pytest

from edge_agent.setup.profiling import text_of
from fleet_sim.board_profiles import LINKS, PROFILES, REFERENCE, SHARE, find_link, find_profile
from fleet_sim.world import timing
from fleet_sim.world.timing import measured_cost, seconds_there, training_seconds
from sojourn.errors import ConfigError
from sojourn.model.workload import built_in
from sojourn.profile import NUMBERS, DeviceProfile, LinkProfile

PAGE = (Path(__file__).parents[3] / "docs" / "profiles.md").read_text(encoding="utf-8")
CITED = r"issue \d+|sbc-bench|data sheet|product brief|\.com|\.dts|Fastvideo"
DEVICE = DeviceProfile(flops=1e9, step_seconds=0.5, visit_seconds=10.0, memory=1, cores=4)


def test_documented_boards_exist() -> None:
    assert set(PROFILES) == {"raspberry-pi-zero-2", "raspberry-pi-4", "raspberry-pi-5", "jetson-nano", "jetson-orin"}
    assert {name: profile.name for name, profile in PROFILES.items()} == {name: name for name in PROFILES}


@pytest.mark.parametrize("profile", [*PROFILES.values(), REFERENCE], ids=lambda one: one.name)
def test_every_number_of_a_board_has_a_source(profile) -> None:
    assert set(profile.sources) == set(NUMBERS)
    for source in profile.sources.values():
        # A citation, a measurement, or an assumption with its reason.
        assert re.search(rf"{CITED}|measured with|assumed: .{{15}}", source)


@pytest.mark.parametrize("name", LINKS)
def test_every_number_of_a_link_has_a_source(name) -> None:
    line, sources = LINKS[name]
    assert set(sources) == set(LinkProfile.__struct_fields__)
    assert all(len(source) > 20 for source in sources.values())
    assert find_link(name) is line


def test_every_profile_survives_a_round_trip() -> None:
    for profile in PROFILES.values():
        assert msgspec.convert(msgspec.to_builtins(profile), type(profile)) == profile


def test_speeds_are_derived_as_documented() -> None:
    assert pytest.approx(20.3 / 59.6) == SHARE
    assert PROFILES["raspberry-pi-5"].device.flops == pytest.approx(2 * 30.249e9 * 20.3 / 59.6)
    assert PROFILES["raspberry-pi-4"].device.step_seconds == pytest.approx(0.54e-3 * 4000 / 1769)
    by_speed = sorted(PROFILES, key=lambda name: PROFILES[name].device.flops)
    assert by_speed == ["raspberry-pi-zero-2", "jetson-nano", "raspberry-pi-4", "jetson-orin", "raspberry-pi-5"]


def test_documentation_page_matches_the_profiles() -> None:
    for profile in PROFILES.values():
        device = profile.device
        numbers = device.flops / 1e9, device.step_seconds * 1e3, device.visit_seconds
        assert f"| `{profile.name}` | {' | '.join(f'{number:.1f}' for number in numbers)} |" in PAGE
    for name, (line, _) in LINKS.items():
        assert f"| `{name}` | {line.up / 1e6:g} | {line.down / 1e6:g} | {line.latency * 1e3:g} |" in PAGE


def test_visit_time_matches_a_hand_calculation() -> None:
    # 20 steps of 8 samples of 1e8 operations at 1e9 per second: 0.8 s each, plus 0.5 s in total.
    assert training_seconds(DEVICE, cost=1e8, steps=20, batch=8) == pytest.approx(10 + 20 * (0.5 + 0.8))
    assert training_seconds(DEVICE, cost=1e8, steps=20, batch=8, warm=True) == pytest.approx(26)
    assert training_seconds(DEVICE, cost=1e8, steps=20, batch=7.5, warm=True) == pytest.approx(25)
    assert training_seconds(DEVICE, cost=1e8, steps=0, batch=8) == 10


def test_threads_speed_up_training_only_up_to_the_core_count() -> None:
    taken = [training_seconds(DEVICE, cost=1e8, steps=1, batch=10, threads=n, warm=True) for n in (1, 2, 4, 8)]
    assert taken == pytest.approx([4.5, 2.5, 1.5, 1.5])
    assert training_seconds(DEVICE, cost=1e8, steps=1, batch=10, warm=True) == pytest.approx(1.5)


def test_measured_time_scales_with_the_ratio_of_speeds() -> None:
    there = msgspec.structs.replace(DEVICE, flops=2.5e8)
    assert seconds_there(3.0, DEVICE, there) == 12.0
    assert seconds_there(3.0, there, DEVICE) == 0.75


def test_measured_cost_reproduces_the_measured_time(monkeypatch) -> None:
    monkeypatch.setattr(timing, "measure", lambda _kit, _batch, **how: 0.9 if how == {"threads": 4} else None)
    cost = measured_cost(built_in(), 16, DEVICE)
    assert training_seconds(DEVICE, cost=cost, steps=1, batch=16, warm=True) == pytest.approx(0.9)
    monkeypatch.setattr(timing, "measure", lambda _kit, _batch, **_how: 0.2)  # less than a step's overhead
    assert measured_cost(built_in(), 16, DEVICE) == 0.0


def test_profile_is_read_from_a_file(tmp_path) -> None:
    path = tmp_path / "mine.toml"
    mine = msgspec.structs.replace(PROFILES["jetson-nano"], name="mine")
    path.write_text(text_of(mine), encoding="utf-8")
    assert find_profile(str(path)) == mine
    assert find_link(str(path)) == mine.link
    path.write_text(path.read_text(encoding="utf-8").replace("step_seconds", "step_second", 1), encoding="utf-8")
    with pytest.raises(ConfigError, match=r"unknown key 'step_second' in \[device\]; did you mean 'step_seconds'"):
        find_profile(str(path))


@pytest.mark.parametrize(
    ("find", "name", "message"),
    [
        (find_profile, "raspberry-pi4", "did you mean 'raspberry-pi-4'"),
        (find_profile, "custom", "sojourn agent profile --output FILE"),
        (find_profile, "none.toml", "none.toml: No such file"),
        (find_link, "home-wfi", "did you mean 'home-wifi'"),
        (find_link, "none.toml", "none.toml: No such file"),
    ],
)
def test_unknown_profile_name_is_an_error(find, name, message) -> None:
    with pytest.raises(ConfigError, match=message):
        find(name)
