"""A named data set provides the job's default task."""

from __future__ import annotations

from pathlib import Path

import pytest

from coordinator.strategies import STRATEGIES
from fleet_sim.datasets.built_in_sets import MADE
from fleet_sim.settings import Simulation, read_simulation
from sojourn.errors import ConfigError


def simulation(data: str, rest: str = "") -> Simulation:
    return read_simulation(f'{rest}\n[simulation]\ndata = "{data}"\n', "here")


@pytest.mark.parametrize("name", MADE)
def test_task_kind_comes_from_the_data_set(name: str) -> None:
    job = simulation(name).read()
    assert job.task.kind == MADE[name].kind
    for key, value in MADE[name].data.items():
        assert getattr(job.data, key) == (tuple(value) if isinstance(value, list) else value)


def test_digits_and_files_default_to_classification() -> None:
    assert "task" not in simulation("digits").job
    assert simulation("./pumps.npz").read().task.kind == "classification"


def test_job_settings_override_those_of_the_set() -> None:
    job = simulation("households", "[task]\nsteps = 12\n").read()
    assert (job.task.kind, job.task.steps, job.task.horizon) == ("forecast", 12, 6)
    assert simulation("households", 'task = "forecast"').read().task.steps == 48
    assert simulation("pumps").read().model.options == {"hidden": [48, 24]}
    assert simulation("pumps", '[model]\nname = "mlp"').read().model.options == {}
    assert simulation("pumps", 'model = "mlp"').read().model.options == {}
    assert simulation("dialects", "[model]\noptions = { hidden = 8 }").read().model.options == {"hidden": 8}
    assert simulation("diabetes", "[data]\nexemplars_per_class = 2").read().data.exemplars_per_class == 2


def test_other_task_kind_ignores_the_settings_of_the_set() -> None:
    job = simulation("households", '[task]\nkind = "reconstruction"').read()
    assert (job.task.kind, job.task.steps) == ("reconstruction", None)


@pytest.mark.parametrize("model", ['"mlp"', '{ name = "mlp" }'])
def test_changes_apply_to_a_model_given_by_name(model: str, tmp_path: Path) -> None:
    start = str(tmp_path / "start.safetensors")
    found = read_simulation(f"model = {model}", "a test", {"model.start": start})
    assert found.job["model"] == {"name": "mlp", "start": start}
    assert read_simulation('model = "mlp"', "a test", {"model.name": "cnn"}).job["model"] == {"name": "cnn"}
    with pytest.raises(ConfigError, match="not a table"):
        read_simulation("seed = 3", "a test", {"seed.of": 3})


FILE = 'strategy = "visit"\n[arranger]\nsets = 2\nsize = 5\n[estimator]\nepochs = 3\n[training]\nlr = 0.1\n'


def test_changing_strategy_drops_settings_it_does_not_have() -> None:
    fedavg = read_simulation(FILE, "a test", {"strategy": "fedavg"})
    assert fedavg.job["training"] == {"lr": 0.1}
    left_out = [note.partition(" is ignored")[0] for note in fedavg.notes]
    assert left_out == ["estimator.epochs", "arranger.sets", "arranger.size"]
    assert fedavg.notes[1].startswith("arranger.sets is ignored: fedavg's arranger, ")
    for strategy in STRATEGIES:
        read_simulation(FILE, "a test", {"strategy": strategy})
    assert read_simulation(FILE, "a test", {"strategy": "visit"}).notes == ()
    with pytest.raises(ConfigError, match="unknown key 'epochs'"):
        read_simulation(FILE.replace("visit", "fedavg"), "a test")
    with pytest.raises(ConfigError, match="unknown key 'sets'"):
        read_simulation("", "a test", {"strategy": "fedavg", "arranger.sets": 2})


def test_saved_settings_reproduce_the_simulation() -> None:
    first = simulation("households", "[task]\nsteps = 12\n")
    again = read_simulation(first.text, "again")
    assert again.text == first.text
    assert again.read().task == first.read().task


def test_task_that_is_not_a_table_is_refused() -> None:
    with pytest.raises(ConfigError, match="here"):
        simulation("houses", "task = 5")
