"""IDA: Yeganeh et al., "Inverse Distance Aggregation for Federated Learning with Non-IID Data", 2020."""

from __future__ import annotations

from typing import TYPE_CHECKING

import numpy as np

from coordinator.aggregators.contributions import mean_of, with_weight
from sojourn.model.vectors import BLOCK, mean, on_all_cores

if TYPE_CHECKING:
    from collections.abc import Sequence

    from coordinator.aggregators.contributions import Contribution, MergeContext, State, Vector, Wide
    from sojourn.parts import Ida


def ida(
    settings: Ida, previous: Vector, contributions: Sequence[Contribution], state: State, _: MergeContext
) -> tuple[Vector, State]:
    """Each model weighs 1 / (epsilon + its distance to the mean model), whatever it weighed in that mean."""
    voices = with_weight(contributions, settings.weighting)
    if not voices:
        return previous, state
    models = [each.vector for each in voices]
    far = distances(models, mean_of(voices, settings.weighting))
    return mean(models, [1 / (settings.epsilon + distance) for distance in far]), state


def distances(vectors: Sequence[Vector], centre: Wide) -> list[float]:
    """The L2 distance of each vector to the centre, in float64, summed block by block in their order."""
    squares = np.zeros((-(-len(centre) // BLOCK), len(vectors)))

    def measure(mine: Sequence[slice]) -> None:
        room = np.empty(min(BLOCK, len(centre)))
        for block in mine:
            middle, sums = centre[block], squares[block.start // BLOCK]
            gap = room[: len(middle)]
            for at, vector in enumerate(vectors):
                gap[:] = vector[block]
                gap -= middle
                sums[at] = np.einsum("i,i->", gap, gap)  # not a dot product: that depends on BLAS and its threads

    on_all_cores(len(centre), measure)
    total = np.zeros(len(vectors))
    for sums in squares:
        total += sums
    return [float(each) for each in np.sqrt(total)]
