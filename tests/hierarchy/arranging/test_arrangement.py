"""Client sets by name: guarantees of every arranger, spares and quality."""

from __future__ import annotations

from collections import Counter

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from hierarchy.arranging.arrangement import (
    ArrangeContext,
    Candidates,
    ClientSet,
    arrange,
    check,
    deal_spares,
    quality_of,
)
from sojourn.errors import Fault, JobError
from sojourn.parts import (
    Arranger,
    ChainArranger,
    CluSampArranger,
    FedCatArranger,
    FedSeqArranger,
    HierClusterArranger,
    IcgArranger,
    RandomArranger,
    SingleArranger,
    SiteArranger,
    VisitArranger,
)

SEEDS = st.integers(0, 2**32)


def names(count: int) -> tuple[str, ...]:
    return tuple(f"d{number:03}" for number in range(count))


def some_candidates(count: int, sites: tuple[str, ...] = ("hall",), seed: int = 1) -> Candidates:
    draw = np.random.default_rng(seed)
    signatures, samples = draw.dirichlet([0.3] * 5, count), draw.integers(50, 300, count)
    return Candidates(names(count), {site: frozenset(names(count)) for site in sites}, signatures, samples)


def made(arranger: Arranger, candidates: Candidates, seed: int = 1) -> tuple[ClientSet, ...]:
    return arrange(arranger, candidates, ArrangeContext(seed)).sets


@st.composite
def fleets(draw: st.DrawFn) -> Candidates:
    devices = names(draw(st.integers(1, 12)))
    sites = [f"s{number}" for number in range(draw(st.integers(1, 4)))]
    reach = {site: draw(st.frozensets(st.sampled_from(devices))) for site in sites}
    chance = np.random.default_rng(draw(SEEDS))
    return Candidates(devices, reach, chance.random((len(devices), 4)), chance.integers(0, 90, len(devices)))


COUNTS, SIZES, FRACTIONS = st.integers(1, 5), st.integers(1, 4), st.sampled_from([0.1, 0.5, 1.0])
ONCE = st.one_of(
    st.builds(SingleArranger, fraction=FRACTIONS),
    st.builds(VisitArranger, sets=COUNTS, size=SIZES),
    st.builds(RandomArranger, sets=COUNTS, size=st.integers(0, 4)),
    st.builds(
        FedSeqArranger,
        grouping=st.sampled_from(["random", "greedy"]),
        tau=st.sampled_from(["cosine", "euclidean", "wasserstein", "kl", "gini"]),
        estimate=st.sampled_from(["midpoint", "mean", "weighted-mean"]),
        min_samples=st.integers(1, 300),
        max_devices=SIZES,
    ),
    st.builds(FedSeqArranger, tau=st.just("cosine"), sets=COUNTS, size=SIZES),
    st.builds(IcgArranger, sets=COUNTS),
    st.builds(FedCatArranger, sets=COUNTS, grouped=st.booleans()),
    st.builds(HierClusterArranger, sets=COUNTS, size=SIZES),
    st.builds(ChainArranger, order=st.sampled_from(["random", "name"])),
    st.builds(SiteArranger, fraction=FRACTIONS),
)
CONTEXTS = st.builds(ArrangeContext, seed=SEEDS, round=st.integers(1, 9), sets=st.none() | st.integers(1, 6))


@settings(deadline=None, max_examples=200)
@given(ONCE, fleets(), st.integers(0, 4), CONTEXTS)
def test_every_arrangement_is_disjoint_and_respects_reach(
    arranger: Arranger, candidates: Candidates, per_tour: int, context: ArrangeContext
) -> None:
    reason = check(arranger, candidates, context)
    if reason is not None:
        with pytest.raises(JobError, match=reason[:30]):
            arrange(arranger, candidates, context)
        return
    sets = arrange(arranger, candidates, context).sets
    assert arrange(arranger, candidates, context) == arrange(arranger, candidates, context)
    assert sets
    used = [device for each in sets for device in each.devices]
    assert len(used) == len(set(used))
    assert all(each.devices and set(each.devices) <= candidates.reach[each.site] for each in sets)

    spares = deal_spares(sets, candidates, per_tour, context.seed)
    assert spares == deal_spares(sets, candidates, per_tour, context.seed)
    dealt = [device for each in spares for device in each]
    assert len(dealt) == len(set(dealt))
    assert not set(dealt) & set(used)
    assert len(spares) == len(sets)
    for each, mine in zip(sets, spares, strict=True):
        assert len(mine) <= per_tour
        assert set(mine) <= candidates.reach[each.site]
        if len(mine) < per_tour:
            assert candidates.reach[each.site] <= {*used, *dealt}


