"""Dealing out samples."""

from __future__ import annotations

import itertools
from dataclasses import replace

import numpy as np
import pytest
from hypothesis import assume, given, settings
from hypothesis import strategies as st

from fleet_sim.datasets import DataSet
from fleet_sim.datasets.partition import By, Split, dirichlet, split
from sojourn.errors import ConfigError, DataError, UserError
from sojourn.settings import validated

LABELS = np.repeat(np.arange(10), 100)


@pytest.mark.parametrize("alpha", [0.01, 0.3, 1.0, 1e6])
@pytest.mark.parametrize("devices", [1, 3, 8, 50])
def test_every_sample_is_given_once(alpha: float, devices: int) -> None:
    parts = dirichlet(LABELS, devices, alpha, 1)
    assert len(parts) == devices
    assert np.array_equal(np.sort(np.concatenate(parts)), np.arange(1000))


def test_the_seed_decides() -> None:
    one, same, other = (dirichlet(LABELS, 4, 0.3, seed) for seed in (1, 1, 2))
    assert all(np.array_equal(a, b) for a, b in zip(one, same, strict=True))
    assert not all(np.array_equal(a, b) for a, b in zip(one, other, strict=True))


def test_a_large_alpha_gives_everybody_the_same() -> None:
    for part in dirichlet(LABELS, 4, 1e9, 1):
        assert np.bincount(LABELS[part]).tolist() == [25] * 10


def test_a_small_alpha_gives_each_label_to_one_device() -> None:
    parts = dirichlet(LABELS, 4, 1e-6, 1)
    held = np.array([np.bincount(LABELS[part], minlength=10) for part in parts])
    assert sorted(held.ravel().tolist()) == [0] * 30 + [100] * 10


def test_alpha_matters() -> None:
    def labels_per_device(alpha: float) -> float:
        return float(np.mean([len(np.unique(LABELS[part])) for part in dirichlet(LABELS, 8, alpha, 1)]))

    assert labels_per_device(0.1) < labels_per_device(0.5) < labels_per_device(10.0)


# --- every way of splitting

WAYS: tuple[By, ...] = ("iid", "dirichlet", "shards", "quantity", "user", "domain")


def data_set(labels: np.ndarray, users: np.ndarray | None = None, domains: np.ndarray | None = None) -> DataSet:
    x = np.zeros((len(labels), 1), np.float32)
    classes = tuple(map(str, range(int(labels.max()) + 1)))
    return DataSet("made", x, labels, x[:1], labels[:1], classes, users, domains)


WRITERS = np.arange(1000) * 7 % 60 + 100
PLACES = np.repeat([3, 5, 9], [500, 300, 200])
MADE = data_set(LABELS, WRITERS, PLACES)


def same(one: list[np.ndarray], other: list[np.ndarray]) -> bool:
    return all(np.array_equal(a, b) for a, b in zip(one, other, strict=True))


@given(
    by=st.sampled_from(WAYS),
    devices=st.integers(1, 60),
    alpha=st.one_of(st.just(0.0), st.floats(1e-300, 1e6)),
    shards=st.integers(1, 5),
    seed=st.integers(0, 2**53),
)
@settings(max_examples=200, deadline=None)
def test_whatever_the_split_no_sample_is_given_twice_and_none_is_lost(
    by: By, devices: int, alpha: float, shards: int, seed: int
) -> None:
    assume(alpha > 0 or by not in ("dirichlet", "quantity") or (by == "dirichlet" and devices >= 10))
    chosen = Split(by=by, alpha=alpha, shards=shards)
    parts = split(chosen, MADE, devices, seed)
    assert len(parts) == devices
    assert all(part.dtype == np.int64 and np.array_equal(part, np.unique(part)) for part in parts)
    assert np.array_equal(np.sort(np.concatenate(parts)), np.arange(1000))
    assert same(parts, split(chosen, MADE, devices, seed))


