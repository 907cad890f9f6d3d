"""A simulated job that trains the head of a model with given weights: its traffic, and its unchanged parts."""

from __future__ import annotations

from pathlib import Path

import pytest
import torch

from coordinator.models import build
from coordinator.models.weights_file import read_weights
from fleet_sim.run import SimulationRun
from fleet_sim.settings import read_simulation
from sojourn.protocol.spec import InputSpec

TEXT = """
strategy = "fedavg"
rounds = 3
threads = 1
model = { name = "mlp", options = { hidden = [1024] } }
training = { epochs = 1, batch = 16, lr = 0.1 }
[simulation]
devices = 3
engine = "serial"
"""
HIDDEN, HEAD = 64 * 1024 + 1024, 1024 * 10 + 10
"""Parameters of either layer."""


def run(folder: Path, **model: object) -> SimulationRun:
    changes = {f"model.{key}": value for key, value in model.items()}
    running = SimulationRun(read_simulation(TEXT, "a test", changes), folder)
    *_, last = running.courses()
    running.finish(last)
    running.close()
    return running


def traffic(running: SimulationRun) -> list[float]:
    """Return the bytes of each visit after the first round, in which every device gets the kit."""
    rows = [row for row in running.results.rows("visits.csv") if not row["tour"].startswith("simulation/1/")]
    return [float(row["down"]) + float(row["up"]) for row in rows]


@pytest.fixture(scope="module")
def given(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Return weights that no job would draw."""
    path = tmp_path_factory.mktemp("weights") / "start.pth"
    torch.save(build("mlp", InputSpec((1, 8, 8)), 10, {"hidden": [1024]}, seed=99).state_dict(), path)
    return path


def test_head_only_training_sends_and_changes_only_the_head(given: Path, tmp_path: Path) -> None:
    whole = run(tmp_path / "whole", start=str(given))
    head = run(tmp_path / "head", start=str(given), trains=["3.*"])
    sent, before = sum(traffic(head)), sum(traffic(whole))
    assert sent / before <= 1.05 * HEAD / (HIDDEN + HEAD)
    weights = torch.load(given, weights_only=True)
    after = read_weights(str(tmp_path / "head" / "model.onnx")).tensors
    assert torch.equal(after["1.weight"], weights["1.weight"])
    assert not torch.equal(after["3.weight"], weights["3.weight"])
    moved = read_weights(str(tmp_path / "whole" / "model.onnx")).tensors
    assert not torch.equal(moved["1.weight"], weights["1.weight"])
