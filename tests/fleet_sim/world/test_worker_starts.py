"""Training processes of simulated devices start, stay for a while, and end."""

from __future__ import annotations

import pytest

from fleet_sim.run import SimulationRun
from fleet_sim.settings import read_simulation
from fleet_sim.world.worker_starts import WorkerStarts

TEXT = """
strategy = "fedavg"
rounds = 1
threads = 1
model = { name = "mlp", options = { hidden = [16] } }
simulation = { devices = 2, sites = 1, engine = "serial", profile = "raspberry-pi-zero-2" }
"""


def test_a_cold_process_takes_its_time_and_a_warm_one_none() -> None:
    starts = WorkerStarts({"pi": 3.0})
    assert starts.wait("pi", 10.0) == 3.0
    assert starts.wait("pi", 12.0) == 1.0  # it was told to start two seconds ago
    starts.use("pi", 20.0)
    assert starts.wait("pi", 24.9) == 0.0


def test_it_ends_when_it_had_nothing_to_do_for_five_seconds() -> None:
    starts = WorkerStarts({"pi": 3.0})
    starts.wait("pi", 0.0)
    starts.use("pi", 20.0)
    assert starts.wait("pi", 25.1) == 3.0


def test_it_goes_on_where_another_one_stopped() -> None:
    first = WorkerStarts({"pi": 3.0})
    first.wait("pi", 0.0)
    first.use("pi", 20.0)
    assert WorkerStarts({"pi": 3.0}, first.times).wait("pi", 21.0) == 0.0


def test_the_first_visit_of_a_device_pays_for_the_start(tmp_path) -> None:
    running = SimulationRun(read_simulation(TEXT, "a test"), tmp_path)
    for _ in running.courses():
        pass
    running.close()
    start = min(running.fleet.worker_starts._starts.values())
    assert start > 1.0
    assert all(float(row["seconds"]) == pytest.approx(start, rel=0.5) for row in running.results.rows("visits.csv"))
    assert all(float(row["seconds"]) >= start for row in running.results.rows("visits.csv"))