@settings(deadline=None)
@given(ONCE, fleets(), CONTEXTS)
def test_every_arranger_keeps_its_guarantees_under_any_reach(
    arranger: Arranger, candidates: Candidates, context: ArrangeContext
) -> None:
    if check(arranger, candidates, context) is not None:
        return
    sets = arrange(arranger, candidates, context).sets
    here = set().union(*candidates.reach.values())
    used = {device for each in sets for device in each.devices}
    if arranger.alone:
        assert all(len(each.devices) == 1 for each in sets)
    match arranger:
        case FedSeqArranger(size=0) | ChainArranger() | SiteArranger(fraction=1.0) | SingleArranger(fraction=1.0):
            assert used == here
        case VisitArranger() | RandomArranger() | HierClusterArranger():
            assert len(sets) == (arranger.sets if context.sets is None else min(context.sets, len(here)))
        case FedSeqArranger() | FedCatArranger():
            assert len(sets) == arranger.sets
    if isinstance(arranger, (VisitArranger, HierClusterArranger)):
        assert all(len(each.devices) <= arranger.size for each in sets)
    if isinstance(arranger, ChainArranger):
        assert [each.site for each in sets] == sorted({each.site for each in sets})


@settings(deadline=None)
@given(st.builds(CluSampArranger, sets=COUNTS), fleets(), SEEDS)
def test_clusamp_draws_single_devices_with_samples(
    arranger: CluSampArranger, candidates: Candidates, seed: int
) -> None:
    if check(arranger, candidates, ArrangeContext(seed)) is not None:
        return
    sets = made(arranger, candidates, seed)
    assert candidates.samples is not None
    rich = {device for device, count in zip(candidates.devices, candidates.samples, strict=True) if count}
    assert len(sets) == arranger.sets
    assert all(len(each.devices) == 1 and set(each.devices) <= candidates.reach[each.site] & rich for each in sets)
    assert sets == made(arranger, candidates, seed)


def test_clusamp_can_draw_a_device_twice() -> None:
    candidates = Candidates(("a", "b"), {"n": frozenset("ab"), "s": frozenset("a")}, np.eye(2), np.array([9, 1]))
    first, second = made(CluSampArranger(sets=2), candidates)
    # Two equal distributions: one is all a's, the other four fifths a's; a is at the less busy site.
    assert first == ClientSet("n", ("a",))
    assert second in {ClientSet("s", ("a",)), ClientSet("n", ("b",))}
    drawn = Counter(made(CluSampArranger(sets=2), candidates, seed)[1].devices for seed in range(200))
    assert drawn["a",] > 130 > 20 < drawn["b",]


def test_visit_sets_match_hand_computation_by_name() -> None:
    signatures = np.array([[1.0, 0.0], [1.0, 0.0], [0.0, 1.0], [0.0, 1.0]])
    candidates = Candidates(
        ("ant", "bee", "cat", "dog"), {"n": frozenset({"ant", "cat"}), "s": frozenset({"bee", "dog"})}, signatures
    )
    sets = made(VisitArranger(sets=2, size=2), candidates, 3)
    assert [(each.site, set(each.devices)) for each in sets] == [("n", {"ant", "cat"}), ("s", {"bee", "dog"})]
    assert quality_of(sets, candidates) == pytest.approx({"vts": 1.0, "intra_cs": 0.0, "inter_cs": 1.0}, abs=1e-15)


def test_extreme_sizes_equal_single_and_chain() -> None:
    candidates = some_candidates(9)
    alone = list(made(SingleArranger(), candidates))
    limits: list[Arranger] = [
        VisitArranger(sets=9, size=1),
        FedSeqArranger(max_devices=1),
        FedSeqArranger(sets=9, size=1, tau="cosine"),
        RandomArranger(sets=9),
        HierClusterArranger(sets=9, size=1),
        FedCatArranger(sets=9),
    ]
    for arranger in limits:
        assert sorted(made(arranger, candidates, 4), key=lambda each: each.devices) == alone
    whole: list[Arranger] = [VisitArranger(sets=1, size=9), FedSeqArranger(min_samples=10**6), RandomArranger(sets=1)]
    for arranger in [*whole, HierClusterArranger(sets=1, size=9), ChainArranger()]:
        (chain,) = made(arranger, candidates, 4)
        assert sorted(chain.devices) == list(candidates.devices)


