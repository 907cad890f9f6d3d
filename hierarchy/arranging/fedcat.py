"""FedCat's grouping- and count-based device selection: one device of each of K random groups in every round.

"FedCat: Towards Accurate Federated Learning via Device Concatenation", Algorithm 3. In round r (from 1) of a cycle of K
rounds the position is j = (r - 1) mod K, and a device's weight is 1 / sqrt(number of picks in position j). A device
that was never picked there has no finite weight: such devices come first, with equal probability. Groups are drawn
again every lambda·K rounds; counts are kept.

The paper leaves some cases open. Here a pick counts when it is planned, so a device that always declines does not block
its group. A device that joins between two regroupings goes to the smallest group. A device that leaves keeps its group
and counts in case it returns. A group without devices takes a random one of the largest group, so that every round has
K devices, one for each copy of the model.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence

import numpy as np

from hierarchy.arranging.candidates import Memo
from sojourn.parts import FedCatArranger
from sojourn.randomness import generator

NO_GROUP = -1
"""The group of a device that was offline when groups were drawn."""


def fedcat_picks(
    settings: FedCatArranger, devices: Sequence[str], number: int, memo: Memo, seed: int
) -> tuple[list[str], Memo]:
    """Return the devices of round `number`, group after group, and the memo: each device's group and K counts."""
    draw, cycle = generator(seed, "fedcat"), settings.sets
    if not settings.grouped:
        return [devices[row] for row in draw.choice(len(devices), cycle, replace=False).tolist()], memo
    # A memo of cycles of another length cannot be used.
    known = {device: entry for device, entry in memo.items() if len(entry) == cycle + 1}
    counts = {device: [0] * cycle for device in devices} | {device: list(entry[1:]) for device, entry in known.items()}
    position = (number - 1) % cycle
    regroup = (number - 1) % (settings.regroup * cycle) == 0
    homes = dict.fromkeys(known, NO_GROUP) if regroup else {device: entry[0] for device, entry in known.items()}
    groups = _groups(homes, devices, cycle, draw)
    homes |= {device: home for home, group in enumerate(groups) for device in group}
    picks = [_pick(group, [counts[device][position] for device in group], settings.epsilon, draw) for group in groups]
    for device in picks:
        counts[device][position] += 1
    return picks, {device: (homes[device], *counts[device]) for device in sorted(counts)}


def _groups(homes: Mapping[str, int], devices: Sequence[str], cycle: int, draw: np.random.Generator) -> list[list[str]]:
    """Return the groups of the online devices; no group is empty."""
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
    """Return one device of a group, weighted by how often each was picked in this position."""
    fewest = min(counts)
    if fewest == 0 or draw.random() < epsilon:
        return group[int(draw.choice([row for row, count in enumerate(counts) if count == fewest]))]
    weights = 1 / np.sqrt(counts)
    return group[int(draw.choice(len(group), p=weights / weights.sum()))]
