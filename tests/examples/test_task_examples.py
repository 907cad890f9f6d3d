"""The examples of tasks, small: from a job file to a device whose prediction uses the terms of the task."""

from __future__ import annotations

import re
from pathlib import Path

import numpy as np
import pytest

from edge_agent import Model
from examples.anomaly.__main__ import auc
from examples.anomaly.__main__ import main as anomaly
from examples.forecast.__main__ import main as forecast
from examples.regression.__main__ import main as regression
from examples.serving import HERE
from fleet_sim.datasets import load
from fleet_sim.settings import read_simulation_file


def test_forecast_example_beats_the_naive_forecast(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    forecast(["--rounds", "1", "--output", str(tmp_path)])
    text = capsys.readouterr().out
    assert len(re.findall(r"^  predicted( +-?\d+\.\d\d){6}\n  actual   ( +\d+\.\d\d){6}$", text, re.MULTILINE)) == 3
    found = re.search(r"RMSE (\d\.\d{3}) kW .* constant load: (\d\.\d{3})\.", text)
    assert found is not None
    assert float(found[1]) < float(found[2])
    assert (tmp_path / "forecast-1.release").is_file()
    assert (tmp_path / "simulation" / "report.html").is_file()


def test_regression_example_predicts_prices_of_all_ranges(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    regression(["--rounds", "2", "--output", str(tmp_path)])
    text = capsys.readouterr().out
    printed = re.findall(r"predicted (-?\d+\.\d\d), actual (\d\.\d\d)$", text, re.MULTILINE)
    there = [float(price) for _, price in printed]
    assert there == sorted(there)
    assert (there[0], there[-1]) == (0.15, 5.0)
    found = re.search(r"R2 (\d\.\d{3})", text)
    assert found is not None
    assert float(found[1]) > 0.3


def test_anomaly_example_serves_scores(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    anomaly(["--rounds", "3", "--output", str(tmp_path)])
    text = capsys.readouterr().out
    found = re.search(r"AUC (\d\.\d{3}) on faults", text)
    assert found is not None
    assert float(found[1]) > 0.6
    data = load("pumps")
    with Model("anomaly", tmp_path / "device") as model:
        output = re.search(r"A score of (\d+\.\d{3}) or more", text)
        assert output is not None
        assert f"{model.threshold:.3f}" == output[1]
        one = model.score(data.x_test[0])
        assert not isinstance(one, list)
        assert f"  healthy: {one.score:.3f} " in text
        assert one.anomalous is bool(one.score >= model.threshold)


@pytest.mark.parametrize("name", ["anomaly", "forecast", "regression"])
def test_job_file_next_to_the_example_is_valid(name: str) -> None:
    simulation = read_simulation_file(HERE / name / "job.toml")
    job = simulation.read()
    assert job.name == name
    assert job.task.kind == {"anomaly": "reconstruction"}.get(name, name)


def test_auc_counts_correctly_ordered_pairs() -> None:
    faulty = np.array([False, False, True, True])
    assert auc(np.array([0.0, 1.0, 2.0, 3.0]), faulty) == 1.0
    assert auc(np.array([2.0, 3.0, 0.0, 1.0]), faulty) == 0.0
    assert auc(np.array([1.0, 1.0, 1.0, 1.0]), faulty) == 0.5
    assert auc(np.array([0.0, 2.0, 1.0, 3.0]), faulty) == 0.75