def test_sites_that_reach_all_devices_alternate() -> None:
    candidates = some_candidates(20, ("east", "west"))
    sets = made(RandomArranger(sets=4), candidates)
    assert [each.site for each in sets] == ["east", "west", "east", "west"]
    assert [len(each.devices) for each in sets] == [5, 5, 5, 5]
    assert [each.devices for each in sets] == [
        each.devices for each in made(RandomArranger(sets=4), some_candidates(20))
    ]


def test_pools_make_sets_of_their_own_devices() -> None:
    devices = names(12)
    reach = {"n": frozenset(devices[:9]), "s": frozenset(devices[9:])}
    candidates = Candidates(devices, reach, np.random.default_rng(1).random((12, 3)), np.ones(12, np.int64))
    arrangers: list[Arranger] = [RandomArranger(sets=4), IcgArranger(sets=4), HierClusterArranger(sets=4, size=2)]
    for arranger in [*arrangers, FedSeqArranger(sets=4, size=2)]:
        assert [each.site for each in made(arranger, candidates)] == ["n", "n", "n", "s"]
    turns = Counter(made(RandomArranger(sets=1), candidates, seed)[0].site for seed in range(200))
    assert turns["n"] > 2 * turns["s"] > 40


def test_draws_depend_on_seed_and_pool() -> None:
    candidates = some_candidates(30)
    chancy: list[Arranger] = [
        RandomArranger(sets=3),
        FedSeqArranger(),
        IcgArranger(sets=3),
        HierClusterArranger(sets=3, size=3),
        FedCatArranger(sets=3),
        CluSampArranger(sets=8),
        ChainArranger(),
        SiteArranger(fraction=0.5),
    ]
    for arranger in chancy:
        assert made(arranger, candidates, 1) == made(arranger, candidates, 1) != made(arranger, candidates, 2)
    # Two pools of the same shape must not draw the same numbers.
    reach = {"n": frozenset(names(30)[:15]), "s": frozenset(names(30)[15:])}
    north, south = made(RandomArranger(sets=2), Candidates(names(30), reach))
    assert [int(device[1:]) for device in north.devices] != [int(device[1:]) - 15 for device in south.devices]


def test_scheduled_set_count_overrides_the_arranger() -> None:
    candidates = some_candidates(12)
    counted: list[Arranger] = [
        VisitArranger(sets=2, size=1),
        RandomArranger(sets=2, size=1),
        HierClusterArranger(sets=2, size=1),
        IcgArranger(sets=2),
    ]
    for arranger in counted:
        assert [len(arrange(arranger, candidates, ArrangeContext(1, sets=sets)).sets) for sets in (None, 4, 12)] == [
            2,
            4,
            12,
        ]
        # There cannot be more sets than devices.
        assert len(arrange(arranger, candidates, ArrangeContext(1, sets=50)).sets) == 12
    fixed: list[Arranger] = [FedCatArranger(sets=2), CluSampArranger(sets=2), FedSeqArranger(sets=2, size=2)]
    for arranger in fixed:
        assert len(arrange(arranger, candidates, ArrangeContext(1, sets=4)).sets) == 2


def test_only_fedcat_changes_the_memo() -> None:
    candidates = some_candidates(6)
    first = arrange(FedCatArranger(sets=2, regroup=9), candidates, ArrangeContext(1))
    assert sorted(first.memo) == list(candidates.devices)
    assert [first.memo[each.devices[0]] for each in first.sets] == [(0, 1, 0), (1, 1, 0)]
    second = arrange(FedCatArranger(sets=2, regroup=9), candidates, ArrangeContext(2, round=2, memo=first.memo))
    assert [second.memo[each.devices[0]][2] for each in second.sets] == [1, 1]
    others: list[Arranger] = [SingleArranger(), VisitArranger(), ChainArranger(), RandomArranger(sets=2)]
    for arranger in others:
        assert arrange(arranger, candidates, ArrangeContext(1, memo={"d000": (3,)})).memo == {"d000": (3,)}


