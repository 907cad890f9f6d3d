"""FedSeq's superclients against plain readings of Algorithms 2 and 3."""

from __future__ import annotations

import math
from collections.abc import Callable
from itertools import product
from typing import Any

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from numpy.typing import NDArray

from hierarchy.arranging.fedseq import KnownDevices, fedseq_groups
from sojourn.parts import FedSeqArranger
from sojourn.randomness import generator

Vector = list[float]
SEEDS = st.integers(0, 2**32)


def fleet(devices: int, classes: int, seed: int) -> KnownDevices:
    draw = np.random.default_rng(seed)
    return KnownDevices(devices, draw.dirichlet([0.3] * classes, devices), draw.integers(0, 400, devices))


def middle(a: Vector, b: Vector) -> Vector:
    return [(x + y) / 2 for x, y in zip(a, b, strict=True)]


def cosine_distance(a: Vector, b: Vector) -> float:
    lengths = math.hypot(*a) * math.hypot(*b)
    return 1 - sum(x * y for x, y in zip(a, b, strict=True)) / lengths if lengths else 1.0


def kl(a: Vector, b: Vector) -> float:
    return sum(x * math.log(x / max(y, 1e-12)) for x, y in zip(a, b, strict=True) if x > 0)


def moved(a: Vector, b: Vector) -> float:
    carried = [sum(a[: c + 1]) - sum(b[: c + 1]) for c in range(len(a) - 1)]
    return sum(abs(each) for each in carried)


METRICS: dict[tuple[str, str], Callable[[Vector, Vector], float]] = {
    ("cosine", "balance"): cosine_distance,
    ("euclidean", "balance"): math.dist,
    ("wasserstein", "balance"): moved,
    ("kl", "balance"): lambda a, b: 1 - kl(middle(a, b), [1 / len(a)] * len(a)),
    ("kl", "pairwise"): kl,
    ("gini", "balance"): lambda a, b: 1 - sum(x * x for x in middle(a, b)),
}


def algorithm_3(arranger: FedSeqArranger, known: KnownDevices, seed: int) -> list[list[int]]:
    """Lines 1 to 16 literally; then the devices of a superclient that did not close join the smallest ones."""
    assert known.rows is not None
    assert known.samples is not None
    rows, samples = known.rows.tolist(), known.samples.tolist()
    measure = METRICS[arranger.tau, arranger.kl]
    draw = generator(seed, "fedseq")
    left, made = list(range(known.devices)), []
    while left:
        members = [int(draw.choice(left))]
        left.remove(members[0])
        estimate = rows[members[0]]
        while sum(samples[m] for m in members) < arranger.min_samples and len(members) < arranger.max_devices and left:
            scores = {j: measure(rows[j], estimate) for j in left}
            j = next(j for j in left if scores[j] >= max(scores.values()) - 1e-12)
            members.append(j)
            left.remove(j)
            weights = {"midpoint": None, "mean": [1] * len(members), "weighted-mean": [samples[m] for m in members]}
            weight = weights[arranger.estimate]
            if weight is None:
                estimate = middle(estimate, rows[j])
            else:
                weight = weight if sum(weight) else [1] * len(members)
                total = [sum(w * rows[m][c] for w, m in zip(weight, members, strict=True)) for c in range(len(rows[0]))]
                estimate = [each / sum(weight) for each in total]
        made.append(members)
    if len(made) > 1 and not (
        sum(samples[m] for m in made[-1]) >= arranger.min_samples or len(made[-1]) >= arranger.max_devices
    ):
        for device in made.pop():
            sizes = [(len(members), sum(samples[m] for m in members)) for members in made]
            made[sizes.index(min(sizes))].append(device)
    return made


