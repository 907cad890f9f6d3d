"""Tests of custom aggregators: they run, their results are checked, and errors name them."""

from __future__ import annotations

from typing import Any

import msgspec
import numpy as np
import pytest

from coordinator.aggregators.aggregating import Contribution, MergeContext, aggregate
from sojourn.errors import ConfigError, JobError
from sojourn.parts import OwnAggregator
from tests.coordinator.aggregators.merges import about, brought

HERE = "tests.coordinator.aggregators.test_custom_aggregator"
PREVIOUS = np.array([9.0, 9.0], np.float32)


class Halfway(msgspec.Struct, frozen=True):
    """A custom aggregator that moves part of the way to the first model, and counts its rounds."""

    share: float

    def aggregate(
        self, previous: Any, contributions: list[Contribution], state: dict[str, Any], merge: MergeContext
    ) -> tuple[Any, dict[str, Any]]:
        model = previous + np.float32(self.share) * (contributions[0].vector - previous)
        return model, {"count": state.get("count", np.zeros_like(previous)) + np.float32(merge.devices)}


class InvalidResult(msgspec.Struct, frozen=True):
    """An aggregator with invalid results."""

    what: str

    def aggregate(self, previous: Any, contributions: object, state: dict[str, Any], merge: object) -> object:
        broken = previous.copy()
        broken[1] = np.nan
        return {
            "nothing": None,
            "model alone": previous,
            "list": ([1.0, 2.0], {}),
            "float64": (previous.astype(np.float64), {}),
            "short": (previous[:1], {}),
            "square": (previous.reshape(1, -1), {}),
            "nan": (broken, {}),
            "state of nan": (previous, {"memory": broken}),
            "short state": (previous, {"memory": previous[:1]}),
            "no state": (previous, None),
            "anchor": (previous, {"anchor": previous}),
            "slot": (previous, {"slot-3": previous}),
        }[self.what]


class Mute(msgspec.Struct, frozen=True):
    """A class that is not an aggregator."""


def test_custom_aggregator_computes_model_and_state() -> None:
    contributions, state = brought(([1, 3], 1), ([5, 5], 1)), dict[str, Any]()
    model, halfway = PREVIOUS, OwnAggregator(part=f"{HERE}:Halfway", settings={"share": 0.5})
    for _ in range(2):
        model, state = aggregate(halfway, model, contributions, state, about(devices=4))
    assert model.tolist() == [3.0, 4.5]
    assert state["count"].tolist() == [8.0, 8.0]
    eager = OwnAggregator(part=halfway.part, settings={"share": 1.0})
    assert aggregate(eager, PREVIOUS, contributions, {}, about())[0].tolist() == [1.0, 3.0]


@pytest.mark.parametrize(
    ("what", "complaint"),
    [
        ("nothing", "returned NoneType, not a model and a dict"),
        ("model alone", "returned ndarray, not a model and a dict"),
        ("list", "its model is of type list, not 2 finite float32 numbers"),
        ("float64", r"its model is float64 of shape \(2,\)"),
        ("short", r"its model is float32 of shape \(1,\)"),
        ("square", r"its model is float32 of shape \(1, 2\)"),
        ("nan", "its model is not finite"),
        ("state of nan", 'its state "memory" is not finite'),
        ("short state", r'its state "memory" is float32 of shape \(1,\)'),
        ("no state", "returned tuple, not a model and a dict"),
        ("anchor", "its state uses the reserved names anchor"),
        ("slot", "its state uses the reserved names slot-3"),
    ],
)
def test_invalid_result_names_custom_aggregator(what: str, complaint: str) -> None:
    settings = OwnAggregator(part=f"{HERE}:InvalidResult", settings={"what": what})
    with pytest.raises(JobError, match=f"^{HERE}:InvalidResult:? {complaint}"):
        aggregate(settings, PREVIOUS, brought(([1, 2], 1)), {}, about())


def test_custom_aggregator_needs_aggregate_method() -> None:
    settings = OwnAggregator(part=f"{HERE}:Mute")
    with pytest.raises(ConfigError, match="Mute lacks the methods aggregate"):
        aggregate(settings, PREVIOUS, brought(([1, 2], 1)), {}, about())


def test_custom_aggregator_runs_if_only_extras_return() -> None:
    settings = OwnAggregator(part=f"{HERE}:InvalidResult", settings={"what": "nan"})
    assert aggregate(settings, PREVIOUS, [], {}, about())[0] is PREVIOUS
    with pytest.raises(JobError, match="its model is not finite"):
        aggregate(settings, PREVIOUS, [], {}, about(something=PREVIOUS))
