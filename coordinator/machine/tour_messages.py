"""A planned tour as it goes to its site."""

from __future__ import annotations

from typing import TYPE_CHECKING

import msgspec

from coordinator.aggregators.contributions import weighting_of
from coordinator.rounds.orders import task_of, waves_of
from sojourn.errors import Fault
from sojourn.protocol.messages import MOST_KEYS, Tour, TourSigning
from sojourn.randomness import derive

if TYPE_CHECKING:
    from collections.abc import Mapping

    from coordinator.records import TourPlan
    from coordinator.state import JobState
    from sojourn.parts import TourBounds


def tour_message(state: JobState, tour: TourPlan, bounds: TourBounds, keys: Mapping[str, bytes] | None = None) -> Tour:
    """A planned tour as it goes to its site, within these bounds, with the keys of its devices if they are not many."""
    if state.kit is None:
        raise Fault(f"{state.name} has tours but was not compiled")
    job, strategy = state.settings, state.strategy
    vectors = {name: state.travelling_vector(held) for name, held in tour.start.items()}
    seed = derive(job.seed, state.phase, state.round if state.phase == "train" else 0)
    if state.phase == "estimate":
        on_device = getattr(strategy.estimator, "where", "server") == "device"
        if state.exemplars and on_device and strategy.estimator.exemplars:
            vectors["exemplars"] = state.exemplars
    elif job.gate.on and state.exemplars:
        vectors["gate"] = state.exemplars
    norms = state.norms if state.phase == "train" else ()
    return Tour(
        state.tour_id(tour), state.kit, vectors, tour.hops, tour.spares, task_of(state, tour), seed, job.tours.policy,
        job.gate.rules, norms, waves_of(state), weighting_of(strategy.aggregator), bounds,
        _signing(state, keys or {}), state.size,
    )  # fmt: skip


def _signing(state: JobState, keys: Mapping[str, bytes]) -> TourSigning | msgspec.UnsetType:
    """Who signed the job and who signs its visits; unset where nobody does."""
    told = dict(sorted(keys.items())) if 0 < len(keys) <= MOST_KEYS else msgspec.UNSET
    return TourSigning(state.mandate, told) if state.mandate or told else msgspec.UNSET
