"""Training processes of simulated devices start, stay for a while, and stop."""

from __future__ import annotations

import pytest

from fleet_sim.run import SimulationRun
from fleet_sim.settings import read_simulation
from fleet_sim.world.timing import WorkerStarts

TEXT = """
strategy = "fedavg"
rounds = 1
threads = 1
model = { name = "mlp", options = { hidden = [16] } }
simulation = { devices = 2, sites = 1, engine = "serial", board = "raspberry-pi-zero-2" }
"""


def test_cold_worker_takes_start_time_and_warm_worker_none() -> None:
    starts = WorkerStarts({"pi": 3.0})
    assert starts.wait("pi", 10.0) == 3.0
    assert starts.wait("pi", 12.0) == 1.0  # it was started two seconds ago
    starts.use("pi", 20.0)
    assert starts.wait("pi", 24.9) == 0.0


def test_worker_ends_after_five_idle_seconds() -> None:
    starts = WorkerStarts({"pi": 3.0})
    starts.wait("pi", 0.0)
    starts.use("pi", 20.0)
    assert starts.wait("pi", 25.1) == 3.0


def test_worker_times_resume_from_saved_state() -> None:
    first = WorkerStarts({"pi": 3.0})
    first.wait("pi", 0.0)
    first.use("pi", 20.0)
    assert WorkerStarts({"pi": 3.0}, first.times).wait("pi", 21.0) == 0.0


def test_first_visit_of_a_device_includes_the_start_time(tmp_path) -> None:
    running = SimulationRun(read_simulation(TEXT, "a test"), tmp_path)
    for _ in running.courses():
        pass
    running.close()
    start = min(running.fleet.worker_starts._starts.values())
    assert start > 1.0
    assert all(float(row["seconds"]) == pytest.approx(start, rel=0.5) for row in running.results.rows("visits.csv"))
    assert all(float(row["seconds"]) >= start for row in running.results.rows("visits.csv"))