@given(
    labels=st.lists(st.integers(0, 4), min_size=1, max_size=40),
    devices=st.integers(1, 50),
    by=st.sampled_from(WAYS[:4]),
    alpha=st.sampled_from([0.0, 0.05, 1.0]),
)
@settings(max_examples=200, deadline=None)
def test_small_and_lopsided_data_is_split_or_refused_with_a_reason(
    labels: list[int], devices: int, by: By, alpha: float
) -> None:
    data = data_set(np.array(labels))
    try:
        parts = split(Split(by=by, alpha=alpha), data, devices, 1)
    except UserError as error:
        assert by in ("iid", "shards") or alpha == 0
        assert len(str(error)) > 20  # noqa: PT017
        return
    assert np.array_equal(np.sort(np.concatenate(parts)), np.arange(len(labels)))


@pytest.mark.parametrize("by", WAYS[:5])
def test_another_seed_is_another_split(by: By) -> None:
    one, other = (split(Split(by=by), MADE, 12, seed) for seed in (1, 2))
    assert not same(one, other)


def test_all_ways_differ() -> None:
    splits = [split(Split(by=by), MADE, 12, 1) for by in WAYS]
    assert not any(same(one, other) for at, one in enumerate(splits) for other in splits[:at])


def test_the_demos_split_stays_the_one_by_labels() -> None:
    assert same(split(Split(alpha=0.3), MADE, 8, 4), dirichlet(LABELS, 8, 0.3, 4))


def test_iid_gives_equal_numbers_and_like_mixes() -> None:
    parts = split(Split(by="iid"), MADE, 3, 1)
    assert [len(part) for part in parts] == [334, 333, 333]
    assert all(np.bincount(LABELS[part]).min() > 15 for part in parts)


@pytest.mark.parametrize("devices", [10, 13, 25, 100])
def test_alpha_zero_is_one_class_per_device_and_every_class_is_used(devices: int) -> None:
    parts = split(Split(alpha=0.0), MADE, devices, 3)
    held = [set(LABELS[part].tolist()) for part in parts]
    assert all(len(classes) == 1 for classes in held)
    devices_of = np.bincount([min(classes) for classes in held], minlength=10)
    assert devices_of.max() - devices_of.min() <= 1
    assert sorted(len(part) for part in parts) == sorted(
        size for count in devices_of for size in map(len, np.array_split(np.arange(100), count))
    )


def test_alpha_zero_draws_which_device_has_which_class() -> None:
    one, other = ([int(LABELS[part][0]) for part in split(Split(alpha=0.0), MADE, 20, seed)] for seed in (1, 2))
    assert sorted(one) == sorted(other)
    assert one != other


def test_with_more_devices_than_samples_of_a_class_some_are_empty() -> None:
    parts = split(Split(alpha=0.0), data_set(np.array([0, 1])), 6, 1)
    assert sorted(len(part) for part in parts) == [0, 0, 0, 0, 1, 1]


def test_a_device_with_two_shards_has_few_classes() -> None:
    parts = split(Split(by="shards"), MADE, 10, 1)
    assert [len(part) for part in parts] == [100] * 10
    # 20 shards of 50 fit the classes of 100 exactly: a shard is half of one class.
    assert all(set(np.bincount(LABELS[part], minlength=10).tolist()) <= {0, 50, 100} for part in parts)
    assert all(len(np.unique(LABELS[part])) <= 2 for part in parts)
    more = split(Split(by="shards", shards=5), MADE, 10, 1)
    assert np.mean([len(np.unique(LABELS[part])) for part in more]) > 2


def test_quantity_is_uneven_in_numbers_but_not_in_labels() -> None:
    sizes = {alpha: [len(p) for p in split(Split(by="quantity", alpha=alpha), MADE, 10, 1)] for alpha in (0.2, 1e9)}
    assert sizes[1e9] == [100] * 10
    assert max(sizes[0.2]) > 300
    largest = max(split(Split(by="quantity", alpha=0.2), MADE, 10, 1), key=len)
    mix = np.bincount(LABELS[largest], minlength=10) / len(largest)
    assert np.abs(mix - 0.1).max() < 0.06