def test_every_setting_changes_the_sets() -> None:
    candidates = some_candidates(40)
    plain = made(VisitArranger(sets=4, size=4), candidates)
    assert plain != made(VisitArranger(sets=4, size=4), candidates, 2)
    assert plain != made(VisitArranger(sets=4, size=3), candidates)
    other = Candidates(candidates.devices, candidates.reach, some_candidates(40, seed=2).signatures, candidates.samples)
    rowed: list[Arranger] = [
        VisitArranger(sets=4, size=4),
        FedSeqArranger(),
        IcgArranger(sets=8),
        HierClusterArranger(sets=4, size=4),
        CluSampArranger(sets=8),
    ]
    for arranger in rowed:
        assert made(arranger, candidates) != made(arranger, other)
    richer = Candidates(
        candidates.devices, candidates.reach, candidates.signatures, some_candidates(40, seed=2).samples
    )
    assert made(FedSeqArranger(), candidates) != made(FedSeqArranger(), richer)
    assert made(CluSampArranger(sets=8), candidates) != made(CluSampArranger(sets=8), richer)


def test_quality_has_only_measures_the_rows_allow() -> None:
    devices = names(4)
    counts = np.array([[8.0, 0.0], [0.0, 8.0], [4.0, 0.0], [0.0, 4.0]])
    reach = {"hall": frozenset(devices)}
    sets = [ClientSet("hall", devices[:2]), ClientSet("hall", devices[2:])]
    seen = quality_of(sets, Candidates(devices, reach, counts, counts=True))
    assert {"vts", "intra_cs", "inter_cs", "balance", "covered", "cpd"} <= set(seen)
    assert seen["vts"] == pytest.approx(1.0)
    assert set(quality_of(sets, Candidates(devices, reach, counts))) == {"vts", "intra_cs", "inter_cs"}
    assert set(quality_of(sets, Candidates(devices, reach, counts, by_class=False))) == {"intra_cs", "inter_cs"}
    assert quality_of(sets, Candidates(devices, reach)) == {}


def test_repeated_passes_do_not_change_the_quality() -> None:
    candidates = some_candidates(40)
    once = made(VisitArranger(sets=4, size=4), candidates)
    twice = [ClientSet(each.site, each.devices * 2) for each in once]
    assert quality_of(once, candidates) == quality_of(twice, candidates)


def test_devices_that_reach_no_site_are_excluded() -> None:
    candidates = Candidates(
        ("a", "b", "c"), {"n": frozenset("ac"), "empty": frozenset()}, np.eye(3), np.array([5, 900, 5])
    )
    assert [each.devices for each in made(SingleArranger(), candidates)] == [("a",), ("c",)]
    assert (
        check(VisitArranger(sets=3), candidates, ArrangeContext(1))
        == "visit needs at least 3 devices for 3 sets; 2 are online: arranger.sets = 2 would use all of them"
    )
    arrangers: list[Arranger] = [ChainArranger(), SiteArranger(), RandomArranger(sets=2), FedSeqArranger()]
    for arranger in [*arrangers, FedCatArranger(sets=2), CluSampArranger(sets=2), HierClusterArranger()]:
        assert {device for each in made(arranger, candidates) for device in each.devices} == {"a", "c"}


def test_inconsistent_candidates_raise_a_fault() -> None:
    with pytest.raises(Fault, match="sorted"):
        Candidates(("b", "a"), {})
    with pytest.raises(Fault, match="signatures of shape"):
        Candidates(("a", "b"), {}, np.ones((3, 2)))
    with pytest.raises(Fault, match="samples of shape"):
        Candidates(("a", "b"), {}, None, np.ones(3, np.int64))
    with pytest.raises(Fault, match="below 0"):
        Candidates(("a", "b"), {}, None, np.array([1, -1]))


def test_spares_are_dealt_evenly() -> None:
    candidates = some_candidates(9)
    sets = [ClientSet("hall", (device,)) for device in candidates.devices[:3]]
    assert Counter(len(each) for each in deal_spares(sets, candidates, 4, 1)) == {2: 3}
    assert [len(each) for each in deal_spares(sets[:2], candidates, 4, 1)] == [4, 3]
    assert deal_spares(sets, candidates, 0, 1) == ((), (), ())
    assert deal_spares(sets, candidates, 2, 1) != deal_spares(sets, candidates, 2, 2)


def test_shared_spare_goes_to_the_site_without_another() -> None:
    candidates = Candidates(("a", "b", "x", "y"), {"n": frozenset("axy"), "s": frozenset("bx")})
    sets = [ClientSet("n", ("a",)), ClientSet("s", ("b",))]
    for seed in range(10):
        assert deal_spares(sets, candidates, 1, seed) == (("y",), ("x",))


def test_departed_site_has_no_spares() -> None:
    assert deal_spares([ClientSet("gone", ("d000",)), ClientSet("hall", ("d001",))], some_candidates(3), 1, 1) == (
        (),
        ("d002",),
    )
