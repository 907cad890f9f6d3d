"""Which devices form which tours: every arranger behind one function, spares, and the quality of what was made."""

from __future__ import annotations

from itertools import islice
from typing import TYPE_CHECKING, assert_never

import numpy as np

from hierarchy.arranging.candidates import ArrangeContext, Arranged, Candidates, ClientSet, Memo
from hierarchy.arranging.chain import chain_sets, site_sets
from hierarchy.arranging.clusamp import clusamp_picks
from hierarchy.arranging.fedcat import fedcat_picks
from hierarchy.arranging.fedseq import KnownDevices, fedseq_groups
from hierarchy.arranging.hiercluster import hiercluster_groups
from hierarchy.arranging.icg import icg_groups
from hierarchy.arranging.measures import quality
from hierarchy.arranging.own import own_sets
from hierarchy.arranging.pools import DevicePool, Plan, device_pools, place_alone, place_groups, share_out
from hierarchy.arranging.random_sets import after_turns, random_groups
from hierarchy.arranging.refusals import MOST_HOPS, check, sets_to_make
from hierarchy.arranging.reservations import Reservations, deal
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
    "ArrangeContext",
    "Arranged",
    "Candidates",
    "ClientSet",
    "Memo",
    "arrange",
    "check",
    "deal_spares",
    "quality_of",
]


def arrange(settings: Arranger, candidates: Candidates, context: ArrangeContext) -> Arranged:
    """The client sets, in plan order, and the arranger's memo; the same for the same context."""
    if (reason := check(settings, candidates, context)) is not None:
        raise JobError(reason)
    arranged = _arranged(settings, candidates, context)
    longest = max(len(each.devices) for each in arranged.sets)
    if longest > MOST_HOPS:
        raise JobError(f"{name_of(settings)} made a tour of {longest} visits; at most {MOST_HOPS} fit in one")
    return arranged


def deal_spares(
    sets: Sequence[ClientSet], candidates: Candidates, per_tour: int, seed: int
) -> tuple[tuple[str, ...], ...]:
    """The spares of each tour: up to `per_tour` devices of no set that reach its site, dealt in turn, never twice."""
    if not per_tour:
        return ((),) * len(sets)
    free = np.ones(len(candidates.devices), bool)
    free[candidates.rows_of(device for each in sets for device in each.devices)] = False
    order = generator(seed, "spares").permutation(len(candidates.devices))
    idle = order[free[order]]
    # A site may be gone since the sets were made: then no one reaches it.
    table = np.pad(candidates.table[idle], [(0, 0), (0, 1)])
    column = {site: number for number, site in enumerate(candidates.sites)}
    sites = [column.get(each.site, len(column)) for each in sets]
    reservations = Reservations(table)
    counts = deal(reservations, sites, per_tour)
    stock = {site: iter(reservations.promised(site)) for site in set(sites)}
    return tuple(
        tuple(candidates.devices[int(idle[spare])] for spare in islice(stock[site], count))
        for site, count in zip(sites, counts, strict=True)
    )


def quality_of(sets: Sequence[ClientSet], candidates: Candidates) -> dict[str, float]:
    """The measures of client sets that the candidates' rows can show; nothing where they have none."""
    if candidates.signatures is None:
        return {}
    # Several passes over a set repeat its devices; each counts once.
    members = [candidates.rows_of(dict.fromkeys(each.devices)) for each in sets]
    return quality(_rows(candidates), members, by_class=candidates.by_class, counts=candidates.counts)


def _arranged(settings: Arranger, candidates: Candidates, context: ArrangeContext) -> Arranged:
    """Every arranger as it sees the fleet: as a table of who reaches whom, by device, or pool by pool."""
    match settings:
        case SingleArranger():
            plan = single_sets(settings, candidates.table, context.seed)
        case VisitArranger():
            sets = sets_to_make(settings, candidates, context)
            plan = visit_sets(settings, sets, _rows(candidates), candidates.table, context.seed)
        case ChainArranger():
            plan = chain_sets(settings, candidates.table, context.seed)
        case SiteArranger():
            plan = site_sets(settings, candidates.table, context.seed)
        case CluSampArranger():
            picks = clusamp_picks(
                _rows(candidates)[candidates.here], _samples(candidates)[candidates.here], settings.sets, context.seed
            )
            plan = place_alone(candidates.here[picks].tolist(), candidates.table)
        case FedCatArranger():
            return _fedcat(settings, candidates, context)
        case OwnArranger():
            return own_sets(settings, candidates, context)
        case RandomArranger(turns=True):
            groups = _named(_pooled(settings, candidates, context), candidates)
            return Arranged(groups, after_turns(context.memo, (name for each in groups for name in each.devices)))
        case RandomArranger() | FedSeqArranger() | IcgArranger() | HierClusterArranger():
            plan = _pooled(settings, candidates, context)
        case _:
            assert_never(settings)
    return Arranged(_named(plan, candidates), context.memo)


def _fedcat(settings: FedCatArranger, candidates: Candidates, context: ArrangeContext) -> Arranged:
    here = [candidates.devices[row] for row in candidates.here]
    picks, memo = fedcat_picks(settings, here, context.round, context.memo, context.seed)
    return Arranged(
        _named(place_alone([candidates.devices.index(device) for device in picks], candidates.table), candidates), memo
    )


def _pooled(settings: PoolArranger, candidates: Candidates, context: ArrangeContext) -> Plan:
    """The sets of each pool that has its turn, pool after pool."""
    pools, sets = device_pools(candidates.table), sets_to_make(settings, candidates, context)
    shares = share_out(pools, sets, context.seed) if sets else [0] * len(pools)
    plan: Plan = []
    for number, (pool, share) in enumerate(zip(pools, shares, strict=True)):
        if share or not sets:
            seed = derive(context.seed, "pool", number)
            plan += place_groups(pool, _groups(settings, candidates, pool, share, seed, context.memo))
    return plan


def _groups(  # all that an arranger may look at
    settings: PoolArranger, candidates: Candidates, pool: DevicePool, sets: int, seed: int, memo: Memo
) -> list[list[int]]:
    """The groups of one pool, by the numbers of its devices."""
    devices = list(pool.devices)
    match settings:
        case RandomArranger():
            turns = [memo.get(candidates.devices[row], (0,))[0] for row in devices] if settings.turns else ()
            return random_groups(settings, len(devices), sets, seed, turns)
        case FedSeqArranger():
            rows = None if candidates.signatures is None else _rows(candidates)[devices]
            samples = None if candidates.samples is None else candidates.samples[devices]
            classes = None if candidates.by_class else candidates.classes
            return fedseq_groups(settings, KnownDevices(len(devices), rows, samples, classes), sets, seed)
        case IcgArranger():
            return icg_groups(settings, _rows(candidates)[devices], sets, seed)
        case HierClusterArranger():
            return hiercluster_groups(settings, _rows(candidates)[devices], sets, seed)


def _named(plan: Plan, candidates: Candidates) -> tuple[ClientSet, ...]:
    return tuple(
        ClientSet(candidates.sites[site], tuple(candidates.devices[row] for row in rows)) for site, rows in plan
    )


def _rows(candidates: Candidates) -> NDArray[np.float64]:
    """The signatures of candidates that have them."""
    if candidates.signatures is None:
        raise Fault("these candidates have no signatures")
    return np.asarray(candidates.signatures, np.float64)


def _samples(candidates: Candidates) -> NDArray[np.int64]:
    """The samples of candidates that have them."""
    if candidates.samples is None:
        raise Fault("these candidates have no samples")
    return candidates.samples
