"""The simulation predicts a real fleet: eight agents over Mosquitto do the same job with the same bits and bytes."""

from dataclasses import dataclass

import numpy as np
import pytest

from fleet_sim.datasets import load
from fleet_sim.datasets.partition import split
from fleet_sim.run import SimulationRun
from fleet_sim.settings import read_simulation
from fleet_sim.world.memory_fleet import CLOUD
from sojourn.model import vectors
from sojourn.protocol.envelope import unpack_blob
from sojourn.protocol.spec import Kit
from tests.live.live_fleet import LiveFleet
from tests.there import there

NEAR = 0.02
"""The tolerance of predicted bytes, in addition to the signs of life, of which a slow machine sends more."""
FLEET = """
rounds = 3
threads = 1
[model]
options = { hidden = [256] }
[training]
epochs = 2
batch = 16
lr = 0.05
[simulation]
data = "digits"
devices = 8
sites = 2
engine = "serial"
board = "raspberry-pi-5"
[split]
by = "dirichlet"
alpha = 0.5
"""
VISIT = 'strategy = "visit"\narranger = { sets = 2, size = 4 }\nestimator = { epochs = 3 }\n'
# Each with another model: a device that holds a blob from an earlier job does not get it again.
HIDDEN = {"visit": 256, "fedavg-int8": 252, "metafed": 248}
UNGATED = "gate = { on = false }\n"
"""The exemplars are the same for all jobs: with the gate on, edge servers would hold them from earlier jobs."""
JOBS = {
    "visit": f'{VISIT}gate = "enforce"\n',
    "fedavg-int8": f'strategy = "fedavg"\n{UNGATED}encoding = "int8"\n',
    "scaffold-batchnorm-int8": f'strategy = "scaffold"\n{UNGATED}encoding = "int8"\n',
    "fedbn": f'strategy = "fedbn"\n{UNGATED}',
    "metafed": f'strategy = "metafed"\n{UNGATED}schedule = {{ trips = 1 }}\nobjective = {{ warmup = 4 }}\n',
}
MODELS = {
    "scaffold-batchnorm-int8": 'name = "tests.fleet_sim.batchnorm_net:NormalisedRows"\noptions = { classes = 10 }',
    "fedbn": 'name = "tests.fleet_sim.batchnorm_net:NormalisedRows"\noptions = { classes = 10, hidden = 250 }',
}
"""The jobs with another model than the usual one."""


@dataclass(frozen=True)
class Predicted:
    """The result of a simulation, computed before the real fleet runs."""

    job: str
    rows: list[dict[str, str]]
    visits: list[dict[str, str]]
    traffic: int
    model: np.ndarray


@pytest.fixture(scope="module")
def predicted(tmp_path_factory) -> dict[str, Predicted]:
    return {name: simulated(name, tmp_path_factory.mktemp("simulated")) for name in JOBS}


def simulated(name, folder) -> Predicted:
    usual = "options = { hidden = [256] }"
    fleet = FLEET.replace(usual, MODELS.get(name) or usual.replace("256", str(HIDDEN.get(name))))
    simulation = read_simulation(f'name = "{name}"\n{JOBS[name]}{fleet}', name)
    running = SimulationRun(simulation, folder)
    try:
        *_, course = running.courses()
    finally:
        running.close()
    assert course.view.status == "done"
    state, blobs = running.fleet.job(name), running.fleet.stores[CLOUD].blobs
    kit = unpack_blob(blobs.read(there(state.kit).digest), Kit)
    model = vectors.load(blobs, state.vectors["model"], kit.model)
    rows, visits = (running.results.rows(table) for table in ("rounds.csv", "visits.csv"))
    return Predicted(simulation.job_text(folder / "test.npz"), rows, visits, running.fleet.traffic, model)


@pytest.fixture(scope="module")
def fleet(tmp_path_factory):
    """Return two sites with separate brokers; each agent has the samples of the simulated device with its name."""
    folder = tmp_path_factory.mktemp("live")
    simulation = read_simulation(FLEET, "the fleet")
    samples, data = load(simulation.fleet.data), {}
    parts = split(simulation.split, samples, simulation.fleet.devices, simulation.read().seed)
    for name, part in zip(simulation.fleet.names, parts, strict=True):
        data[name] = str(folder / f"{name}.npz")
        np.savez(data[name], x=samples.x_train[part], y=samples.y_train[part])
    sites = {site: list(devices) for site, devices in simulation.fleet.devices_by_site.items()}
    live = LiveFleet(folder, sites, own_brokers=True, data=data, witnessed=True)
    yield live
    live.stop()


@pytest.mark.parametrize("name", JOBS)
def test_real_fleet_matches_the_simulation(fleet, predicted, name) -> None:
    expected = predicted[name]
    before = fleet.witness.total() if name != next(iter(JOBS)) else 0  # the first job is counted from the first birth
    signs = fleet.witness.signs_of_life()
    trained = len(fleet.trained())
    view = fleet.run(expected.job, name)
    counted, signs = fleet.witness.total() - before, fleet.witness.signs_of_life() - signs
    assert view.status == "done"
    assert [it.accuracy for it in view.history] == [float(row["accuracy"]) for row in expected.rows]
    own = [it.metrics.get("own_accuracy") for it in view.history]  # reported by devices for their personal models
    assert own == [float(row["own_accuracy"]) if "own_accuracy" in row else None for row in expected.rows]
    assert all(own) == (name in ("fedbn", "metafed"))
    assert [it.visits for it in view.history] == [int(row["visits"]) for row in expected.rows]
    assert len(fleet.trained()) - trained == len(expected.visits)
    assert np.array_equal(fleet.model(name), expected.model)
    pairs = [(int(row["bytes"]), it.traffic) for row, it in zip(expected.rows, view.history, strict=True)]
    for output, found in (*pairs, (expected.traffic, counted)):
        assert output * (1 - NEAR) <= found <= output * (1 + NEAR) + signs, (pairs, expected.traffic, counted, signs)


def test_broker_counters_match_the_witness(fleet) -> None:
    """Runs last: the fleet is idle, so both counts stay the same."""

    def same() -> bool:
        received, counted = fleet.witness.counted()
        return bool(received == counted)

    fleet.wait(same, "equal counts")