@settings(deadline=None, max_examples=150)
@given(
    st.sampled_from(sorted(METRICS)),
    st.sampled_from(["midpoint", "mean", "weighted-mean"]),
    st.integers(1, 25),
    st.integers(1, 6),
    st.integers(1, 1200),
    st.integers(1, 6),
    SEEDS,
)
def test_superclients_match_algorithm_3(
    metric: tuple[Any, Any], estimate: Any, devices: int, classes: int, min_samples: int, max_devices: int, seed: int
) -> None:
    tau, kind = metric
    arranger = FedSeqArranger(
        tau=tau,
        kl=kind,
        estimate=estimate,
        min_samples=min_samples,
        max_devices=max_devices,
    )
    known = fleet(devices, classes, seed)
    assert fedseq_groups(arranger, known, 0, seed) == algorithm_3(arranger, known, seed)


@pytest.mark.parametrize("grouping", ["random", "k-means", "greedy"])
@pytest.mark.parametrize("seed", range(5))
def test_superclients_close_by_samples_or_devices(grouping: Any, seed: int) -> None:
    known = fleet(40, 5, seed)
    assert known.samples is not None
    arranger = FedSeqArranger(grouping=grouping, min_samples=800, max_devices=5)
    groups = fedseq_groups(arranger, known, 0, seed)
    assert sorted(device for group in groups for device in group) == list(range(40))
    for group in groups:
        assert len(group) >= 5 or known.samples[group].sum() >= 800
        # Without its last device (or those that joined at the end) it was still open.
        first = next(n for n in range(1, 41) if n == 5 or known.samples[group[:n]].sum() >= 800)
        assert len(group) <= first + 2


@pytest.mark.parametrize("grouping", ["random", "k-means", "greedy"])
def test_max_devices_of_one_makes_singles(grouping: Any) -> None:
    arranger = FedSeqArranger(grouping=grouping, max_devices=1)
    groups = fedseq_groups(arranger, fleet(12, 3, 1), 0, 1)
    assert sorted(groups) == [[device] for device in range(12)]


def test_fleet_too_small_to_close_is_one_superclient() -> None:
    (only,) = fedseq_groups(FedSeqArranger(min_samples=10**6), fleet(7, 3, 1), 0, 1)
    assert sorted(only) == list(range(7))


def test_leftovers_join_the_smallest_superclients() -> None:
    # Superclients of two; the fifth device is left over. All have one sample, so the first made is the smallest.
    known = KnownDevices(5, np.eye(5), np.ones(5, np.int64))
    groups = fedseq_groups(FedSeqArranger(grouping="random", max_devices=2), known, 0, 3)
    order = generator(3, "fedseq").permutation(5).tolist()
    assert groups == [[order[0], order[1], order[4]], [order[2], order[3]]]
    # Closed by samples with one device, or by three devices: the leftover goes to the one with one device.
    rich = KnownDevices(5, None, np.array([1, 1, 1, 9, 1]))
    for seed in range(20):
        groups = fedseq_groups(FedSeqArranger(grouping="random", min_samples=9, max_devices=3), rich, 0, seed)
        assert sorted(device for group in groups for device in group) == list(range(5))
        order = generator(seed, "fedseq").permutation(5).tolist()
        if order[0] == 3:
            assert groups == [[3, order[4]], order[1:4]]


def test_greedy_order_matches_hand_computation() -> None:
    # From (1, 0): the cosine distance of (0, 1) is 1, of (1, 1) about 0.29.
    rows = np.array([[1.0, 0.0], [1.0, 1.0], [0.0, 1.0]])
    arranger = FedSeqArranger(tau="cosine", sets=1, size=3)
    tours = {tuple(fedseq_groups(arranger, KnownDevices(3, rows), 1, seed)[0]) for seed in range(40)}
    # From (1, 1) the others tie, and the lowest number goes first.
    assert tours == {(0, 2, 1), (2, 0, 1), (1, 0, 2)}


