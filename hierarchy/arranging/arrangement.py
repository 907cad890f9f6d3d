"""Which devices form which tours: every arranger behind one function, spares, and the quality of what was made."""

from __future__ import annotations

from itertools import islice
from typing import TYPE_CHECKING, assert_never

import numpy as np

from hierarchy.arranging.candidates import Arranged, ClientSet, Memo, Roll, Turn
from hierarchy.arranging.chain import chain_sets, site_sets
from hierarchy.arranging.clusamp import clusamp_picks
from hierarchy.arranging.fedcat import fedcat_picks
from hierarchy.arranging.fedseq import Known, fedseq_groups
from hierarchy.arranging.hiercluster import hiercluster_groups
from hierarchy.arranging.icg import icg_groups
from hierarchy.arranging.measures import quality
from hierarchy.arranging.own import own_sets
from hierarchy.arranging.pools import Plan, Pool, pools_of, seat_alone, seat_groups, share_out
from hierarchy.arranging.random_sets import random_groups
from hierarchy.arranging.refusals import MOST_HOPS, check, wanted_sets
from hierarchy.arranging.reservations import Seats, deal
from hierarchy.arranging.single import single_sets
from hierarchy.arranging.visit import visit_sets
from sojourn.errors import Fault, JobError
from sojourn.parts import (
    Arranger,
    ChainArranger,
    CluSampArranger,
    FedCatArranger,
    FedSeqArranger,
    HierClusterArranger,
    IcgArranger,
    OwnArranger,
    RandomArranger,
    SingleArranger,
    SiteArranger,
    VisitArranger,
    name_of,
)
from sojourn.randomness import derive, generator

if TYPE_CHECKING:
    from collections.abc import Sequence

    from numpy.typing import NDArray

    PoolArranger = RandomArranger | FedSeqArranger | IcgArranger | HierClusterArranger

__all__ = [
    "MOST_HOPS",
    "Arranged",
    "ClientSet",
    "Memo",
    "Roll",
    "Turn",
    "arrange",
    "check",
    "deal_spares",
    "quality_of",
]


def arrange(settings: Arranger, roll: Roll, turn: Turn) -> Arranged:
    """The client sets, in plan order, and the arranger's memo; the same for the same turn."""
    if (reason := check(settings, roll, turn)) is not None:
        raise JobError(reason)
    arranged = _arranged(settings, roll, turn)
    longest = max(len(each.devices) for each in arranged.sets)
    if longest > MOST_HOPS:
        raise JobError(f"{name_of(settings)} made a tour of {longest} visits; at most {MOST_HOPS} fit in one")
    return arranged


def deal_spares(sets: Sequence[ClientSet], roll: Roll, per_tour: int, seed: int) -> tuple[tuple[str, ...], ...]:
    """The spares of each tour: up to `per_tour` devices of no set that reach its site, dealt in turn, never twice."""
    used = {device for each in sets for device in each.devices}
    order = generator(seed, "spares").permutation(len(roll.devices)).tolist()
    idle = [row for row in order if roll.devices[row] not in used]
    # A site may have left the roll since the sets were made: then no one reaches it.
    table = np.pad(roll.table[idle], [(0, 0), (0, 1)])
    column = {site: number for number, site in enumerate(roll.sites)}
    sites = [column.get(each.site, len(column)) for each in sets]
    seats = Seats(table)
    counts = deal(seats, sites, per_tour)
    stock = {site: iter(seats.promised(site)) for site in set(sites)}
    return tuple(
        tuple(roll.devices[idle[spare]] for spare in islice(stock[site], count))
        for site, count in zip(sites, counts, strict=True)
    )


