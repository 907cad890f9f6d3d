"""The interface of all arrangers: check an arrangement, make it, deal spares, and measure its quality."""

from __future__ import annotations

from collections.abc import Sequence
from itertools import islice
from typing import assert_never

import numpy as np
from numpy.typing import NDArray

from hierarchy.arranging.candidates import ArrangeContext, Arranged, Candidates, ClientSet, Memo, custom_sets
from hierarchy.arranging.clustering import clusamp_picks, hiercluster_groups
from hierarchy.arranging.fedcat import fedcat_picks
from hierarchy.arranging.fedseq import KnownDevices, fedseq_groups
from hierarchy.arranging.icg import icg_groups
from hierarchy.arranging.measures import quality
from hierarchy.arranging.pools import DevicePool, Plan, device_pools, place_alone, place_groups, share_out
from hierarchy.arranging.reservations import Reservations, deal
from hierarchy.arranging.simple_sets import after_turns, chain_sets, random_groups, single_sets, site_sets
from hierarchy.arranging.visit import visit_sets
from sojourn.errors import Fault, JobError
from sojourn.parts import (
    Arranger,
    ChainArranger,
    CluSampArranger,
    CustomArranger,
    FedCatArranger,
    FedSeqArranger,
    HierClusterArranger,
    IcgArranger,
    RandomArranger,
    SingleArranger,
    SiteArranger,
    VisitArranger,
    name_of,
)
from sojourn.randomness import derive, generator

PoolArranger = RandomArranger | FedSeqArranger | IcgArranger | HierClusterArranger