def test_estimates_match_hand_computation() -> None:
    # From (0, 0) the farthest is (10, 0); from (5, 0) it is (5, 4). Then the midpoint is (5, 2), from which (5, -2.7)
    # is 4.7 and (8.9, 0) is 4.38 away; the mean is (5, 4/3), from which they are 4.03 and 4.12 away. With nearly all
    # samples at (0, 0) the weighted mean stays there, and (8.9, 0) comes before (5, 4).
    rows = np.array([[0.0, 0.0], [10.0, 0.0], [5.0, 4.0], [5.0, -2.7], [8.9, 0.0]])
    known = KnownDevices(5, rows, np.array([100, 1, 1, 1, 1]))
    found = {}
    estimate: Any
    for estimate in ("midpoint", "mean", "weighted-mean"):
        arranger = FedSeqArranger(tau="euclidean", estimate=estimate, sets=1, size=5)
        tours = [fedseq_groups(arranger, known, 1, seed)[0] for seed in range(40)]
        (found[estimate],) = {tuple(tour) for tour in tours if tour[0] == 0}
    assert found == {"midpoint": (0, 1, 2, 3, 4), "mean": (0, 1, 2, 4, 3), "weighted-mean": (0, 1, 4, 2, 3)}


def round_robin(clusters: list[int], picks: int) -> list[int]:
    """Algorithm 2's sequence of clusters: one of each in turn, empty ones skipped."""
    left = [clusters.count(each) for each in range(max(clusters) + 1)]
    picked: list[int] = []
    j = 0
    while len(picked) < picks:
        if left[j]:
            picked.append(j)
            left[j] -= 1
        j = (j + 1) % len(left)
    return picked


@pytest.mark.parametrize("seed", range(6))
def test_k_means_deals_one_of_each_cluster_in_turn(seed: int) -> None:
    # Three clear clusters of unequal size.
    clusters = [0, 1, 2, 0, 0, 2, 1, 0, 0, 0]
    rows = np.eye(3)[clusters] + 0.01 * np.random.default_rng(seed).random((10, 3))
    arranger = FedSeqArranger(grouping="k-means", sets=2, size=5)
    groups = fedseq_groups(arranger, KnownDevices(10, rows), 2, seed)
    assert [len(group) for group in groups] == [5, 5]
    # The order of the clusters is drawn; the turn continues from one superclient to the next.
    dealt = [clusters[device] for group in groups for device in group]
    order = dealt[:3]
    assert sorted(order) == [0, 1, 2]
    assert [order.index(each) for each in dealt] == round_robin([order.index(each) for each in clusters], 10)
    assert sorted(device for group in groups for device in group) == list(range(10))


def test_k_means_draws_at_random_inside_a_cluster() -> None:
    rows = np.repeat(np.eye(2), 6, axis=0)
    arranger = FedSeqArranger(grouping="k-means", sets=1, size=2)
    firsts = {fedseq_groups(arranger, KnownDevices(12, rows), 1, seed)[0][0] for seed in range(120)}
    assert firsts == set(range(12))


