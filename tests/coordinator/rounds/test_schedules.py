import math

import msgspec
import pytest

from coordinator.rounds.schedules import Departure, Moment, depart, groups, merges, rearranges, sets_asked_for
from hierarchy.arranging.arrangement import ClientSet
from sojourn.errors import ConfigError
from sojourn.parts import (
    EdgeCloud,
    EveryRound,
    OneShot,
    OwnSchedule,
    PhasedRing,
    Ring,
    SequentialToParallel,
    Slots,
)

SETS = [ClientSet(f"site-{n % 2}", tuple(f"d{n}{at}" for at in range(4))) for n in range(5)]


def moment(number=1, since_merge=0, sets=5, seed=7, *, last=False):
    return Moment(number, since_merge, sets, seed, last)


@pytest.mark.parametrize(
    ("growth", "alpha", "beta", "expected"),
    [
        ("linear", 2.0, 10, [10, 30, 50, 70, 90]),
        ("linear", 0.5, 10, [10, 10, 20, 20, 30]),
        ("log", 2.0, 10, [10, 20, 30, 30, 40]),
        ("exp", 0.5, 4, [4, 4, 8, 12, 20]),
        ("exp", 1.0, 1, [1, 2, 4, 8, 16]),
        ("linear", 0.0, 3, [3, 3, 3, 3, 3]),
    ],
)
def test_fedgsp_groups_grow_as_in_its_table(growth, alpha, beta, expected):
    stp = SequentialToParallel(growth=growth, alpha=alpha, beta=beta)
    assert [groups(stp, number) for number in range(1, 6)] == expected


def test_group_count_ignores_float_rounding_errors():
    stp = SequentialToParallel(growth="linear", alpha=0.1, beta=1)
    assert [groups(stp, number) for number in (10, 11, 21)] == [1, 2, 3]


def test_groups_never_outnumber_devices_and_do_not_overflow():
    stp = SequentialToParallel(growth="exp", alpha=2.0, beta=10)
    assert sets_asked_for(stp, 4, 100) == 100
    assert sets_asked_for(stp, 100_000, 364) == 364
    assert sets_asked_for(EveryRound(), 4, 100) is None


@pytest.mark.parametrize(("sets", "expected"), [(10, 3), (5, 2), (1, 1), (3, 1), (52, 16)])
def test_share_kappa_of_groups_trains_rounded_half_up(sets, expected):
    made = [ClientSet("site", (f"d{n}",)) for n in range(sets)]
    assert len(depart(SequentialToParallel(kappa=0.3), made, moment(sets=sets))) == expected


@pytest.mark.parametrize(("fraction", "sets", "expected"), [(0.2, 45, 9), (0.29, 100, 29), (0.2, 4, 1), (1.0, 7, 7)])
def test_fraction_of_superclients_trains_rounded_down(fraction, sets, expected):
    made = [ClientSet("site", (f"d{n}",)) for n in range(sets)]
    going = depart(EveryRound(fraction=fraction), made, moment(sets=sets))
    assert len({each.set for each in going}) == len(going) == expected


def test_every_round_starts_from_global_model_as_arranged():
    assert depart(EveryRound(), SETS, moment()) == [Departure(each) for each in SETS]


def test_shuffling_keeps_devices_and_varies_by_set_and_round():
    going = depart(EveryRound(order="shuffled"), SETS, moment())
    assert [sorted(each.set.devices) for each in going] == [sorted(each.devices) for each in SETS]
    orders = {tuple(SETS[n].devices.index(d) for d in each.set.devices) for n, each in enumerate(going)}
    assert len(orders) > 1
    assert going != depart(EveryRound(order="shuffled"), SETS, moment(seed=8))
    assert going == depart(EveryRound(order="shuffled"), SETS, moment())


def test_passes_repeat_the_tour_in_order():
    (first, *_) = depart(EveryRound(passes=3), SETS, moment())
    assert first.set.devices == SETS[0].devices * 3


def test_slots_get_sets_in_drawing_order():
    going = depart(Slots(fraction=0.6), SETS, moment(seed=3))
    assert [each.slot for each in going] == ["slot-0", "slot-1", "slot-2"]
    assert len({each.set for each in going}) == 3
    assert [each.set for each in going] != [each.set for each in depart(Slots(fraction=0.6), SETS, moment(seed=4))]


