"""Simulations read data as devices do, by the job's settings: label columns, scales, image folders by domain."""

from __future__ import annotations

from typing import TYPE_CHECKING

import pytest
from PIL import Image
from typer.testing import CliRunner

from coordinator.jobs.settings import JobData
from fleet_sim.console.data_commands import app
from fleet_sim.datasets import load
from fleet_sim.datasets.partition import Split, split
from fleet_sim.settings import read_simulation
from sojourn.errors import DataError
from sojourn.protocol.spec import InputSpec

if TYPE_CHECKING:
    from pathlib import Path


@pytest.fixture
def labels_first(tmp_path: Path) -> str:
    path = tmp_path / "rows.csv"
    path.write_text("".join(f"{at % 2},{at * 7 % 30 / 10},0\n" for at in range(40)))
    return str(path)


@pytest.fixture
def domains(tmp_path: Path) -> Path:
    for number, domain in enumerate(("art", "photo", "sketch")):
        for name in ("cat", "dog"):
            for at in range(5):
                path = tmp_path / "domains" / domain / name / f"{at}.png"
                path.parent.mkdir(parents=True, exist_ok=True)
                Image.new("RGB", (8 + number, 8), (50 * number, at, 0)).save(path)
    return tmp_path / "domains"


def test_label_column_and_scale_are_applied_to_a_file(labels_first: str) -> None:
    assert "labels" in load(labels_first).warnings[0]
    found = load(labels_first, how=JobData(label="first", scale="0..3 to 0..255").files)
    assert found.classes == ("0", "1")
    assert found.warnings == ()
    assert found.x_train.max() > 200
    assert found.x_train.shape[1:] == (2,)


def test_named_set_is_scaled() -> None:
    found = load("digits", how=JobData(scale="0..16 to 0..1").files)
    assert (found.x_train.max(), found.x_test.max()) == (1.0, 1.0)


def test_domain_folders_are_read_as_domains(domains: Path) -> None:
    found = load(str(domains), wanted=InputSpec((3, 8, 8)))
    assert found.classes == ("cat", "dog")
    assert found.domains is not None
    assert sorted(set(found.domains)) == [0, 1, 2]
    for part in split(Split(by="domain"), found, 3, 0):
        assert len({int(found.domains[row]) for row in part}) == 1
    with pytest.raises(DataError, match="the same size"):
        load(str(domains))


def test_simulated_job_is_not_scaled_twice() -> None:
    simulation = read_simulation('[data]\nscale = "0..16 to 0..1"\nlabel = 1\n', "job.toml")
    assert simulation.read().data.scale == "0..16 to 0..1"
    assert "scale" not in simulation.job_text("test.npz")
    assert 'scale = "0..16 to 0..1"' in simulation.text


def test_show_command_describes_the_split_of_a_custom_file(labels_first: str, domains: Path) -> None:
    shown = CliRunner().invoke(app, ["show", "--data", labels_first, "--devices", "2"])
    assert "warning: " in shown.output
    shown = CliRunner().invoke(app, ["show", "--data", labels_first, "--devices", "2", "--label", "first"])
    assert "32 training samples of 2 classes" in shown.output
    assert "warning: " not in shown.output
    shown = CliRunner().invoke(app, ["show", "--data", str(domains), "--devices", "3", "--split", "domain"])
    assert "24 training samples of 2 classes" in shown.output