def test_k_means_cluster_count_equals_class_count() -> None:
    # Ten kinds of devices in rows of two columns, two devices of each kind; one of each kind comes first.
    kinds = np.repeat([[np.cos(angle), np.sin(angle)] for angle in np.linspace(0, 5, 10)], 2, axis=0)
    arranger = FedSeqArranger(grouping="k-means", sets=2, size=10)
    (first, _) = fedseq_groups(arranger, KnownDevices(20, kinds, classes=10), 2, 1)
    assert sorted(device // 2 for device in first) == list(range(10))
    (first, _) = fedseq_groups(arranger, KnownDevices(20, kinds), 2, 1)
    assert sorted(device // 2 for device in first) != list(range(10))


def test_k_means_handles_identical_devices() -> None:
    groups = fedseq_groups(FedSeqArranger(grouping="k-means", sets=2, size=2), KnownDevices(5, np.ones((5, 3))), 2, 1)
    assert sorted(map(len, groups)) == [2, 2]
    assert len({device for group in groups for device in group}) == 4


@settings(deadline=None)
@given(st.integers(1, 6), st.integers(1, 5), st.integers(0, 5), SEEDS)
def test_fixed_size_sets_add_the_least_similar_device(sets: int, size: int, more: int, seed: int) -> None:
    """VISIT's reading of FedSeq."""
    known = fleet(sets * size + more, 4, seed)
    assert known.rows is not None
    rows = known.rows.tolist()
    arranger = FedSeqArranger(tau="cosine", estimate="mean", sets=sets, size=size)
    groups = fedseq_groups(arranger, KnownDevices(known.devices, known.rows), sets, seed)
    left = set(range(known.devices))
    for group in groups:
        assert len(group) == size
        for place in range(1, size):
            left -= set(group[:place])
            mean = [sum(rows[m][c] for m in group[:place]) / place for c in range(4)]
            similar = {j: 1 - cosine_distance(rows[j], mean) for j in sorted(left)}
            assert group[place] == next(j for j in similar if similar[j] <= min(similar.values()) + 1e-12)
        left -= set(group)


def test_too_few_devices_make_level_sets() -> None:
    groups = fedseq_groups(FedSeqArranger(tau="cosine", sets=3, size=4), fleet(8, 3, 1), 3, 1)
    assert [len(group) for group in groups] == [3, 3, 2]


def test_metrics_on_distributions_normalise_counts() -> None:
    # As counts device 1 is far off; as a distribution it is that of device 0, and 2 completes it.
    counts = np.array([[1.0, 0.0], [90.0, 0.0], [0.0, 1.0], [0.0, 0.0]])
    tau: Any
    kind: Any
    for tau, kind in product(("wasserstein", "kl", "gini"), ("balance", "pairwise")):
        arranger = FedSeqArranger(tau=tau, kl=kind, sets=1, size=2)
        groups = [fedseq_groups(arranger, KnownDevices(4, counts), 1, seed)[0] for seed in range(20)]
        assert {tuple(group) for group in groups if group[0] == 0} == {(0, 2)}
        # A device without samples counts as uniform: the others are equally far from it, and the lowest is taken.
        assert {tuple(group) for group in groups if group[0] == 3} == {(3, 0)}


def test_every_setting_changes_the_groups() -> None:
    known = fleet(60, 6, 4)

    def made(**knobs: Any) -> list[list[int]]:
        return fedseq_groups(FedSeqArranger(**knobs), known, knobs.get("sets", 0), 1)

    arrangements = [
        made(),
        made(grouping="random"),
        made(grouping="k-means"),
        made(tau="cosine"),
        made(tau="euclidean"),
        made(tau="wasserstein"),
        made(tau="gini"),
        made(kl="pairwise"),
        made(estimate="mean"),
        made(estimate="weighted-mean"),
        made(min_samples=500),
        made(max_devices=2),
        made(sets=5, size=4),
        made(sets=5, size=3),
    ]
    for number, one in enumerate(arrangements):
        assert all(one != other for other in arrangements[:number])


@pytest.mark.parametrize("grouping", ["random", "k-means", "greedy"])
def test_seed_decides_the_groups(grouping: Any) -> None:
    arranger = FedSeqArranger(grouping=grouping)
    one, same, other = (fedseq_groups(arranger, fleet(50, 5, 1), 0, seed) for seed in (7, 7, 8))
    assert one == same != other


def test_greedy_superclients_are_more_balanced_than_random() -> None:
    draw = np.random.default_rng(3)
    rows: NDArray[np.float64] = draw.dirichlet([0.1] * 10, 100)
    known = KnownDevices(100, rows, np.full(100, 100))

    def spread(arranger: FedSeqArranger) -> float:
        groups = [group for seed in range(5) for group in fedseq_groups(arranger, known, 0, seed)]
        return float(np.mean([np.square(rows[group].mean(axis=0) - 0.1).sum() for group in groups]))

    by_chance = spread(FedSeqArranger(grouping="random"))
    assert spread(FedSeqArranger()) < 0.6 * by_chance
    assert spread(FedSeqArranger(tau="gini")) < 0.6 * by_chance
    assert spread(FedSeqArranger(grouping="k-means")) < 0.8 * by_chance
