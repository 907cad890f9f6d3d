"""Parts as users may write them, named in job files as `tests.fleet_sim.custom_parts:Class`."""

from __future__ import annotations

from typing import Any

import msgspec
import numpy as np

from coordinator.rounds.schedules import Departure
from edge_agent.training.objectives import VisitOutput
from hierarchy.arranging.arrangement import ClientSet


class Shrink(msgspec.Struct):
    """An objective: g + strength w, and a count of visits as memory."""

    strength: float = 0.1

    def begin(self, w_in: Any, received: Any, memory: Any) -> _Shrinking:
        return _Shrinking(self.strength, memory.get("visits"), w_in)


class _Shrinking:
    def __init__(self, strength: float, visits: Any, w_in: Any) -> None:
        self._strength, self._visits = strength, w_in * 0 if visits is None else visits

    def direction(self, w: Any, slope: Any) -> tuple[Any, Any]:
        loss, gradient = slope(w)
        return loss, gradient + np.float32(self._strength) * w

    def end(self, w_out: Any, steps: int, lr: float) -> VisitOutput:
        return VisitOutput(memory={"visits": self._visits + 1})


class OddAndEven(msgspec.Struct):
    """An arranger: separate sets of odd and even devices, at each site."""

    first: str = "even"

    def arrange(self, roll: Any, turn: Any) -> list[ClientSet]:
        found = []
        for site in sorted(roll.reach):
            here = sorted(roll.reach[site])
            apart = [tuple(d for d in here if int(d[-1]) % 2 == odd) for odd in (0, 1)]
            found += [ClientSet(site, each) for each in (apart if self.first == "even" else apart[::-1]) if each]
        return found


class Alternate(msgspec.Struct):
    """A schedule: the first half of the sets in odd rounds, the other half in even ones; merges every second round."""

    def depart(self, sets: Any, moment: Any) -> list[Departure]:
        half = len(sets) // 2
        going = sets[:half] if moment.round % 2 else sets[half:]
        return [Departure(each, f"slot-{number}") for number, each in enumerate(going)]

    def merges(self, moment: Any) -> bool:
        return bool(moment.since_merge == 1)


class HalfwayAggregator(msgspec.Struct):
    """An aggregator: the midpoint of the old model and the plain mean; counts its merges."""

    def aggregate(self, previous: Any, contributions: Any, state: Any, merge: Any) -> tuple[Any, dict[str, Any]]:
        mean = np.mean([each.vector.astype(np.float64) for each in contributions], axis=0)
        counted = state.get("merges", np.zeros(len(previous), np.float32)) + np.float32(1)
        return ((previous + mean) / 2).astype(np.float32), {"merges": counted}


class FirstAnswers(msgspec.Struct):
    """An estimator: the model's predictions for the first few exemplars."""

    answers: int = 3

    def estimate(self, graphs: Any, vector: Any, exemplars: Any) -> Any:
        x, _ = exemplars.arrays()
        return graphs.logits(vector, x[: self.answers]).ravel()
