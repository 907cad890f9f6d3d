"""Device pools: groups of sites that reach the same devices.

A set belongs to one site. Sites that reach exactly the same devices are one pool, so an arranger of sets sees each pool
as its paper sees the whole fleet; if all devices reach all sites there is one pool. Arrangers of single devices choose
from the whole fleet and place each device separately.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from sojourn.randomness import generator

Mask = NDArray[np.bool_]

Plan = list[tuple[int, tuple[int, ...]]]
"""The sets as (site, devices in order of addition), by column and row number of the reachability table."""


@dataclass(frozen=True)
class DevicePool:
    """Sites that reach the same devices, and the devices assigned to them; by column and row number."""

    sites: tuple[int, ...]
    devices: tuple[int, ...]


def device_pools(reach: Mask) -> list[DevicePool]:
    """Return the pools that have devices, by their first site; every device that reaches a site is in one of them."""
    columns: dict[bytes, list[int]] = {}
    for site in range(reach.shape[1]):
        columns.setdefault(reach[:, site].tobytes(), []).append(site)
    sites = list(columns.values())
    homes = assign_sites(reach[:, [each[0] for each in sites]])
    found = [
        DevicePool(tuple(each), tuple(np.flatnonzero(homes == number).tolist())) for number, each in enumerate(sites)
    ]
    return [each for each in found if each.devices]


def assign_sites(reach: Mask) -> NDArray[np.int64]:
    """Return the column of each device: of those it reaches, the one with the fewest devices so far; -1 if none.

    Devices with the fewest reachable sites come first; ties go to the lowest number.
    """
    homes = np.full(len(reach), -1, np.int64)
    load = np.zeros(reach.shape[1], np.int64)
    for device in np.argsort(reach.sum(axis=1), kind="stable").tolist():
        if (column := _lightest(reach[device], load)) is not None:
            homes[device] = column
            load[column] += 1
    return homes


def place_alone(devices: Iterable[int], reach: Mask) -> Plan:
    """Return a set for each of these devices, in order, each at the reachable site with the fewest sets so far."""
    load = np.zeros(reach.shape[1], np.int64)
    plan: Plan = []
    for device in devices:
        if (site := _lightest(reach[device], load)) is not None:
            load[site] += 1
            plan.append((site, (device,)))
    return plan


def share_out(pools: Sequence[DevicePool], sets: int, seed: int) -> list[int]:
    """Return how many sets each pool makes: in proportion to its devices by largest remainder, at least one.

    With fewer sets than pools, pools are drawn, weighted by devices, so that in time every pool is drawn. A pool never
    gets more sets than devices, unless there are more sets than devices in total.
    """
    devices = np.array([len(pool.devices) for pool in pools], np.int64)
    if sets < len(pools):
        turns = generator(seed, "pools").choice(len(pools), sets, replace=False, p=devices / devices.sum())
        return [int(number in turns) for number in range(len(pools))]
    # In units of 1 / all devices, so that the quotas are whole numbers.
    unit = int(devices.sum())
    due = [sets * count for count in devices.tolist()]
    held = [max(1, each // unit) for each in due]
    while (missing := sets - sum(held)) != 0:
        owed = [each - unit * mine for each, mine in zip(due, held, strict=True)]
        if missing > 0:
            held[owed.index(max(owed))] += 1
        else:
            held[owed.index(min(each for each, mine in zip(owed, held, strict=True) if mine > 1))] -= 1
    return held


def level(devices: int, sets: int, size: int = 0) -> list[int]:
    """Return the sizes of the sets: all of `size`; as level as possible with too few devices, or all devices for 0."""
    least, more = divmod(min(devices, sets * size) if size else devices, sets)
    return [least + 1] * more + [least] * (sets - more)


def place_groups(pool: DevicePool, groups: Iterable[Sequence[int]]) -> Plan:
    """Return the groups, whose numbers count the devices of the pool, at the sites of the pool in turn."""
    return [
        (pool.sites[number % len(pool.sites)], tuple(pool.devices[member] for member in group))
        for number, group in enumerate(groups)
    ]


def _lightest(reached: Mask, load: NDArray[np.int64]) -> int | None:
    """Return the reached column with the least load, the lowest of equals."""
    columns = np.flatnonzero(reached)
    return int(columns[np.argmin(load[columns])]) if len(columns) else None
