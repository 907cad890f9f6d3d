"""The data sets that are made here, by name, each with the kind of task that it is for."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any

from fleet_sim.datasets.made.diabetes import make_diabetes
from fleet_sim.datasets.made.dialects import LONG, WORDS, make_dialects
from fleet_sim.datasets.made.digit_attributes import make_digit_attributes
from fleet_sim.datasets.made.households import USUAL, make_households
from fleet_sim.datasets.made.houses import make_houses
from fleet_sim.datasets.made.pumps import make_pumps

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping

    from fleet_sim.datasets.data_set import DataSet
    from sojourn.protocol.task import Kind


@dataclass(frozen=True)
class MadeSet:
    """A set, what it is for, and what it is in a sentence.

    make: takes a seed, and of a forecast the window too. task, data, model: what a job says of such data in the
    tables of these names, unless it says otherwise.
    """

    kind: Kind
    about: str
    make: Callable[..., DataSet]
    task: Mapping[str, Any] = field(default_factory=dict)
    data: Mapping[str, Any] = field(default_factory=dict)
    model: Mapping[str, Any] = field(default_factory=dict)

    @property
    def tables(self) -> dict[str, dict[str, Any]]:
        """What a job says of such data, by table, unless it says otherwise."""
        return {"task": {"kind": self.kind, **self.task}, "data": dict(self.data), "model": dict(self.model)}


MADE = {
    "diabetes": MadeSet(
        "regression",
        "how an illness went on, of 442 patients (scikit-learn)",
        make_diabetes,
        data={"exemplars_per_class": 3},  # of 89 samples to test on
    ),
    "dialects": MadeSet(
        "tokens",
        "sentences of a made-up language, 36 speakers of 6 dialects",
        make_dialects,
        {"vocabulary": WORDS},
        {"dtype": "int64", "input": [LONG]},
        {"name": "gru"},
    ),
    "digit-attributes": MadeSet(
        "multilabel", "scikit-learn's digits: even, prime, with a loop ...", make_digit_attributes
    ),
    "households": MadeSet(
        "forecast",
        "the load of 40 households by the hour, with days and weeks",
        make_households,
        {"steps": USUAL.steps, "horizon": USUAL.horizon, "stride": USUAL.stride},
    ),
    "houses": MadeSet("regression", "prices of 6,000 houses in 20 towns, made up", make_houses),
    "pumps": MadeSet(
        "reconstruction",
        "vibration of 24 machines of 6 regimes, with faults to find",
        make_pumps,
        model={"name": "autoencoder", "options": {"hidden": [48, 24]}},
    ),
}
"""By name."""