def quality_of(sets: Sequence[ClientSet], roll: Roll) -> dict[str, float]:
    """The measures of client sets that the roll's rows can show; nothing where it has none."""
    if roll.signatures is None:
        return {}
    row = {device: number for number, device in enumerate(roll.devices)}
    # Several passes over a set repeat its devices; each counts once.
    members = [[row[device] for device in dict.fromkeys(each.devices)] for each in sets]
    return quality(_rows(roll), members, by_class=roll.by_class, counts=roll.counts)


def _arranged(settings: Arranger, roll: Roll, turn: Turn) -> Arranged:
    """Every arranger as it sees the fleet: as a table of who reaches whom, by device, or pool by pool."""
    match settings:
        case SingleArranger():
            plan = single_sets(settings, roll.table, turn.seed)
        case VisitArranger():
            sets = wanted_sets(settings, roll, turn)
            plan = visit_sets(settings, sets, _rows(roll), roll.table, turn.seed)
        case ChainArranger():
            plan = chain_sets(settings, roll.table, turn.seed)
        case SiteArranger():
            plan = site_sets(settings, roll.table, turn.seed)
        case CluSampArranger():
            picks = clusamp_picks(_rows(roll)[roll.here], _samples(roll)[roll.here], settings.sets, turn.seed)
            plan = seat_alone(roll.here[picks].tolist(), roll.table)
        case FedCatArranger():
            return _fedcat(settings, roll, turn)
        case OwnArranger():
            return own_sets(settings, roll, turn)
        case RandomArranger() | FedSeqArranger() | IcgArranger() | HierClusterArranger():
            plan = _pooled(settings, roll, turn)
        case _:
            assert_never(settings)
    return Arranged(_named(plan, roll), turn.memo)


def _fedcat(settings: FedCatArranger, roll: Roll, turn: Turn) -> Arranged:
    here = [roll.devices[row] for row in roll.here]
    picks, memo = fedcat_picks(settings, here, turn.round, turn.memo, turn.seed)
    return Arranged(_named(seat_alone([roll.devices.index(device) for device in picks], roll.table), roll), memo)


def _pooled(settings: PoolArranger, roll: Roll, turn: Turn) -> Plan:
    """The sets of each pool that has its turn, pool after pool."""
    pools, sets = pools_of(roll.table), wanted_sets(settings, roll, turn)
    shares = share_out(pools, sets, turn.seed) if sets else [0] * len(pools)
    plan: Plan = []
    for number, (pool, share) in enumerate(zip(pools, shares, strict=True)):
        if share or not sets:
            plan += seat_groups(pool, _groups(settings, roll, pool, share, derive(turn.seed, "pool", number)))
    return plan


def _groups(settings: PoolArranger, roll: Roll, pool: Pool, sets: int, seed: int) -> list[list[int]]:
    """The groups of one pool, by the numbers of its devices."""
    devices = list(pool.devices)
    match settings:
        case RandomArranger():
            return random_groups(settings, len(devices), sets, seed)
        case FedSeqArranger():
            rows = None if roll.signatures is None else _rows(roll)[devices]
            samples = None if roll.samples is None else roll.samples[devices]
            classes = None if roll.by_class else roll.classes
            return fedseq_groups(settings, Known(len(devices), rows, samples, classes), sets, seed)
        case IcgArranger():
            return icg_groups(settings, _rows(roll)[devices], sets, seed)
        case HierClusterArranger():
            return hiercluster_groups(settings, _rows(roll)[devices], sets, seed)


def _named(plan: Plan, roll: Roll) -> tuple[ClientSet, ...]:
    return tuple(ClientSet(roll.sites[site], tuple(roll.devices[row] for row in rows)) for site, rows in plan)


def _rows(roll: Roll) -> NDArray[np.float64]:
    """The signatures of a roll that has them."""
    if roll.signatures is None:
        raise Fault("this roll has no signatures")
    return np.asarray(roll.signatures, np.float64)


def _samples(roll: Roll) -> NDArray[np.int64]:
    """The samples of a roll that has them."""
    if roll.samples is None:
        raise Fault("this roll has no samples")
    return roll.samples
