"""A job whose model has a frozen trunk, from its file to its last round: cut, and in one piece."""

from __future__ import annotations

from typing import TYPE_CHECKING

import pytest

from fleet_sim.run import SimulationRun
from fleet_sim.settings import read_simulation

if TYPE_CHECKING:
    from pathlib import Path

    from coordinator.console.job_progress import JobProgress

TEXT = """
strategy = "visit"
rounds = 2
threads = 1
model = {{ name = "tests.fleet_sim.custom_models:FrozenTrunk", trunk = "{trunk}" }}
training = {{ epochs = 1, batch = 16, lr = 0.1, weight_decay = 0.0 }}
[simulation]
devices = 4
engine = "serial"
[split]
alpha = 0.5
"""


def ran(folder: Path, trunk: str = "auto") -> tuple[SimulationRun, JobProgress]:
    running = SimulationRun(read_simulation(TEXT.format(trunk=trunk), "a test"), folder)
    *_, last = running.courses()
    running.close()
    return running, last


def test_split_model_gives_the_same_result_as_the_whole_model(tmp_path: Path) -> None:
    (_, in_two), (_, whole) = (ran(tmp_path / trunk, trunk) for trunk in ("auto", "whole"))
    assert in_two.view.status == whole.view.status == "done"
    for one, other in zip(in_two.history, whole.history, strict=True):
        assert one.loss == pytest.approx(other.loss, rel=1e-4)
        assert one.accuracy == pytest.approx(other.accuracy, abs=0.01)
        assert one.loss > 0
