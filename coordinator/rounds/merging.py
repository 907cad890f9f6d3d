"""From what the tours brought home to the job's next vectors: slots, sums and the merge, on plain arrays.

The job's vectors by name: `model` is what is evaluated and exported. Where models travel for several rounds, each is a
`slot-...`, and `anchor` is the model of the last merge; between merges `model` is the mean of the slots, weighted by
the samples each has seen since. Where the mean of several merges is evaluated (`trailing_mean`), that is `model`, and
`front` is the newest merge. `sum-...` is what the devices returned since the last merge. The others are the
aggregator's own.
"""

from __future__ import annotations

from dataclasses import dataclass, field
from functools import partial
from typing import TYPE_CHECKING

import numpy as np

from coordinator.aggregators.aggregating import Contribution, MergeContext, aggregate
from coordinator.aggregators.contributions import mean_of, weighting_of, with_weight
from coordinator.aggregators.model_state import aggregate_with_state
from sojourn.parts import Fusion

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence

    from numpy.typing import NDArray

    from coordinator.strategies import Strategy
    from sojourn.parts import Weighting

    Vector = NDArray[np.float32]

MODEL, ANCHOR, FRONT, RELAY, SLOT, SUM = "model", "anchor", "front", "relay", "slot-", "sum-"
BEFORE = "before"
"""The model with which the devices of the last merge began, where a model is tested together with it (FedFusion)."""


@dataclass(frozen=True, eq=False)
class TourResult:
    """What a tour brought home: its model, the samples that has seen, and the slot it belongs to."""

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
    learnt: int | None = None,
    gamma: slice | None = None,
) -> JobVectors:
    """The vectors after a round; models merge if that is `due`, and `before` devices had the job when they last did.

    learnt: how many numbers of the model are trained, if not all; what follows them is state. gamma: where in the
    model the numbers of a fusion stand.
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
    if not due and not alone:  # a model without a slot has no other place to stay than the merge
        mean = _between(anchor, going, weighting_of(strategy.aggregator))
        return JobVectors({**vectors, **sums, ANCHOR: anchor, MODEL: mean}, slots)
    kept = {name: vector for name, vector in vectors.items() if name != MODEL and not name.startswith(SLOT)}
    returned = {name.removeprefix(SUM): vector for name, vector in sums.items()}
    context = MergeContext(devices, strategy.objective, returned, before, gamma)
    merged = aggregate if learnt in (None, len(anchor)) else partial(aggregate_with_state, learnt)
    model, kept = merged(strategy.aggregator, anchor, going, kept, context)
    if isinstance(strategy.objective, Fusion) and strategy.objective.evaluate == "fused" and going:
        kept = {**kept, BEFORE: anchor}
    return JobVectors({**kept, MODEL: model})


def departs_from(slot: str | None, vectors: Mapping[str, object]) -> str:
    """The name of the vector that a tour departs from: its slot's, else that of the last merge."""
    if slot is not None and slot in vectors:
        return slot
    return next((name for name in (ANCHOR, FRONT) if name in vectors), MODEL)


def _sums(vectors: dict[str, Vector], results: Sequence[TourResult]) -> dict[str, Vector]:
    """What devices returned since the last merge, added up in plan order; the old sums leave `vectors`."""
    totals = {name: vectors.pop(name).astype(np.float64) for name in list(vectors) if name.startswith(SUM)}
    for each in results:
        for name, vector in each.returned.items():
            totals[SUM + name] = totals.get(SUM + name, np.zeros(len(vector))) + vector
    return {name: total.astype(np.float32) for name, total in totals.items()}


def _between(anchor: Vector, slots: Sequence[Contribution], weighting: Weighting) -> Vector:
    """The model to evaluate between two merges: the slots' mean, as the aggregator weighs it."""
    voices = with_weight(slots, weighting)
    return mean_of(voices, weighting).astype(np.float32) if voices else anchor


def _number(slot: str) -> tuple[int, str]:
    """Slots in the order of their numbers, not of their digits."""
    digits = slot.removeprefix(SLOT)
    return (int(digits), "") if digits.isdigit() else (1 << 53, slot)