def test_a_user_is_on_one_device_only_and_users_are_spread_evenly() -> None:
    parts = split(Split(by="user"), MADE, 25, 1)
    users = [set(WRITERS[part].tolist()) for part in parts]
    assert sorted(len(mine) for mine in users) == [2] * 15 + [3] * 10
    assert sum(map(len, users)) == len(set.union(*users)) == 60


def test_as_many_devices_as_users_are_the_users() -> None:
    parts = split(Split(by="user"), MADE, 60, 1)
    assert sorted(int(WRITERS[part[0]]) for part in parts) == list(range(100, 160))
    assert all(len(np.unique(WRITERS[part])) == 1 for part in parts)


@pytest.mark.parametrize(
    ("devices", "domains", "sizes"),
    [
        (3, [{3}, {5}, {9}], [500, 300, 200]),
        (2, [{3, 5}, {9}], [800, 200]),
        (1, [{3, 5, 9}], [1000]),
        (5, [{3}, {3}, {5}, {5}, {9}], [250, 250, 150, 150, 200]),
        (6, [{3}, {3}, {5}, {5}, {9}, {9}], [250, 250, 150, 150, 100, 100]),
    ],
)
def test_devices_and_domains_stand_side_by_side(devices: int, domains: list[set[int]], sizes: list[int]) -> None:
    parts = split(Split(by="domain"), MADE, devices, 1)
    assert [set(PLACES[part].tolist()) for part in parts] == domains
    assert [len(part) for part in parts] == sizes


@pytest.mark.parametrize("by", WAYS)
def test_samples_cuts_every_device_to_the_same_number_of_its_own(by: By) -> None:
    whole = split(Split(by=by, alpha=5.0), MADE, 5, 1)
    cut, again, other = (split(Split(by=by, alpha=5.0, samples=20), MADE, 5, seed) for seed in (1, 1, 2))
    assert [len(part) for part in cut] == [20] * 5
    assert all(set(some.tolist()) <= set(part.tolist()) for some, part in zip(cut, whole, strict=True))
    assert all(np.array_equal(part, np.unique(part)) for part in cut)
    assert same(cut, again)
    assert not same(cut, other)


def test_what_samples_leaves_is_drawn_not_the_first() -> None:
    # As many devices as domains: the seed has no say in the split itself. The first domain has the labels 0 to 4.
    cut, other = (split(Split(by="domain", samples=100), MADE, 3, seed) for seed in (1, 2))
    assert np.unique(LABELS[cut[0]]).tolist() == [0, 1, 2, 3, 4]
    assert not np.array_equal(cut[0], other[0])


@pytest.mark.parametrize(
    ("chosen", "devices", "said"),
    [
        (Split(alpha=-0.5), 4, "alpha is -0.5; it must be 0 or more"),
        (Split(alpha=float("nan")), 4, "alpha is nan; it must be 0 or more"),
        (Split(alpha=float("inf")), 4, "alpha is inf; it must be 0 or more"),
        (Split(), 0, "one device or more, not 0"),
        (Split(by="iid"), 1001, "1000 samples are too few for 1001 devices"),
        (Split(by="shards"), 501, "501 devices with 2 shards each are 1002 shards, but there are 1000 samples"),
        (Split(by="quantity", alpha=0.0), 4, "a split by quantity needs one above 0"),
        (Split(by="range"), 4, "made has no quantity as its target but is for classification: a split by range needs"),
        (Split(overlap=float("inf")), 4, "overlap is inf; it must be a number"),
        (Split(alpha=0.0), 9, "9 devices cannot hold 10 classes: take at least 10 devices"),
        (Split(by="user"), 61, "there are 60 users, too few for 61 devices"),
        (
            Split(by="iid", samples=251),
            4,
            r"4 of 4 devices have fewer \(device 1, 2, 3, 4; the least is 250\): at most",
        ),
        (Split(alpha=0.0, samples=1), 1001, r"have fewer \(device .*; the least is 0\): choose a more even split"),
    ],
)
def test_what_is_impossible_is_said(chosen: Split, devices: int, said: str) -> None:
    with pytest.raises(UserError, match=said):
        split(chosen, MADE, devices, 1)


