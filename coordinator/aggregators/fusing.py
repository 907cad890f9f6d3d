"""FedFusion's server half: the mean, in which the numbers of the fusion follow slowly.

Yao et al., "Towards Faster and Better Federated Learning: A Feature Fusion Approach", ICIP 2019.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

import numpy as np

from coordinator.aggregators.contributions import State, Vector, mean_of, with_weight
from sojourn.errors import JobError
from sojourn.parts import Fusion, FusionMean, name_of

if TYPE_CHECKING:
    from collections.abc import Sequence

    from coordinator.aggregators.contributions import Contribution, MergeContext


def fusion(
    settings: FusionMean, previous: Vector, contributions: Sequence[Contribution], state: State, merge: MergeContext
) -> tuple[Vector, State]:
    """The mean; then gamma <- (1 - smoothing) mean + smoothing gamma of before.

    A convolution is not smoothed: it does not begin at 0.
    """
    if not isinstance(merge.objective, Fusion):
        raise JobError(f'aggregator "fusion" needs objective "fusion", not "{name_of(merge.objective)}"')
    voices = with_weight(contributions, settings.weighting)
    if not voices:
        return previous, state
    mean = mean_of(voices, settings.weighting)
    if merge.gamma is not None:
        old = previous[merge.gamma].astype(np.float64)
        mean[merge.gamma] = (1 - settings.smoothing) * mean[merge.gamma] + settings.smoothing * old
    return mean.astype(np.float32), state
