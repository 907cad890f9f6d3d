"""Splits of samples over devices."""

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


def test_same_seed_gives_the_same_split() -> None:
    one, same, other = (dirichlet(LABELS, 4, 0.3, seed) for seed in (1, 1, 2))
    assert all(np.array_equal(a, b) for a, b in zip(one, same, strict=True))
    assert not all(np.array_equal(a, b) for a, b in zip(one, other, strict=True))


def test_large_alpha_gives_every_device_the_same_mix() -> None:
    for part in dirichlet(LABELS, 4, 1e9, 1):
        assert np.bincount(LABELS[part]).tolist() == [25] * 10


def test_small_alpha_gives_each_label_to_one_device() -> None:
    parts = dirichlet(LABELS, 4, 1e-6, 1)
    held = np.array([np.bincount(LABELS[part], minlength=10) for part in parts])
    assert sorted(held.ravel().tolist()) == [0] * 30 + [100] * 10


def test_larger_alpha_gives_more_labels_per_device() -> None:
    def labels_per_device(alpha: float) -> float:
        return float(np.mean([len(np.unique(LABELS[part])) for part in dirichlet(LABELS, 8, alpha, 1)]))

    assert labels_per_device(0.1) < labels_per_device(0.5) < labels_per_device(10.0)


# --- properties of all splits

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
def test_every_split_gives_each_sample_exactly_once(by: By, devices: int, alpha: float, shards: int, seed: int) -> None:
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
def test_small_or_skewed_data_is_split_or_refused_with_reason(
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
def test_different_seed_gives_a_different_split(by: By) -> None:
    one, other = (split(Split(by=by), MADE, 12, seed) for seed in (1, 2))
    assert not same(one, other)


def test_all_split_methods_differ() -> None:
    splits = [split(Split(by=by), MADE, 12, 1) for by in WAYS]
    assert not any(same(one, other) for at, one in enumerate(splits) for other in splits[:at])


def test_default_split_is_dirichlet_by_label() -> None:
    assert same(split(Split(alpha=0.3), MADE, 8, 4), dirichlet(LABELS, 8, 0.3, 4))


def test_iid_gives_equal_sizes_and_similar_mixes() -> None:
    parts = split(Split(by="iid"), MADE, 3, 1)
    assert [len(part) for part in parts] == [334, 333, 333]
    assert all(np.bincount(LABELS[part]).min() > 15 for part in parts)


@pytest.mark.parametrize("devices", [10, 13, 25, 100])
def test_alpha_zero_gives_one_class_per_device_using_all(devices: int) -> None:
    parts = split(Split(alpha=0.0), MADE, devices, 3)
    held = [set(LABELS[part].tolist()) for part in parts]
    assert all(len(classes) == 1 for classes in held)
    devices_of = np.bincount([min(classes) for classes in held], minlength=10)
    assert devices_of.max() - devices_of.min() <= 1
    assert sorted(len(part) for part in parts) == sorted(
        size for count in devices_of for size in map(len, np.array_split(np.arange(100), count))
    )


def test_alpha_zero_draws_the_class_of_each_device() -> None:
    one, other = ([int(LABELS[part][0]) for part in split(Split(alpha=0.0), MADE, 20, seed)] for seed in (1, 2))
    assert sorted(one) == sorted(other)
    assert one != other


def test_some_devices_are_empty_when_samples_run_out() -> None:
    parts = split(Split(alpha=0.0), data_set(np.array([0, 1])), 6, 1)
    assert sorted(len(part) for part in parts) == [0, 0, 0, 0, 1, 1]


def test_device_with_two_shards_has_few_classes() -> None:
    parts = split(Split(by="shards"), MADE, 10, 1)
    assert [len(part) for part in parts] == [100] * 10
    # 20 shards of 50 fit the classes of 100 exactly: a shard is half of one class.
    assert all(set(np.bincount(LABELS[part], minlength=10).tolist()) <= {0, 50, 100} for part in parts)
    assert all(len(np.unique(LABELS[part])) <= 2 for part in parts)
    more = split(Split(by="shards", shards=5), MADE, 10, 1)
    assert np.mean([len(np.unique(LABELS[part])) for part in more]) > 2


def test_quantity_split_varies_sizes_but_not_labels() -> None:
    sizes = {alpha: [len(p) for p in split(Split(by="quantity", alpha=alpha), MADE, 10, 1)] for alpha in (0.2, 1e9)}
    assert sizes[1e9] == [100] * 10
    assert max(sizes[0.2]) > 300
    largest = max(split(Split(by="quantity", alpha=0.2), MADE, 10, 1), key=len)
    mix = np.bincount(LABELS[largest], minlength=10) / len(largest)
    assert np.abs(mix - 0.1).max() < 0.06


def test_each_user_is_on_one_device_and_users_are_even() -> None:
    parts = split(Split(by="user"), MADE, 25, 1)
    users = [set(WRITERS[part].tolist()) for part in parts]
    assert sorted(len(mine) for mine in users) == [2] * 15 + [3] * 10
    assert sum(map(len, users)) == len(set.union(*users)) == 60


def test_one_device_per_user_when_counts_match() -> None:
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
def test_domains_are_merged_or_divided_to_match_device_count(
    devices: int, domains: list[set[int]], sizes: list[int]
) -> None:
    parts = split(Split(by="domain"), MADE, devices, 1)
    assert [set(PLACES[part].tolist()) for part in parts] == domains
    assert [len(part) for part in parts] == sizes


@pytest.mark.parametrize("by", WAYS)
def test_samples_option_cuts_every_device_to_the_same_size(by: By) -> None:
    whole = split(Split(by=by, alpha=5.0), MADE, 5, 1)
    cut, again, other = (split(Split(by=by, alpha=5.0, samples=20), MADE, 5, seed) for seed in (1, 1, 2))
    assert [len(part) for part in cut] == [20] * 5
    assert all(set(some.tolist()) <= set(part.tolist()) for some, part in zip(cut, whole, strict=True))
    assert all(np.array_equal(part, np.unique(part)) for part in cut)
    assert same(cut, again)
    assert not same(cut, other)


def test_samples_option_draws_at_random() -> None:
    # With as many devices as domains, the split does not depend on the seed. The first domain has the labels 0 to 4.
    cut, other = (split(Split(by="domain", samples=100), MADE, 3, seed) for seed in (1, 2))
    assert np.unique(LABELS[cut[0]]).tolist() == [0, 1, 2, 3, 4]
    assert not np.array_equal(cut[0], other[0])


@pytest.mark.parametrize(
    ("chosen", "devices", "message"),
    [
        (Split(alpha=-0.5), 4, "alpha is -0.5; it must be 0 or more"),
        (Split(alpha=float("nan")), 4, "alpha is nan; it must be 0 or more"),
        (Split(alpha=float("inf")), 4, "alpha is inf; it must be 0 or more"),
        (Split(), 0, "at least one device, not 0"),
        (Split(by="iid"), 1001, "1000 samples are too few for 1001 devices"),
        (Split(by="shards"), 501, "501 devices with 2 shards each are 1002 shards, but there are 1000 samples"),
        (Split(by="quantity", alpha=0.0), 4, "a split by quantity needs an alpha above 0"),
        (
            Split(by="range"),
            4,
            "the targets of made \\(classification\\) are not quantities, but a split by range needs",
        ),
        (Split(overlap=float("inf")), 4, "overlap is inf; it must be a number"),
        (Split(alpha=0.0), 9, "9 devices cannot cover 10 classes: use at least 10 devices"),
        (Split(by="user"), 61, "there are 60 users, too few for 61 devices"),
        (
            Split(by="iid", samples=251),
            4,
            r"4 of 4 devices have fewer \(device 1, 2, 3, 4; the minimum is 250\): this split allows at most",
        ),
        (Split(alpha=0.0, samples=1), 1001, r"have fewer \(device .*; the minimum is 0\): choose a more even split"),
    ],
)
def test_impossible_split_is_refused_with_a_reason(chosen: Split, devices: int, message: str) -> None:
    with pytest.raises(UserError, match=message):
        split(chosen, MADE, devices, 1)


@pytest.mark.parametrize(("by", "what"), [("user", "users"), ("domain", "domains")])
def test_split_by_a_missing_array_is_refused(by: By, what: str) -> None:
    with pytest.raises(DataError, match=f"a split by {by} needs {what}, in an NPZ file an array `{what}`"):
        split(Split(by=by), data_set(LABELS), 4, 1)


@pytest.mark.parametrize(
    "values", [{"alpha": -1.0}, {"by": "writer"}, {"shards": 0}, {"samples": -1}, {"beta": 1}, {"overlap": -1.0}]
)
def test_invalid_split_settings_are_refused(values: dict[str, object]) -> None:
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


def test_range_split_gives_contiguous_targets() -> None:
    parts = split(Split(by="range"), PRICED, 7, 1)
    assert [len(part) for part in parts] == [143] * 6 + [142]
    assert np.array_equal(np.sort(np.concatenate(parts)), np.arange(1000))
    assert all(high < low for (_, high), (low, _) in itertools.pairwise(reach(parts)))


def test_overlap_makes_ranges_reach_into_each_other() -> None:
    def spread(overlap: float) -> float:
        return float(np.mean([PRICES[part].std() for part in split(Split(by="range", overlap=overlap), PRICED, 5, 1)]))

    spreads = [spread(overlap) for overlap in (0.0, 0.5, 2.0, 100.0)]
    assert spreads == sorted(spreads)
    assert spreads[0] < 0.35 * spreads[-1]
    assert spreads[-1] == pytest.approx(PRICES.std(), rel=0.05)
    parts = split(Split(by="range", overlap=0.5), PRICED, 5, 1)
    assert np.array_equal(np.sort(np.concatenate(parts)), np.arange(1000))
    assert [len(part) for part in parts] == [200] * 5


def test_equal_targets_are_assigned_at_random() -> None:
    flat = replace(PRICED, y_train=np.ones((1000, 1), np.float32))
    one, other = (split(Split(by="range"), flat, 4, seed) for seed in (1, 2))
    assert not same(one, other)
    assert [len(part) for part in one] == [250] * 4


def test_ranges_are_limited_to_one_per_sample() -> None:
    assert [len(part) for part in split(Split(by="range"), PRICED, 1000, 1)] == [1] * 1000
    with pytest.raises(DataError, match="1000 samples are too few for 1001 ranges"):
        split(Split(by="range"), PRICED, 1001, 1)


@pytest.mark.parametrize("chosen", [Split(alpha=0.0), Split(by="shards", shards=1)])
def test_target_strata_are_split_like_classes(chosen: Split) -> None:
    parts = split(chosen, PRICED, 10, 1)
    assert sorted(len(part) for part in parts) == [100] * 10
    ends = sorted(reach(parts))
    assert all(high <= low for (_, high), (low, _) in itertools.pairwise(ends))


def test_label_combinations_are_split_like_classes() -> None:
    labels = np.array([[0, 0], [1, 0], [0, 1], [1, 1]], np.float32)[np.arange(1000) % 4]
    data = replace(PRICED, kind="multilabel", y_train=labels, classes=("a", "b"), names=())
    parts = split(Split(alpha=0.0), data, 4, 1)
    assert sorted(tuple(labels[part].mean(axis=0)) for part in parts) == [(0, 0), (0, 1), (1, 0), (1, 1)]
