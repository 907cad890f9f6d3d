"""FedCat's device selection against a plain reading of Algorithm 3, and in a changing fleet."""

from __future__ import annotations

from collections import Counter

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from hierarchy.arranging.fedcat import fedcat_picks
from sojourn.parts import FedCatArranger
from sojourn.randomness import generator

Memo = dict[str, tuple[int, ...]]


def names(count: int) -> list[str]:
    return [f"d{number:03}" for number in range(count)]


def groups_of(memo: Memo) -> list[set[str]]:
    return [
        {name for name, entry in memo.items() if entry[0] == group}
        for group in range(max(s[0] for s in memo.values()) + 1)
    ]


def lived(arranger: FedCatArranger, devices: list[str], rounds: int, seed: int = 1) -> tuple[list[list[str]], Memo]:
    memo: Memo = {}
    picked = []
    for number in range(1, rounds + 1):
        picks, memo = fedcat_picks(arranger, devices, number, memo, seed * 10_000 + number)
        picked.append(picks)
    return picked, memo


@pytest.mark.parametrize("seed", range(5))
@pytest.mark.parametrize(("epsilon", "regroup"), [(0.0, 1), (0.5, 2), (1.0, 1)])
def test_counts_and_groups_match_algorithm_3(seed: int, epsilon: float, regroup: int) -> None:
    cycle = 3
    arranger = FedCatArranger(sets=cycle, epsilon=epsilon, regroup=regroup)
    devices = names(11)
    table = {device: [0] * cycle for device in devices}
    memo: Memo = {}
    groups: list[set[str]] = []
    for r in range(24):
        picks, memo = fedcat_picks(arranger, devices, r + 1, memo, 100 * seed + r)
        now = groups_of(memo)
        if r % (regroup * cycle) == 0:
            assert sorted(map(len, now)) == [3, 4, 4]
            assert set().union(*now) == set(devices)
        else:
            assert now == groups
        groups = now
        for group, pick in zip(groups, picks, strict=True):
            assert pick in group
            fewest = min(table[device][r % cycle] for device in group)
            if fewest == 0 or epsilon == 1:
                assert table[pick][r % cycle] == fewest
            table[pick][r % cycle] += 1
        assert memo == {device: (memo[device][0], *table[device]) for device in devices}


def test_epsilon_0_draws_in_proportion_to_weights() -> None:
    # Counts 1, 4 and 16: weights 1, 1/2 and 1/4, so 4/7, 2/7 and 1/7.
    memo: Memo = {"a": (0, 1), "b": (0, 4), "c": (0, 16)}
    arranger = FedCatArranger(sets=1, epsilon=0, regroup=5)
    drawn = Counter(fedcat_picks(arranger, list("abc"), 2, memo, seed)[0][0] for seed in range(3500))
    assert [drawn[name] / 500 for name in "abc"] == pytest.approx([4, 2, 1], abs=0.25)


def test_epsilon_sets_share_of_least_visited_picks() -> None:
    memo: Memo = {"a": (0, 1), "b": (0, 1), "c": (0, 1), "d": (0, 4)}
    shares = {}
    for epsilon in (0.0, 0.5, 1.0):
        arranger = FedCatArranger(sets=1, epsilon=epsilon, regroup=5)
        drawn = Counter(fedcat_picks(arranger, list("abcd"), 2, memo, seed)[0][0] for seed in range(1400))
        shares[epsilon] = drawn["d"] / 1400
        assert min(drawn[name] for name in "abc") > 300
    # By weight d has (1/2) / (3 + 1/2) = 1/7.
    assert shares == pytest.approx({0.0: 1 / 7, 0.5: 1 / 14, 1.0: 0.0}, abs=0.025)


def test_device_never_picked_in_a_position_comes_first() -> None:
    memo: Memo = {"a": (0, 0, 9), "b": (0, 5, 9), "c": (0, 0, 9), "d": (1, 1, 1)}
    arranger = FedCatArranger(sets=2, epsilon=0, regroup=5)
    drawn = Counter(fedcat_picks(arranger, list("abcd"), 3, memo, seed)[0][0] for seed in range(400))
    assert set(drawn) == {"a", "c"}
    assert min(drawn.values()) > 150
    # In the other position of the cycle b is as likely as the others.
    assert {fedcat_picks(arranger, list("abcd"), 2, memo, seed)[0][0] for seed in range(60)} == {"a", "b", "c"}


def test_all_devices_of_a_group_are_picked_before_any_repeats() -> None:
    rounds, _ = lived(FedCatArranger(sets=2, regroup=50), names(10), 10)
    for position in (0, 1):
        picked = [device for picks in rounds[position::2] for device in picks]
        assert sorted(picked) == names(10)


def test_groups_are_redrawn_every_lambda_cycles_and_counts_kept() -> None:
    devices = names(12)
    for regroup, changes in ((1, [4, 7, 10]), (2, [7])):
        memo: Memo = {}
        seen, totals = [], []
        for number in range(1, 13):
            _, memo = fedcat_picks(FedCatArranger(sets=3, regroup=regroup), devices, number, memo, number)
            seen.append(groups_of(memo))
            totals.append(sum(sum(entry[1:]) for entry in memo.values()))
        assert [n for n in range(2, 13) if seen[n - 1] != seen[n - 2]] == changes
        assert totals == [3 * number for number in range(1, 13)]