def test_slot_gets_different_sets_even_if_all_train():
    met = [[each.set for each in depart(Slots(), SETS, moment(seed=seed))] for seed in range(6)]
    assert all(sorted(each.devices for each in one) == sorted(each.devices for each in SETS) for one in met)
    assert len({one[0] for one in met}) > 1


def test_rotation_sends_copy_i_to_device_i_plus_j_in_round_j():
    for j in range(7):
        going = depart(Slots(rotate=True), SETS, moment(since_merge=j))
        assert [(each.slot, each.set) for each in going] == [(f"slot-{i}", SETS[(i + j) % 5]) for i in range(5)]


def test_slots_merge_after_a_cycle_or_as_set_and_at_the_end():
    assert [merges(Slots(), moment(since_merge=since)) for since in range(5)] == [False] * 4 + [True]
    assert [merges(Slots(merge_every=2), moment(since_merge=since)) for since in (0, 1)] == [False, True]
    assert merges(Slots(merge_every=1), moment())
    assert merges(Slots(rotate=True), moment(since_merge=1, last=True))
    assert not merges(Slots(), moment(since_merge=1, last=True))


def test_other_schedules_merge_after_each_round():
    for schedule in (EveryRound(), SequentialToParallel(), Ring(), OneShot(), EdgeCloud()):
        assert merges(schedule, moment())


def test_ring_visits_all_sets_leg_after_leg():
    assert depart(Ring(), SETS, moment()) == [Departure(each, leg=n) for n, each in enumerate(SETS)]


@pytest.mark.parametrize(
    ("schedule", "expected"),
    [
        (EveryRound(), [True] * 6),
        (EveryRound(rearrange_every=0), [True] + [False] * 5),
        (EveryRound(rearrange_every=2), [True, False] * 3),
        (Slots(), [True] + [False] * 5),
        (Slots(rearrange_every=1), [True] * 6),
        (SequentialToParallel(), [True] * 6),
        (Ring(trips=6), [True] + [False] * 5),
        (EdgeCloud(rearrange_every=3), [True, False, False] * 2),
    ],
)
def test_rearrangement_rounds_follow_the_schedule(schedule, expected):
    assert [rearranges(schedule, number) for number in range(1, 7)] == expected


def test_rings_and_one_shots_have_fixed_round_counts():
    assert (Ring(trips=3).fixed_rounds, OneShot().fixed_rounds, EveryRound().fixed_rounds) == (3, 1, None)


class EveryOther(msgspec.Struct):
    """A custom schedule: every other set, and a merge every `cycle` rounds."""

    cycle: int = 2

    def depart(self, sets, moment):
        return [Departure(each, f"slot-{n}") for n, each in enumerate(sets[moment.round % 2 :: 2])]

    def merges(self, moment):
        return moment.since_merge + 1 >= self.cycle

    def wanted_sets(self, number, devices):
        return math.ceil(devices / number)


def test_custom_schedule_is_used():
    own = OwnSchedule(part=f"{__name__}:EveryOther", settings={"cycle": 3})
    assert [each.set for each in depart(own, SETS, moment(2))] == SETS[::2]
    assert [merges(own, moment(since_merge=n)) for n in range(3)] == [False, False, True]
    assert (sets_asked_for(own, 3, 10), rearranges(own, 5)) == (4, True)


def test_missing_custom_schedule_is_reported():
    with pytest.raises(ConfigError, match="nowhere:Nothing is not installed here"):
        depart(OwnSchedule(part="nowhere:Nothing"), SETS, moment())


def test_phased_ring_trains_devices_alone_before_and_after_trips() -> None:
    ring = PhasedRing(trips=2)
    assert ring.fixed_rounds == 4
    alone = [(each.set.site, each.set.devices, each.leg) for each in depart(ring, SETS, moment(1))]
    assert alone == [(each.site, (device,), 0) for each in SETS for device in each.devices]
    assert [each.set.devices for each in depart(ring, SETS, moment(4))] == [devices for _, devices, _ in alone]
    for number in (2, 3):
        assert depart(ring, SETS, moment(number)) == [Departure(each, leg=leg) for leg, each in enumerate(SETS)]
    assert [rearranges(ring, number) for number in (1, 2, 4)] == [True, False, False]
    assert all(merges(ring, moment(number)) for number in (1, 2, 4))


def test_device_in_two_sets_trains_alone_once() -> None:
    twice = [*SETS[:1], ClientSet("site-9", SETS[0].devices[:2])]
    assert [each.set.devices for each in depart(PhasedRing(trips=1), twice, moment(1))] == [
        (device,) for device in SETS[0].devices
    ]
