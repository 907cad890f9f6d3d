"""Simulations as runs of MLflow and TensorBoard: interrupted, resumed, and compared."""

from __future__ import annotations

import pytest

from coordinator.results.folder import ROUNDS, ResultFolder
from fleet_sim.console.comparing import Comparison, runs_of
from fleet_sim.run import SimulationRun
from fleet_sim.settings import read_simulation
from sojourn.errors import ConfigError
from tests.coordinator.tracking.stores import scalars_in

TEXT = """
strategy = "fedavg"
rounds = {rounds}
threads = 1
model = {{ name = "mlp", options = {{ hidden = [16] }} }}
[simulation]
devices = 4
engine = "serial"
"""


def text(rounds: int, **tracking: object) -> str:
    return TEXT.format(rounds=rounds) + "[tracking]\n" + "".join(f'{key} = "{it}"\n' for key, it in tracking.items())


def run_to_its_end(running: SimulationRun) -> None:
    try:
        for _ in running.courses():
            pass
    finally:
        running.close()


def test_resumed_simulation_continues_the_same_tracking_run(tmp_path) -> None:
    events, folder = tmp_path / "new" / "tb", tmp_path / "run"
    run_to_its_end(SimulationRun(read_simulation(text(2, tensorboard=events), "here"), folder))
    (run,) = events.iterdir()
    assert run.name == f"simulation-{(folder / 'tracking.id').read_text()[:8]}"
    assert [step for step, _ in scalars_in(run)] == [1, 2]
    config = (folder / "config.toml").read_text()
    run_to_its_end(SimulationRun(read_simulation(config, "here", {"rounds": 3}), folder, resume=True))
    assert list(events.iterdir()) == [run]
    assert [step for step, _ in scalars_in(run)] == [1, 2, 3]
    assert scalars_in(run, "visits") == [(1, 4.0), (2, 4.0), (3, 4.0)]
    accuracies = [float(row["accuracy"]) for row in ResultFolder(folder, resume=True).rows(ROUNDS)]
    assert [value for _, value in scalars_in(run)] == pytest.approx(accuracies, abs=1e-3)
    for name in ("clock_seconds", "bytes", "loss", "macro_f1", "failures", "seconds"):
        assert len(scalars_in(run, name)) == 3


def test_broken_tracking_store_does_not_fail_the_simulation(tmp_path, caplog) -> None:
    events = tmp_path / "tb"
    events.write_text("no folder")
    running = SimulationRun(read_simulation(text(1, tensorboard=events), "here"), tmp_path / "run")
    run_to_its_end(running)
    assert running.fleet.job("simulation").status == "done"
    assert "TensorBoard cannot be written" in caplog.text
    assert "a later start of the same job writes them" in caplog.text


def test_each_compared_simulation_is_tracked(tmp_path) -> None:
    changes = {"tracking.tensorboard": str(tmp_path)}
    runs = runs_of(Comparison([], ["fedavg", "fedprox"], [1, 2], changes))
    assert [it.simulation.tracking.tensorboard for it in runs] == [str(tmp_path)] * 4


def test_nothing_is_tracked_by_default(tmp_path) -> None:
    plain = read_simulation(TEXT.format(rounds=1), "here")
    assert "tracking" not in plain.text
    with pytest.raises(ConfigError, match="did you mean 'mlflow'"):
        read_simulation(text(1, mlflo=tmp_path), "here")
    with pytest.raises(ConfigError, match="is not an SQLite store"):
        read_simulation(text(1, mlflow="https://example.org"), "here")
