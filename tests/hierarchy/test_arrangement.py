"""Client sets by name, refusals and spares."""

from __future__ import annotations

import subprocess
import sys
from collections import Counter

import msgspec
import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from hierarchy.arrangement import MOST_HOPS, ClientSet, Roll, arrange, check, deal_spares, quality_of
from sojourn.errors import Fault, JobError
from sojourn.messages import Tour
from sojourn.parts import SingleArranger, VisitArranger

SEEDS = st.integers(0, 2**32)


def names(count: int) -> tuple[str, ...]:
    return tuple(f"d{number:03}" for number in range(count))


def a_roll(count: int, sites: tuple[str, ...] = ("hall",), seed: int = 1) -> Roll:
    signatures = np.random.default_rng(seed).dirichlet([0.3] * 5, count)
    return Roll(names(count), {site: frozenset(names(count)) for site in sites}, signatures)


@st.composite
def rolls(draw: st.DrawFn) -> Roll:
    devices = names(draw(st.integers(1, 12)))
    sites = [f"s{number}" for number in range(draw(st.integers(1, 4)))]
    reach = {site: draw(st.frozensets(st.sampled_from(devices))) for site in sites}
    return Roll(devices, reach, np.random.default_rng(draw(SEEDS)).random((len(devices), 4)))


ARRANGERS = st.one_of(
    st.builds(SingleArranger, fraction=st.sampled_from([0.1, 0.5, 1.0])),
    st.builds(
        VisitArranger,
        sets=st.integers(1, 5),
        size=st.integers(1, 4),
        order=st.sampled_from(["addition", "shuffled"]),
        passes=st.integers(1, 3),
    ),
)


@settings(deadline=None)
@given(ARRANGERS, rolls(), st.integers(0, 4), SEEDS)
def test_what_every_arrangement_keeps(
    arranger: SingleArranger | VisitArranger, roll: Roll, per_tour: int, seed: int
) -> None:
    reason = check(arranger, roll)
    if reason is not None:
        with pytest.raises(JobError, match=reason[:30]):
            arrange(arranger, roll, seed)
        return
    sets = arrange(arranger, roll, seed)
    assert sets == arrange(arranger, roll, seed)
    used = [device for each in sets for device in dict.fromkeys(each.devices)]
    assert len(used) == len(set(used))
    assert all(each.devices and set(each.devices) <= roll.reach[each.site] for each in sets)

    spares = deal_spares(sets, roll, per_tour, seed)
    assert spares == deal_spares(sets, roll, per_tour, seed)
    dealt = [device for each in spares for device in each]
    assert len(dealt) == len(set(dealt))
    assert not set(dealt) & set(used)
    assert len(spares) == len(sets)
    for each, mine in zip(sets, spares, strict=True):
        assert len(mine) <= per_tour
        assert set(mine) <= roll.reach[each.site]
        if len(mine) < per_tour:
            assert roll.reach[each.site] <= {*used, *dealt}


def test_visit_by_name() -> None:
    signatures = np.array([[1.0, 0.0], [1.0, 0.0], [0.0, 1.0], [0.0, 1.0]])
    roll = Roll(
        ("ant", "bee", "cat", "dog"), {"n": frozenset({"ant", "cat"}), "s": frozenset({"bee", "dog"})}, signatures
    )
    sets = arrange(VisitArranger(sets=2, size=2), roll, 3)
    assert [(each.site, set(each.devices)) for each in sets] == [("n", {"ant", "cat"}), ("s", {"bee", "dog"})]
    assert quality_of(sets, roll) == pytest.approx({"vts": 1.0, "intra_cs": 0.0, "inter_cs": 1.0}, abs=1e-15)


def test_visit_at_its_limits_is_single_and_chain() -> None:
    roll = a_roll(9)
    alone = arrange(VisitArranger(sets=9, size=1), roll, 4)
    assert sorted(alone, key=lambda each: each.devices) == list(arrange(SingleArranger(), roll, 4))
    (chain,) = arrange(VisitArranger(sets=1, size=9), roll, 4)
    assert sorted(chain.devices) == list(roll.devices)


def test_knobs_of_visit_do_something() -> None:
    roll = a_roll(40)
    plain = arrange(VisitArranger(sets=4, size=4), roll, 1)
    assert plain != arrange(VisitArranger(sets=4, size=4), roll, 2)
    assert plain != arrange(VisitArranger(sets=4, size=4, order="shuffled"), roll, 1)
    assert plain != arrange(VisitArranger(sets=4, size=4, passes=2), roll, 1)
    other = Roll(roll.devices, roll.reach, a_roll(40, seed=2).signatures)
    assert plain != arrange(VisitArranger(sets=4, size=4), other, 1)


def test_passes_do_not_change_the_quality() -> None:
    roll = a_roll(40)
    once, twice = (arrange(VisitArranger(sets=4, size=4, passes=passes), roll, 1) for passes in (1, 2))
    assert quality_of(once, roll) == quality_of(twice, roll)