def test_new_device_joins_the_smallest_group() -> None:
    memo: Memo = {"a": (0, 1, 0), "b": (0, 0, 0), "c": (1, 1, 0)}
    arranger = FedCatArranger(sets=2, regroup=9)
    picks, after = fedcat_picks(arranger, ["a", "b", "c", "new"], 3, memo, 5)
    assert after["new"][0] == 1
    assert after["new"] == (1, 1, 0)
    assert picks[1] == "new"


def test_absent_device_keeps_group_and_counts() -> None:
    memo: Memo = {"a": (0, 3, 1), "b": (0, 0, 0), "c": (1, 1, 0), "d": (1, 2, 0)}
    _, without = fedcat_picks(FedCatArranger(sets=2, regroup=9), ["b", "c", "d"], 2, memo, 5)
    assert without["a"] == (0, 3, 1)


def test_device_absent_at_regrouping_joins_the_smallest_group() -> None:
    memo: Memo = {"a": (0, 3, 1), "b": (0, 1, 1), "c": (1, 1, 1), "d": (1, 2, 1)}
    arranger = FedCatArranger(sets=2, regroup=1)
    _, without = fedcat_picks(arranger, ["b", "c", "d"], 3, memo, 5)
    assert without["a"] == (-1, 3, 1)
    _, back = fedcat_picks(arranger, ["a", "b", "c", "d"], 4, without, 6)
    homes = Counter(entry[0] for entry in back.values())
    assert homes == {0: 2, 1: 2}
    assert back["a"][1] == 3


def test_empty_group_takes_a_device_of_the_largest() -> None:
    memo: Memo = {"a": (0, 1), "b": (1, 1), "c": (1, 1), "d": (1, 1), "e": (2, 1), "f": (2, 1)}
    memo = {name: (entry[0], entry[1], 0, 0) for name, entry in memo.items()}
    arranger = FedCatArranger(sets=3, regroup=9)
    here = ["b", "c", "d", "e", "f"]
    picks, after = fedcat_picks(arranger, here, 2, memo, 5)
    assert len(set(picks)) == 3
    assert picks[0] in {"b", "c", "d"}
    assert after[picks[0]][0] == 0
    assert after["a"] == (0, 1, 0, 0)
    # Later rounds continue with three groups, and the device that left keeps its group.
    again, after = fedcat_picks(arranger, [*"a", *here], 3, after, 6)
    assert len(set(again)) == 3
    assert {name for name, entry in after.items() if entry[0] == 0} == {"a", picks[0]}


def test_changed_set_count_resets_the_memo() -> None:
    _, memo = lived(FedCatArranger(sets=3), names(9), 5)
    picks, after = fedcat_picks(FedCatArranger(sets=2, regroup=9), names(9), 6, memo, 1)
    assert len(picks) == 2
    assert sum(sum(entry[1:]) for entry in after.values()) == 2


def test_all_devices_take_part_if_as_many_as_sets() -> None:
    rounds, _ = lived(FedCatArranger(sets=4), names(4), 9)
    assert all(sorted(picks) == names(4) for picks in rounds)


def test_ungrouped_devices_are_drawn_at_random() -> None:
    arranger = FedCatArranger(sets=3, grouped=False)
    drawn: Counter[str] = Counter()
    for seed in range(500):
        picks, memo = fedcat_picks(arranger, names(6), 1, {"kept": (1,)}, seed)
        assert len(set(picks)) == 3
        assert memo == {"kept": (1,)}
        drawn.update(picks)
    assert min(drawn.values()) > 200
    assert fedcat_picks(arranger, names(6), 1, {}, 1) == fedcat_picks(arranger, names(6), 1, {}, 1)


def test_every_setting_changes_the_picks() -> None:
    plain = lived(FedCatArranger(sets=3), names(30), 40)[0]
    assert plain == lived(FedCatArranger(sets=3), names(30), 40)[0]
    assert plain != lived(FedCatArranger(sets=3), names(30), 40, seed=2)[0]
    assert plain != lived(FedCatArranger(sets=4), names(30), 40)[0]
    assert plain != lived(FedCatArranger(sets=3, epsilon=0.0), names(30), 40)[0]
    assert plain != lived(FedCatArranger(sets=3, regroup=2), names(30), 40)[0]
    assert plain != lived(FedCatArranger(sets=3, grouped=False), names(30), 40)[0]


@settings(deadline=None)
@given(st.integers(1, 4), st.integers(1, 3), st.integers(0, 2**32))
def test_changing_fleet_always_yields_k_different_devices(sets: int, regroup: int, seed: int) -> None:
    draw, memo = generator(seed, "test"), Memo()
    for number in range(1, 25):
        here = [name for name in names(8) if draw.random() < 0.6]
        if len(here) < sets:
            continue
        before = sum(sum(entry[1:]) for entry in memo.values())
        picks, memo = fedcat_picks(FedCatArranger(sets=sets, regroup=regroup), here, number, memo, seed)
        assert len(set(picks)) == sets
        assert set(picks) <= set(here)
        assert [memo[pick][0] for pick in picks] == list(range(sets))
        assert sum(sum(entry[1:]) for entry in memo.values()) == before + sets
        assert all(len(entry) == sets + 1 for entry in memo.values())
        assert all(isinstance(value, int) and not isinstance(value, np.integer) for s in memo.values() for value in s)
