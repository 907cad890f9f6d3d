"""Random sets: sizes and randomness."""

from __future__ import annotations

from collections import Counter

from hypothesis import given
from hypothesis import strategies as st

from hierarchy.arranging.arrangement import ArrangeContext, Candidates, arrange
from hierarchy.arranging.simple_sets import after_turns, random_groups
from sojourn.parts import RandomArranger


@given(st.integers(1, 30), st.data())
def test_size_0_uses_all_devices_in_equal_parts(devices: int, data: st.DataObject) -> None:
    sets = data.draw(st.integers(1, devices))
    groups = random_groups(RandomArranger(sets=sets), devices, sets, data.draw(st.integers(0, 9)))
    assert sorted(device for group in groups for device in group) == list(range(devices))
    assert len(groups) == sets
    assert max(map(len, groups)) - min(map(len, groups)) <= 1


def test_size_is_exact_and_shrinks_evenly() -> None:
    assert list(map(len, random_groups(RandomArranger(size=3), 20, 4, 1))) == [3, 3, 3, 3]
    few = random_groups(RandomArranger(size=3), 10, 4, 1)
    assert list(map(len, few)) == [3, 3, 2, 2]
    assert sorted(device for group in few for device in group) == list(range(10))


def test_every_device_is_equally_likely_in_every_set() -> None:
    seen = Counter(random_groups(RandomArranger(size=1), 4, 2, seed)[1][0] for seed in range(800))
    assert set(seen) == set(range(4))
    assert min(seen.values()) > 150


def test_scheduled_set_count_overrides_the_setting() -> None:
    assert len(random_groups(RandomArranger(sets=2), 9, 5, 1)) == 5


def test_other_seed_yields_another_draw() -> None:
    one, same, other = (random_groups(RandomArranger(), 40, 4, seed) for seed in (1, 1, 2))
    assert one == same != other


def laps(devices: list[str], rounds: int, sites: dict[str, list[str]] | None = None) -> list[list[str]]:
    """Return the devices planned in each round, three at a time in sets of one."""
    settings, found = RandomArranger(sets=3, size=1, turns=True), list[list[str]]()
    memo: dict[str, tuple[int, ...]] = {}
    reach = {site: frozenset(names) for site, names in (sites or {"here": devices}).items()}
    for number in range(1, rounds + 1):
        made = arrange(settings, Candidates(tuple(devices), reach), ArrangeContext(number, number, memo=memo))
        memo = made.memo
        found.append([name for each in made.sets for name in each.devices])
    return found


def test_turns_pick_every_device_once_before_any_repeats() -> None:
    devices = [f"device-{number}" for number in range(7)]
    planned = Counter[str]()
    for going in laps(devices, 30):
        planned.update(going)
        assert max(planned.values()) - min(planned[name] for name in devices) <= 1
    assert laps(devices, 1) != [["device-0", "device-1", "device-2"]]


def test_turns_are_redrawn_for_each_lap_and_seed() -> None:
    devices = [f"device-{number}" for number in range(9)]
    rounds = laps(devices, 12)
    assert len({tuple(name for each in rounds[at : at + 3] for name in each) for at in range(0, 12, 3)}) == 4


def test_late_device_joins_the_lap_without_catching_up() -> None:
    memo: dict[str, tuple[int, ...]] = {"old": (9,), "older": (8,)}
    assert after_turns(memo, ["new", "older"]) == {"old": (9,), "older": (9,), "new": (9,)}
    assert after_turns({}, ["a"]) == {"a": (1,)}


def test_sites_with_different_devices_have_separate_turns() -> None:
    sites = {"east": ["a", "b"], "west": ["c", "d", "e"]}
    planned = Counter(name for each in laps(["a", "b", "c", "d", "e"], 20, sites) for name in each)
    assert set(planned) == {"a", "b", "c", "d", "e"}
    assert max(planned.values()) - min(planned[name] for name in "cde") <= 12