def test_no_signatures_no_quality() -> None:
    roll = Roll(names(2), {"hall": frozenset(names(2))})
    assert quality_of(arrange(SingleArranger(), roll, 1), roll) == {}


def test_single_takes_all_in_order_without_a_draw() -> None:
    roll = a_roll(5)
    expected = tuple(ClientSet("hall", (device,)) for device in roll.devices)
    assert arrange(SingleArranger(), roll, 1) == arrange(SingleArranger(), roll, 2) == expected


@pytest.mark.parametrize(
    ("fraction", "devices", "count"), [(0.1, 5, 1), (0.5, 5, 2), (0.99, 5, 4), (0.29, 100, 29), (0.1, 30, 3)]
)
def test_single_takes_the_floor_and_at_least_one(fraction: float, devices: int, count: int) -> None:
    sets = arrange(SingleArranger(fraction=fraction), a_roll(devices), 7)
    assert len(sets) == count
    assert list(sets) == sorted(sets, key=lambda each: each.devices)


def test_single_draws_anew_with_another_seed() -> None:
    roll = a_roll(50)
    assert arrange(SingleArranger(fraction=0.2), roll, 1) != arrange(SingleArranger(fraction=0.2), roll, 2)


def test_single_gives_tours_to_the_site_with_least_to_do() -> None:
    roll = Roll(("a", "b", "c", "d"), {"n": frozenset("abd"), "s": frozenset("bcd")})
    assert [each.site for each in arrange(SingleArranger(), roll, 1)] == ["n", "s", "s", "n"]


def test_devices_that_reach_no_site_stay_out() -> None:
    roll = Roll(("a", "b", "c"), {"n": frozenset("ac"), "empty": frozenset()}, np.eye(3))
    assert [each.devices for each in arrange(SingleArranger(), roll, 1)] == [("a",), ("c",)]
    assert check(VisitArranger(sets=3), roll) == "visit needs at least 3 devices for 3 sets; 2 are here"


def test_refusals_say_why() -> None:
    four = VisitArranger(sets=4)
    assert check(four, a_roll(3)) == "visit needs at least 4 devices for 4 sets; 3 are here"
    with pytest.raises(JobError, match="4 devices for 4 sets; 3 are here"):
        arrange(four, a_roll(3), 1)
    assert check(SingleArranger(), Roll((), {})) == "single needs at least 1 device; none is here"
    unknown = Roll(names(4), {"hall": frozenset(names(4))})
    assert check(four, unknown) == "visit needs a signature of every device; choose an estimator"
    odd = Roll(unknown.devices, unknown.reach, np.array([[1.0], [2.0], [np.nan], [1.0]]))
    assert check(four, odd) == "visit needs finite signatures; that of d002 is not (1 in all)"
    assert check(four, a_roll(4)) is None


def test_a_tour_fits_in_its_message() -> None:
    hops = next(
        field for field in msgspec.json.schema(Tour)["$defs"]["Tour"]["properties"].items() if field[0] == "hops"
    )
    assert hops[1]["maxItems"] == MOST_HOPS
    long = VisitArranger(sets=1, size=6, passes=500)
    assert check(long, a_roll(6)) == "visit would make tours of 3000 visits; at most 2500 fit in one"
    assert check(long, a_roll(5)) is None


def test_a_roll_that_contradicts_itself_is_our_fault() -> None:
    with pytest.raises(Fault, match="sorted"):
        Roll(("b", "a"), {})
    with pytest.raises(Fault, match="shape"):
        Roll(("a", "b"), {}, np.ones((3, 2)))


def test_spares_are_dealt_in_turn() -> None:
    roll = a_roll(9)
    sets = [ClientSet("hall", (device,)) for device in roll.devices[:3]]
    assert Counter(len(each) for each in deal_spares(sets, roll, 4, 1)) == {2: 3}
    assert [len(each) for each in deal_spares(sets[:2], roll, 4, 1)] == [4, 3]
    assert deal_spares(sets, roll, 0, 1) == ((), (), ())
    assert deal_spares(sets, roll, 2, 1) != deal_spares(sets, roll, 2, 2)


def test_a_shared_spare_goes_where_there_is_no_other() -> None:
    roll = Roll(("a", "b", "x", "y"), {"n": frozenset("axy"), "s": frozenset("bx")})
    sets = [ClientSet("n", ("a",)), ClientSet("s", ("b",))]
    for seed in range(10):
        assert deal_spares(sets, roll, 1, seed) == (("y",), ("x",))


def test_a_site_that_left_has_no_spares() -> None:
    assert deal_spares([ClientSet("gone", ("d000",)), ClientSet("hall", ("d001",))], a_roll(3), 1, 1) == ((), ("d002",))


def test_an_edge_server_needs_no_heavy_library_for_it() -> None:
    code = "import sys, hierarchy.arrangement; print({'torch', 'onnx', 'sklearn', 'scipy'} & set(sys.modules))"
    assert subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True).stdout == "set()\n"
