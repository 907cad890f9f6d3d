"""A set by name says what is learnt of it, unless the job says otherwise."""

from __future__ import annotations

import pytest

from fleet_sim.datasets.made.registry import MADE
from fleet_sim.settings import Simulation, read_simulation
from sojourn.errors import ConfigError


def simulation(data: str, rest: str = "") -> Simulation:
    return read_simulation(f'{rest}\n[simulation]\ndata = "{data}"\n', "here")


@pytest.mark.parametrize("name", MADE)
def test_the_kind_is_that_of_the_set(name: str) -> None:
    job = simulation(name).read()
    assert job.task.kind == MADE[name].kind
    for key, value in MADE[name].data.items():
        assert getattr(job.data, key) == (tuple(value) if isinstance(value, list) else value)


def test_digits_and_files_are_for_classes() -> None:
    assert "task" not in simulation("digits").job
    assert simulation("./pumps.npz").read().task.kind == "classification"


def test_what_a_job_says_counts_more() -> None:
    job = simulation("households", "[task]\nsteps = 12\n").read()
    assert (job.task.kind, job.task.steps, job.task.horizon) == ("forecast", 12, 6)
    assert simulation("households", 'task = "forecast"').read().task.steps == 48
    assert simulation("pumps").read().model.options == {"hidden": [48, 24]}
    assert simulation("pumps", '[model]\nname = "mlp"').read().model.options == {}
    assert simulation("pumps", 'model = "mlp"').read().model.options == {}
    assert simulation("dialects", "[model]\noptions = { hidden = 8 }").read().model.options == {"hidden": 8}
    assert simulation("diabetes", "[data]\nexemplars_per_class = 2").read().data.exemplars_per_class == 2


def test_another_kind_brings_nothing_of_the_set() -> None:
    job = simulation("households", '[task]\nkind = "reconstruction"').read()
    assert (job.task.kind, job.task.steps) == ("reconstruction", None)


def test_what_was_run_can_be_run_again() -> None:
    first = simulation("households", "[task]\nsteps = 12\n")
    again = read_simulation(first.text, "again")
    assert again.text == first.text
    assert again.read().task == first.read().task


def test_a_table_that_is_none_is_refused() -> None:
    with pytest.raises(ConfigError, match="here"):
        simulation("houses", "task = 5")