__all__ = [
    "MAX_HOPS",
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

MAX_HOPS = 2500
"""The number of hops that `messages.Tour` can carry."""


def sets_to_make(settings: Arranger, candidates: Candidates, context: ArrangeContext) -> int:
    """Return how many sets to make: the schedule's number, limited to the devices, otherwise the arranger's number.

    0 if the devices determine the number.
    """
    if settings.counted and context.sets is not None:
        return min(context.sets, len(candidates.online))
    match settings:
        case SingleArranger() | ChainArranger() | SiteArranger() | CustomArranger():
            return 0
        case _:
            return settings.sets


def check(settings: Arranger, candidates: Candidates, context: ArrangeContext) -> str | None:
    """Return why this arrangement cannot be made now; None if it can."""
    name, online, sets = name_of(settings), len(candidates.online), sets_to_make(settings, candidates, context)
    if not online:
        return f"{name} needs at least 1 device; none is online"
    if online < sets:
        return (
            f"{name} needs at least {sets} devices for {sets} sets; {online} are online: arranger.sets = {online} "
            "would use all of them"
        )
    if isinstance(settings, FedSeqArranger) and settings.half_sized:
        return f"fedseq needs both sets and size, or neither; sets is {settings.sets} and size is {settings.size}"
    return _unknown_rows(settings, candidates) or _unknown_samples(settings, candidates) or _too_long(settings, online)


def _unknown_rows(settings: Arranger, candidates: Candidates) -> str | None:
    """Return what is missing in the devices' rows."""
    name, rows = name_of(settings), candidates.signatures
    if settings.needs == "nothing":
        return None
    if rows is None:
        return f"{name} needs a signature of every device; choose an estimator"
    odd = np.flatnonzero(~np.isfinite(rows).all(axis=1))
    if len(odd):
        return (
            f"{name} needs finite signatures; that of {candidates.devices[odd[0]]} is not finite ({len(odd)} in total)"
        )
    if isinstance(settings, FedSeqArranger) and settings.distributions:
        name += f" with {settings.tau}"
    if (settings.needs == "classes" or settings.distributions) and not candidates.by_class:
        return f"{name} needs one number for each class of every device; these rows have other columns"
    if settings.distributions and (low := np.flatnonzero((rows < 0).any(axis=1))).size:
        return f"{name} needs rows without negative numbers; that of {candidates.devices[low[0]]} has some"
    return None


def _unknown_samples(settings: Arranger, candidates: Candidates) -> str | None:
    """Return what is missing in the devices' sample counts."""
    if not settings.weighs:
        return None
    if candidates.samples is None:
        return f"{name_of(settings)} needs the number of samples of each device; choose an estimator that measures it"
    if settings.draws_by_samples and not candidates.samples[candidates.online].any():
        return f"{name_of(settings)} needs devices with samples; no online device has any"
    return None


def _too_long(settings: Arranger, online: int) -> str | None:
    """Return why the requested sets are longer than a tour can be."""
    if not isinstance(settings, VisitArranger | RandomArranger | FedSeqArranger | HierClusterArranger):
        return None
    hops = min(settings.size, online)
    if hops <= MAX_HOPS:
        return None
    return f"{name_of(settings)} would make tours of {hops} visits; a tour has at most {MAX_HOPS}"


def arrange(settings: Arranger, candidates: Candidates, context: ArrangeContext) -> Arranged:
    """Return the client sets, in plan order, and the arranger's memo; the same context gives the same result."""
    if (reason := check(settings, candidates, context)) is not None:
        raise JobError(reason)
    arranged = _arranged(settings, candidates, context)
    longest = max(len(each.devices) for each in arranged.sets)
    if longest > MAX_HOPS:
        raise JobError(f"{name_of(settings)} made a tour of {longest} visits; a tour has at most {MAX_HOPS}")
    return arranged


def deal_spares(
    sets: Sequence[ClientSet], candidates: Candidates, per_tour: int, seed: int
) -> tuple[tuple[str, ...], ...]:
    """Return the spares of each tour: up to `per_tour` unused devices that reach its site, dealt without repeats."""
    if not per_tour:
        return ((),) * len(sets)
    free = np.ones(len(candidates.devices), bool)
    free[candidates.rows_of(device for each in sets for device in each.devices)] = False
    order = generator(seed, "spares").permutation(len(candidates.devices))
    idle = order[free[order]]
    # A site may have gone offline since the sets were made: then no device reaches it.
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
    """Return the quality measures that the candidates' rows allow; empty without rows."""
    if candidates.signatures is None:
        return {}
    # Several passes over a set repeat its devices; each device counts once.
    members = [candidates.rows_of(dict.fromkeys(each.devices)) for each in sets]
    return quality(_rows(candidates), members, by_class=candidates.by_class, counts=candidates.counts)


def _arranged(settings: Arranger, candidates: Candidates, context: ArrangeContext) -> Arranged:
    """Call the arranger with its view of the fleet: the reachability table, the devices, or pool by pool."""
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
            online = candidates.online
            rows, samples = _rows(candidates)[online], _samples(candidates)[online]
            picks = clusamp_picks(rows, samples, settings.sets, context.seed)
            plan = place_alone(online[picks].tolist(), candidates.table)
        case FedCatArranger():
            return _fedcat(settings, candidates, context)
        case CustomArranger():
            return custom_sets(settings, candidates, context)
        case RandomArranger(turns=True):
            groups = _named(_pooled(settings, candidates, context), candidates)
            return Arranged(groups, after_turns(context.memo, (name for each in groups for name in each.devices)))
        case RandomArranger() | FedSeqArranger() | IcgArranger() | HierClusterArranger():
            plan = _pooled(settings, candidates, context)
        case _:
            assert_never(settings)
    return Arranged(_named(plan, candidates), context.memo)


def _fedcat(settings: FedCatArranger, candidates: Candidates, context: ArrangeContext) -> Arranged:
    online = [candidates.devices[row] for row in candidates.online]
    picks, memo = fedcat_picks(settings, online, context.round, context.memo, context.seed)
    plan = place_alone([candidates.devices.index(device) for device in picks], candidates.table)
    return Arranged(_named(plan, candidates), memo)


def _pooled(settings: PoolArranger, candidates: Candidates, context: ArrangeContext) -> Plan:
    """Return the sets of each selected pool, pool after pool."""
    pools, sets = device_pools(candidates.table), sets_to_make(settings, candidates, context)
    shares = share_out(pools, sets, context.seed) if sets else [0] * len(pools)
    plan: Plan = []
    for number, (pool, share) in enumerate(zip(pools, shares, strict=True)):
        if share or not sets:
            seed = derive(context.seed, "pool", number)
            plan += place_groups(pool, _groups(settings, candidates, pool, share, seed, context.memo))
    return plan


def _groups(
    settings: PoolArranger, candidates: Candidates, pool: DevicePool, sets: int, seed: int, memo: Memo
) -> list[list[int]]:
    """Return the groups of one pool, by the numbers of its devices."""
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
    """Return the signatures; raise Fault if there are none."""
    if candidates.signatures is None:
        raise Fault("these candidates have no signatures")
    return np.asarray(candidates.signatures, np.float64)


def _samples(candidates: Candidates) -> NDArray[np.int64]:
    """Return the sample counts; raise Fault if there are none."""
    if candidates.samples is None:
        raise Fault("these candidates have no samples")
    return candidates.samples