@pytest.mark.parametrize(("by", "what"), [("user", "users"), ("domain", "domains")])
def test_a_split_by_what_is_not_known_is_refused(by: By, what: str) -> None:
    with pytest.raises(DataError, match=f"a split by {by} needs {what}, in an NPZ file an array `{what}`"):
        split(Split(by=by), data_set(LABELS), 4, 1)


@pytest.mark.parametrize(
    "values", [{"alpha": -1.0}, {"by": "writer"}, {"shards": 0}, {"samples": -1}, {"beta": 1}, {"overlap": -1.0}]
)
def test_a_simulation_file_cannot_ask_for_nonsense(values: dict[str, object]) -> None:
    with pytest.raises(ConfigError):
        validated(values, Split, "here")


# --- samples without classes

PRICES = np.random.default_rng(1).normal(size=1000)
PRICED = DataSet(
    "priced",
    np.zeros((1000, 1), np.float32),
    PRICES.astype(np.float32)[:, None],
    np.zeros((1, 1), np.float32),
    np.zeros((1, 1), np.float32),
    (),
    kind="regression",
    names=("price",),
)


def reach(parts: list[np.ndarray]) -> list[tuple[float, float]]:
    return [(float(PRICES[part].min()), float(PRICES[part].max())) for part in parts]


def test_a_range_is_everything_between_its_ends() -> None:
    parts = split(Split(by="range"), PRICED, 7, 1)
    assert [len(part) for part in parts] == [143] * 6 + [142]
    assert np.array_equal(np.sort(np.concatenate(parts)), np.arange(1000))
    assert all(high < low for (_, high), (low, _) in itertools.pairwise(reach(parts)))


def test_ranges_reach_into_each_other_as_far_as_is_said() -> None:
    def spread(overlap: float) -> float:
        return float(np.mean([PRICES[part].std() for part in split(Split(by="range", overlap=overlap), PRICED, 5, 1)]))

    spreads = [spread(overlap) for overlap in (0.0, 0.5, 2.0, 100.0)]
    assert spreads == sorted(spreads)
    assert spreads[0] < 0.35 * spreads[-1]
    assert spreads[-1] == pytest.approx(PRICES.std(), rel=0.05)
    parts = split(Split(by="range", overlap=0.5), PRICED, 5, 1)
    assert np.array_equal(np.sort(np.concatenate(parts)), np.arange(1000))
    assert [len(part) for part in parts] == [200] * 5


def test_equal_targets_are_dealt_by_lot() -> None:
    flat = replace(PRICED, y_train=np.ones((1000, 1), np.float32))
    one, other = (split(Split(by="range"), flat, 4, seed) for seed in (1, 2))
    assert not same(one, other)
    assert [len(part) for part in one] == [250] * 4


def test_one_range_for_each_device_at_most_as_many_as_there_are_samples() -> None:
    assert [len(part) for part in split(Split(by="range"), PRICED, 1000, 1)] == [1] * 1000
    with pytest.raises(DataError, match="1000 samples are too few for 1001 ranges"):
        split(Split(by="range"), PRICED, 1001, 1)


@pytest.mark.parametrize("chosen", [Split(alpha=0.0), Split(by="shards", shards=1)])
def test_strata_of_the_target_stand_for_classes(chosen: Split) -> None:
    parts = split(chosen, PRICED, 10, 1)
    assert sorted(len(part) for part in parts) == [100] * 10
    ends = sorted(reach(parts))
    assert all(high <= low for (_, high), (low, _) in itertools.pairwise(ends))


def test_labels_together_stand_for_classes() -> None:
    labels = np.array([[0, 0], [1, 0], [0, 1], [1, 1]], np.float32)[np.arange(1000) % 4]
    data = replace(PRICED, kind="multilabel", y_train=labels, classes=("a", "b"), names=())
    parts = split(Split(alpha=0.0), data, 4, 1)
    assert sorted(tuple(labels[part].mean(axis=0)) for part in parts) == [(0, 0), (0, 1), (1, 0), (1, 1)]
