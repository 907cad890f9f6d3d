"""The mean of the last merges: what is tested and shipped where single merges swing from round to round.

It changes nothing of the training: tours depart from the newest merge, the job's vector `front`.
"""

from __future__ import annotations

from dataclasses import replace

import numpy as np

from coordinator.rounds.merging import ANCHOR, FRONT, MODEL, JobVectors

QUARTER = 4
"""The mean is of one merge in so many rounds at most."""


def at_front(now: JobVectors) -> JobVectors:
    """The same with the newest merge for its model, and so what the next merge begins with."""
    others = {name: vector for name, vector in now.vectors.items() if name != FRONT}
    return replace(now, vectors={**others, MODEL: now.vectors.get(FRONT, now.vectors[MODEL])})


def with_trailing_mean(now: JobVectors, merged: JobVectors, window: int, number: int) -> JobVectors:
    """What was merged in round `number`, with the mean of the last `window` merges for its model.

    m <- m + (w - m) / K, and K is the window, but at most a quarter of the rounds so far: as long as models improve by
    leaps, a mean with old ones would only be behind. The oldest fade out, so what is kept is one model, not a window of
    them. The first merge is its own mean; a round that changed nothing does not count.
    """
    if window == 1 or ANCHOR in merged.vectors:
        return merged
    newest, mean, front = merged.vectors[MODEL], now.vectors[MODEL], now.vectors.get(FRONT)
    if np.array_equal(newest, mean if front is None else front):
        return replace(merged, vectors={**now.vectors, **merged.vectors, MODEL: mean})
    if front is None:
        mean = newest
    else:
        share = max(1, min(window, number // QUARTER))
        mean = (mean + (newest.astype(np.float64) - mean) / share).astype(np.float32)
    return replace(merged, vectors={**merged.vectors, MODEL: mean, FRONT: newest})
