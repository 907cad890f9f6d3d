"""FedCat's grouping- and count-based device selection: one device of each of K random groups in every round.

"FedCat: Towards Accurate Federated Learning via Device Concatenation", Algorithm 3. In round r (from 1) of a cycle of K
rounds the position is j = (r - 1) mod K, and a device's weight is 1 / sqrt(how often it was picked in position j). A
device that was never picked there has no finite weight: such devices come first, each as likely as another. Groups are
drawn anew every lambda·K rounds; counts are kept.

What the paper leaves open: a pick counts when it is planned, so a device that always declines does not block its group;
a device that joins between two regroupings goes to the smallest group; a device that leaves keeps its group and counts
in case it returns; and a group that is left without devices takes one, by chance, of the largest group, so that every
round has K devices and every model copy a place to go.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

import numpy as np

from sojourn.randomness import generator

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence

    from sojourn.parts import FedCatArranger

    Memo = dict[str, tuple[int, ...]]


NO_GROUP = -1
"""The group of a device that was away when groups were drawn."""


def fedcat_picks(
    settings: FedCatArranger, devices: Sequence[str], number: int, memo: Memo, seed: int
) -> tuple[list[str], Memo]:
    """The devices of round `number`, group after group, and what to remember: each device's group and K counts."""
    draw, cycle = generator(seed, "fedcat"), settings.sets
    if not settings.grouped:
        return [devices[row] for row in draw.choice(len(devices), cycle, replace=False).tolist()], memo
    # A memo of cycles of another length is of no use.
    known = {device: entry for device, entry in memo.items() if len(entry) == cycle + 1}
    counts = {device: [0] * cycle for device in devices} | {device: list(entry[1:]) for device, entry in known.items()}
    position = (number - 1) % cycle
    anew = (number - 1) % (settings.regroup * cycle) == 0
    homes = dict.fromkeys(known, NO_GROUP) if anew else {device: entry[0] for device, entry in known.items()}
    groups = _groups(homes, devices, cycle, draw)
    homes |= {device: home for home, group in enumerate(groups) for device in group}
    picks = [_pick(group, [counts[device][position] for device in group], settings.epsilon, draw) for group in groups]
    for device in picks:
        counts[device][position] += 1
    return picks, {device: (homes[device], *counts[device]) for device in sorted(counts)}


def _groups(homes: Mapping[str, int], devices: Sequence[str], cycle: int, draw: np.random.Generator) -> list[list[str]]:
    """The groups of the devices that are here, none of them empty."""
    groups = [[device for device in devices if homes.get(device) == home] for home in range(cycle)]
    new = [device for device in devices if homes.get(device, NO_GROUP) == NO_GROUP]
    for row in draw.permutation(len(new)).tolist():
        fewest = min(map(len, groups))
        groups[draw.choice([home for home in range(cycle) if len(groups[home]) == fewest])].append(new[row])
    for group in groups:
        if not group:
            largest = max(groups, key=len)
            group.append(largest.pop(int(draw.integers(len(largest)))))
    return groups


def _pick(group: Sequence[str], counts: Sequence[int], epsilon: float, draw: np.random.Generator) -> str:
    """One device of a group, by how often each was picked in this position."""
    fewest = min(counts)
    if fewest == 0 or draw.random() < epsilon:
        return group[int(draw.choice([row for row, count in enumerate(counts) if count == fewest]))]
    weights = 1 / np.sqrt(counts)
    return group[int(draw.choice(len(group), p=weights / weights.sum()))]
