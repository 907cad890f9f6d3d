"""Compute the job's next vectors from the tours' results: slots, sums, merges and the mean of the last merges."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace
from functools import partial

import numpy as np
from numpy.typing import NDArray

from coordinator.aggregators.aggregating import Contribution, MergeContext, aggregate, aggregate_with_state
from coordinator.aggregators.contributions import mean_or, weighting_of
from coordinator.strategies import Strategy
from sojourn.parts import Fusion

Vector = NDArray[np.float32]

# Everything here works on plain arrays.
#
# The job's vectors by name: `model` is evaluated and exported. If models travel for several rounds, each is a
# `slot-...`, and `anchor` is the model of the last merge; between merges `model` is the mean of the slots, weighted by
# the samples each has seen since. With `trailing_mean`, `model` is the mean of several merges, and `front` is the
# newest merge. `sum-...` is what the devices returned since the last merge. The others belong to the aggregator.

MODEL, ANCHOR, FRONT, RELAY, SLOT, SUM = "model", "anchor", "front", "relay", "slot-", "sum-"
BEFORE = "before"
"""The model with which the devices of the last merge began, if a model is tested together with it (FedFusion)."""


@dataclass(frozen=True, eq=False)
class TourResult:
    """A tour's result: its model, the samples that the model has seen, and its slot."""

    vector: Vector
    weight: float
    slot: str | None = None
    returned: Mapping[str, Vector] = field(default_factory=dict)


@dataclass(frozen=True, eq=False)
class JobVectors:
    """A job's vectors by name, and the samples that each slot has seen since the last merge."""

    vectors: Mapping[str, Vector]
    slots: Mapping[str, float] = field(default_factory=dict)


def next_vectors(
    strategy: Strategy,
    now: JobVectors,
    results: Sequence[TourResult],
    devices: int,
    *,
    due: bool,
    before: int | None = None,
    trained: int | None = None,
    gamma: slice | None = None,
) -> JobVectors:
    """Return the vectors after a round.

    due: whether models merge. before: the number of devices at the last merge. trained: how many parameters are
    trained, if not all; the rest is state. gamma: the position of a fusion's parameters in the model.
    """
    vectors, slots = dict(now.vectors), dict(now.slots)
    anchor = vectors.pop(ANCHOR, vectors[MODEL])
    sums = _sums(vectors, results)
    for each in results:
        if each.slot is not None:
            vectors[each.slot], slots[each.slot] = each.vector, slots.get(each.slot, 0.0) + each.weight
    going = [Contribution(vectors[slot], slots[slot]) for slot in sorted(slots, key=_number)]
    alone = [Contribution(each.vector, each.weight) for each in results if each.slot is None]
    going += alone
    if not due and not alone:  # a model without a slot can only go into the merge
        # Between two merges the mean of the slots is evaluated.
        mean = mean_or(anchor, going, weighting_of(strategy.aggregator))
        return JobVectors({**vectors, **sums, ANCHOR: anchor, MODEL: mean}, slots)
    kept = {name: vector for name, vector in vectors.items() if name != MODEL and not name.startswith(SLOT)}
    returned = {name.removeprefix(SUM): vector for name, vector in sums.items()}
    context = MergeContext(devices, strategy.objective, returned, before, gamma)
    merged = aggregate if trained in (None, len(anchor)) else partial(aggregate_with_state, trained)
    model, kept = merged(strategy.aggregator, anchor, going, kept, context)
    if isinstance(strategy.objective, Fusion) and strategy.objective.evaluate == "fused" and going:
        kept = {**kept, BEFORE: anchor}
    return JobVectors({**kept, MODEL: model})


def departs_from(slot: str | None, vectors: Mapping[str, object]) -> str:
    """Return the name of the vector that a tour departs from: its slot, or the last merge."""
    if slot is not None and slot in vectors:
        return slot
    return next((name for name in (ANCHOR, FRONT) if name in vectors), MODEL)


def _sums(vectors: dict[str, Vector], results: Sequence[TourResult]) -> dict[str, Vector]:
    """Return what devices returned since the last merge, added in plan order; removes the old sums from `vectors`."""
    totals = {name: vectors.pop(name).astype(np.float64) for name in list(vectors) if name.startswith(SUM)}
    for each in results:
        for name, vector in each.returned.items():
            totals[SUM + name] = totals.get(SUM + name, np.zeros(len(vector))) + vector
    return {name: total.astype(np.float32) for name, total in totals.items()}


def _number(slot: str) -> tuple[int, str]:
    """Sort key that orders slots by number."""
    digits = slot.removeprefix(SLOT)
    return (int(digits), "") if digits.isdigit() else (1 << 53, slot)


# The mean of the last merges, tested and released if single merges fluctuate from round to round.
#
# It does not affect training: tours depart from the newest merge, the job's vector `front`.

ROUNDS_PER_MERGE = 4
"""The mean covers at most one in this many merges."""


def at_front(now: JobVectors) -> JobVectors:
    """Return the vectors with the newest merge as the model, from which the next merge starts."""
    others = {name: vector for name, vector in now.vectors.items() if name != FRONT}
    return replace(now, vectors={**others, MODEL: now.vectors.get(FRONT, now.vectors[MODEL])})


def with_trailing_mean(now: JobVectors, merged: JobVectors, window: int, number: int) -> JobVectors:
    """Return what was merged in round `number`, with the mean of the last `window` merges as the model.

    m <- m + (w - m) / K, where K is the window, but at most a quarter of the rounds so far: while models improve fast,
    a mean with old ones would lag behind. The oldest merges fade out, so one model is kept instead of a window of them.
    The first merge is its own mean; a round that changed nothing does not count.
    """
    if window == 1 or ANCHOR in merged.vectors:
        return merged
    newest, mean, front = merged.vectors[MODEL], now.vectors[MODEL], now.vectors.get(FRONT)
    if np.array_equal(newest, mean if front is None else front):
        return replace(merged, vectors={**now.vectors, **merged.vectors, MODEL: mean})
    if front is None:
        mean = newest
    else:
        share = max(1, min(window, number // ROUNDS_PER_MERGE))
        mean = (mean + (newest.astype(np.float64) - mean) / share).astype(np.float32)
    return replace(merged, vectors={**merged.vectors, MODEL: mean, FRONT: newest})
