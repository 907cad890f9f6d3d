"""Models with state, merged and frozen, over a real Mosquitto: the bits of a simulation, also after a kill -9."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

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

if TYPE_CHECKING:
    from collections.abc import Iterator
    from pathlib import Path

    from numpy.typing import NDArray

FLEET = """
rounds = 2
threads = 1
gate = {{ on = false }}
{job}
[training]
epochs = {epochs}
batch = 11
lr = 0.05
[simulation]
data = "digits"
devices = 4
sites = 2
engine = "serial"
[split]
by = "dirichlet"
alpha = 0.5
samples = 60
"""
OWN = (
    'model = {{ name = "tests.fleet_sim.batchnorm_net:SmallResidual", options = {{ classes = 10 }}, batchnorm = "{}" }}'
)
MERGED, KEPT = OWN.format("merge"), OWN.format("frozen")
VISIT = 'strategy = "visit"\narranger = { sets = 2, size = 2 }\nestimator = { epochs = 1 }'
FROZEN = f'strategy = "fedavg"\n{KEPT}'
MANY_EPOCHS = 40
"""Enough for a visit to last until a kill in the middle of it."""


@dataclass(frozen=True)
class Simulated:
    """The result of a simulation, and the same job for a real coordinator."""

    text: str
    kit: Kit
    model: NDArray[np.float32]
    visits: list[int]


def simulated(name: str, job: str, folder: Path, epochs: int = 1) -> Simulated:
    text = f'name = "{name}"\n{FLEET.format(job=job, epochs=epochs)}'
    simulation = read_simulation(text, name)
    running = SimulationRun(simulation, folder / name)
    try:
        *_, last = running.courses()
    finally:
        running.close()
    assert last.view.status == "done", last.view.detail
    state, blobs = running.fleet.job(name), running.fleet.stores[CLOUD].blobs
    kit = unpack_blob(blobs.read(there(state.kit).digest), Kit)
    model, initial = (vectors.load(blobs, ref, kit.model) for ref in (state.vectors["model"], there(state.initial)))
    assert (model != initial).any()
    visits = [report.visits for report in last.history]
    return Simulated(simulation.job_text(folder / name / "test.npz"), kit, model, visits)


@pytest.fixture(scope="module")
def fleet(tmp_path_factory: pytest.TempPathFactory) -> Iterator[LiveFleet]:
    """Each agent has the samples of the simulated device with its name."""
    folder = tmp_path_factory.mktemp("live")
    simulation = read_simulation(FLEET.format(job=VISIT, epochs=1), "the fleet")
    samples = load(simulation.fleet.data)
    parts = split(simulation.split, samples, simulation.fleet.devices, simulation.read().seed)
    files = {}
    for name, part in zip(simulation.fleet.names, parts, strict=True):
        files[name] = str(folder / f"{name}.npz")
        np.savez(files[name], x=samples.x_train[part], y=samples.y_train[part])
    sites = {site: list(devices) for site, devices in simulation.fleet.devices_by_site.items()}
    live = LiveFleet(folder, sites, own_brokers=True, data=files)
    yield live
    live.stop()


def test_mosquitto_run_matches_simulation_bit_for_bit(fleet: LiveFleet, tmp_path: Path) -> None:
    name = "frozen"
    expected = simulated(name, FROZEN, tmp_path)
    assert not expected.kit.model.state
    view = fleet.run(expected.text, name)
    assert view.status == "done", view.detail
    assert [report.visits for report in view.history] == expected.visits
    assert np.array_equal(fleet.model(name), expected.model)


def test_agent_killed_mid_visit_returns_the_same_state(fleet: LiveFleet, tmp_path: Path) -> None:
    name, victim = "killed", next(iter(fleet.sites.values()))[0]
    expected = simulated(name, f"{VISIT}\n{MERGED}", tmp_path, epochs=MANY_EPOCHS)
    assert expected.kit.model.state
    fleet.submit(expected.text)
    for number in (1, 2):  # at least one of the visits is still under way when this process comes to the kill
        # In the first round, the first visit reported the summary of its data.
        fleet.wait_for(victim, f"visit {name} round {number} tour", 2 if number == 1 else 1)
        fleet.kill(victim)
        fleet.start(victim)
    view = fleet.finish(name)
    assert view.status == "done", view.detail
    assert np.array_equal(fleet.model(name), expected.model)
    assert sum(f"visit {name} round " in line for line in fleet.log(victim).splitlines()) > 3
