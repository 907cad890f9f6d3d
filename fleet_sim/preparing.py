"""Creates a fleet's boards and links, its shares of the data and its engine from a simulation's settings."""

from __future__ import annotations

import logging
from dataclasses import dataclass, replace
from pathlib import Path

import numpy as np

from coordinator.jobs.data import public_data
from coordinator.jobs.model import job_learning, job_model
from coordinator.jobs.settings import JobSettings, read_job
from coordinator.results.folder import ResultFolder
from fleet_sim import engines
from fleet_sim.board_profiles import find_link, find_profile
from fleet_sim.datasets import DataSet, load
from fleet_sim.datasets.file_formats import as_arrays
from fleet_sim.datasets.partition import split
from fleet_sim.engines.untrained import UntrainedEngine
from fleet_sim.settings import Simulation, SimulationSettings
from sojourn.parts import OwnObjective
from sojourn.parts.custom_code import load as load_part
from sojourn.profile import DeviceProfile, LinkProfile
from sojourn.protocol.spec import InputSpec

log = logging.getLogger(__name__)


@dataclass(frozen=True)
class SimulatedDevices:
    """The simulated devices by name: the assigned profile, the board and the link of each."""

    profiles: dict[str, str]
    boards: dict[str, DeviceProfile]
    links: dict[str, LinkProfile]

    @classmethod
    def of(cls, settings: SimulationSettings) -> SimulatedDevices:
        """Look up all profiles; a link in the settings overrides the profile's."""
        profiles = settings.dealt(settings.board)
        found = {name: find_profile(profile) for name, profile in profiles.items()}
        links = settings.dealt(settings.link)
        return cls(
            profiles,
            {name: profile.device for name, profile in found.items()},
            {name: find_link(links[name]) if links[name] else profile.link for name, profile in found.items()},
        )


@dataclass(frozen=True)
class PreparedTraining:
    """The engine with the devices' data, the reason for its choice, and the job file for the coordinator."""

    engine: engines.Engine
    why: str
    samples: dict[str, int]
    """The number of samples of each device."""
    job_text: str


def custom_objectives(job: JobSettings) -> tuple[str, ...]:
    """Return the custom objective that a job names; raise ConfigError if it cannot be imported here.

    Call it before the engine starts: its processes search modules where this one has found them.
    """
    objective = job.parts().objective
    if not isinstance(objective, OwnObjective):
        return ()
    load_part(objective, "begin")
    return (objective.part,)


def prepare_training(simulation: Simulation, results: ResultFolder, *, train: bool) -> PreparedTraining:
    """Split the data over the devices, write the test set into the result folder, and choose the engine.

    The data set itself is released: the engine has what it needs. Without `train` nothing is learned, so a few test
    samples suffice.
    """
    job = simulation.read()
    size = InputSpec(job.data.input, job.data.dtype) if job.data.input else None
    data = load(simulation.fleet.data, how=job.data.files, wanted=size, task=job.task, data=job.data)
    for text in (*data.warnings, *(f"skipped: {text}" for text in data.skipped)):
        log.warning("%s: %s", data.name, text)
    parts = split(simulation.split, data, simulation.fleet.devices, job.seed)
    rows = dict(zip(simulation.fleet.names, parts, strict=True))
    shards = engines.Shards(data.x_train, data.y_train, data.classes, rows)
    results.open()
    job_text = simulation.job_text(_write_test_set(data if train else _with_few_tests(data, job), results.path))
    engine, why = _choose_engine(shards, simulation.fleet, job_text) if train else (UntrainedEngine(shards), "a plan")
    return PreparedTraining(engine, why, {name: len(part) for name, part in rows.items()}, job_text)


def _write_test_set(data: DataSet, folder: Path) -> Path:
    path = (folder / "test.npz").resolve()
    np.savez(path, allow_pickle=False, **as_arrays(data))
    return path


def _with_few_tests(data: DataSet, job: JobSettings) -> DataSet:
    """Return the data with the minimum number of test samples: twice as many as exemplars."""
    each = 2 * job.data.exemplars_per_class
    if job.task.kind != "classification":
        count = min(len(data.y_test), each * job.task.strata)
        some = np.linspace(0, len(data.y_test) - 1, count).astype(np.int64)
        return replace(data, x_test=data.x_test[some], y_test=data.y_test[some])
    rows = np.concatenate([np.flatnonzero(data.y_test == label)[:each] for label in np.unique(data.y_test)])
    return replace(data, x_test=data.x_test[rows], y_test=data.y_test[rows])


def _choose_engine(shards: engines.Shards, fleet: SimulationSettings, job_text: str) -> tuple[engines.Engine, str]:
    return engines.choose(
        shards,
        engine=fleet.engine,
        trainer=fleet.trainer,
        device=fleet.device,
        workers=fleet.workers,
        network=_network(job_text) if fleet.trainer == "torch" else None,
        ray=fleet.ray,
    )


def _network(job_text: str) -> engines.Network:
    """Return the torch module that the job's kit is compiled from."""
    job = read_job(job_text, "the simulation")
    data = public_data(job)
    module = job_model(job, data.input, data.output)
    return engines.Network(module, data.mean, data.std, job.model.batchnorm, job_learning(job, data))
