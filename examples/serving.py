"""Shared by the examples of tasks: simulate a job file, make its model a release, and serve it on a device."""

from __future__ import annotations

import argparse
import tempfile
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np
from rich.console import Console

from coordinator.console.live_view import show
from coordinator.releases.file import write_release
from coordinator.releases.making import from_job
from edge_agent import Model
from edge_agent.releases.installing import Installer
from edge_agent.releases.orders import Install
from fleet_sim.datasets import load
from fleet_sim.datasets.partition import split
from fleet_sim.run import SimulationRun
from fleet_sim.settings import read_simulation_file
from fleet_sim.world.memory_fleet import CLOUD
from sojourn.data.source import DataSettings
from sojourn.errors import Fault
from sojourn.model import vectors
from sojourn.model.exemplars import Exemplars
from sojourn.protocol.envelope import unpack_blob
from sojourn.protocol.release_messages import MakeRelease
from sojourn.protocol.spec import Kit
from sojourn.store.blobs import FolderBlobs

if TYPE_CHECKING:
    from coordinator.releases.file import ReleaseFile
    from fleet_sim.datasets import DataSet
    from fleet_sim.settings import Simulation
    from sojourn.protocol.wire import Ref
    from sojourn.store.blobs import BlobStore

HERE = Path(__file__).parent
VERSION = 1


@dataclass(frozen=True)
class Example:
    """A running example: its folder, its console and its simulation."""

    line: str
    folder: Path
    console: Console
    simulation: Simulation

    @property
    def data(self) -> DataSet:
        """The data set of the simulation."""
        job = self.simulation.read()
        return load(self.simulation.fleet.data, task=job.task, data=job.data)

    def print(self, text: str) -> None:
        """Print a line."""
        self.console.print(text, markup=False)


def begin(line: str, about: str, arguments: list[str] | None) -> Example:
    """The example in the folder of its job file, with the changes of the command line."""
    parser = argparse.ArgumentParser(f"python -m examples.{line}", description=about)
    parser.add_argument("--rounds", type=int, help="number of rounds; default: that of the job file")
    parser.add_argument("--devices", type=int, help="number of devices; default: that of the job file")
    parser.add_argument("--output", help="folder for all files; default: a new temporary folder")
    given = parser.parse_args(arguments)
    folder = Path(given.output or tempfile.mkdtemp(prefix=f"sojourn-{line}-")).resolve()
    folder.mkdir(parents=True, exist_ok=True)
    asked = {"rounds": given.rounds, "simulation.devices": given.devices}
    changes: dict[str, Any] = {path: value for path, value in asked.items() if value is not None}
    console = Console(highlight=False, soft_wrap=True)
    return Example(line, folder, console, read_simulation_file(HERE / line / "job.toml", changes))


def release_of(example: Example) -> ReleaseFile:
    """Simulate the job, and create a release of its model: compared with torch, measured, with a card."""
    running = SimulationRun(example.simulation, example.folder / "simulation")
    try:
        show(running.courses(), example.console)
        release = _release(example.line, running)
    finally:
        running.close()
    running.draw()
    write_release(example.folder / f"{example.line}-{VERSION}.release", release)
    return release


def served(example: Example, release: ReleaseFile, device: int = 0) -> Model:
    """The release on a device with its share of the data, after the agent has tried it there."""
    data = example.data
    rows = split(example.simulation.split, data, example.simulation.fleet.devices, example.simulation.read().seed)[
        device
    ]
    store, own = example.folder / "device", example.folder / "device.npz"
    np.savez(own, x=data.x_train[rows], y=data.y_train[rows])
    blobs = FolderBlobs(store / "blobs")
    for content, parcel in ((release.graph, release.goods.graph), (release.card_bytes, release.goods.card)):
        blobs.put(content, parcel.digest)
    Installer(store, store / "blobs", DataSettings(path=str(own)))(Install(example.line, VERSION, release.goods))
    return Model(example.line, store)


def _release(line: str, running: SimulationRun) -> ReleaseFile:
    state, blobs = running.fleet.job(running.name), running.fleet.stores[CLOUD].blobs
    if state.kit is None or not state.history:
        raise Fault(f"the job is {state.status}: {state.detail}")
    kit = unpack_blob(blobs.read(state.kit.digest), Kit)
    vector = vectors.load(blobs, state.vectors["model"], kit.model)
    asked = MakeRelease("example", state.name, line, VERSION)
    return from_job(state, asked, kit, vector, _samples(state.exemplars, blobs), _samples(state.test, blobs))


def _samples(ref: Ref | None, blobs: BlobStore) -> Exemplars | None:
    return None if ref is None else unpack_blob(blobs.read(ref.digest), Exemplars)
