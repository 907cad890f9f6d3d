"""Random sets: of a given size, or all devices in equal parts (FedGSP's NaiveGSP, FedSeq's phi_rand with a number)."""

from __future__ import annotations

from typing import TYPE_CHECKING

import numpy as np

from hierarchy.arranging.pools import level
from sojourn.randomness import generator

if TYPE_CHECKING:
    from collections.abc import Iterable, Sequence

    from hierarchy.arranging.candidates import Memo
    from sojourn.parts import RandomArranger


def random_groups(
    settings: RandomArranger, devices: int, sets: int, seed: int, turns: Sequence[int] = ()
) -> list[list[int]]:
    """The groups of the numbers below `devices`, disjoint; too few devices make groups of level size.

    turns: how many each device has had; those that wait for one come first, and are dealt over the groups.
    """
    order, sizes = generator(seed, "random").permutation(devices), level(devices, sets, settings.size)
    if settings.turns and turns:
        had = np.asarray(turns)[order]
        going = np.concatenate([order[had < had.max()], order[had == had.max()]])[: sum(sizes)]
        order = generator(seed, "dealt").permutation(going)
    return [part.tolist() for part in np.split(order, np.cumsum(sizes))[:-1]]


def after_turns(memo: Memo, planned: Iterable[str]) -> Memo:
    """What is remembered of turns: by device, how many it has had.

    Who was away, or is new, does not catch up on laps: of the present one it has its turn, like everybody else.
    """
    top = max((count for count, *_ in memo.values()), default=0)
    return {**memo, **{device: (max(memo.get(device, (0,))[0], top - 1) + 1,) for device in planned}}
