"""From a simulation's settings to what its fleet needs: boards and links, shares of the data, an engine."""

from __future__ import annotations

import logging
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING

import numpy as np

from coordinator.jobs.data import public_data
from coordinator.jobs.model import job_learning, job_model
from coordinator.jobs.settings import read_job
from fleet_sim import engines
from fleet_sim.datasets import load
from fleet_sim.datasets.partition import split
from fleet_sim.datasets.saved_part import as_arrays
from fleet_sim.engines.untrained import UntrainedEngine
from fleet_sim.profiles.lookup import find_link, find_profile
from sojourn.parts import OwnObjective
from sojourn.parts.own import load as load_part
from sojourn.protocol.spec import InputSpec

if TYPE_CHECKING:
    from pathlib import Path

    from coordinator.jobs.settings import JobSettings
    from coordinator.results.folder import ResultFolder
    from fleet_sim.datasets import DataSet
    from fleet_sim.settings import Simulation, SimulationSettings
    from sojourn.profile import DeviceProfile, LinkProfile

log = logging.getLogger(__name__)


@dataclass(frozen=True)
class SimulatedDevices:
    """What the simulated devices are, by their names: the profile that each was dealt, its board and its link."""

    profiles: dict[str, str]
    boards: dict[str, DeviceProfile]
    links: dict[str, LinkProfile]

    @classmethod
    def of(cls, settings: SimulationSettings) -> SimulatedDevices:
        """Look all profiles up; a link that the settings name counts more than the profile's own."""
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
    """The engine with the devices' data in it, why it is this one, and the job file for the coordinator."""

    engine: engines.Engine
    why: str
    samples: dict[str, int]
    """How many samples each device has."""
    job_text: str


def custom_objectives(job: JobSettings) -> tuple[str, ...]:
    """The custom objective that a job names; ConfigError if it cannot be imported here.

    Call it before the engine starts: its processes look for modules where this one has found them.
    """
    objective = job.parts().objective
    if not isinstance(objective, OwnObjective):
        return ()
    load_part(objective, "begin")
    return (objective.part,)


def prepare_training(simulation: Simulation, results: ResultFolder, *, train: bool) -> PreparedTraining:
    """Deal the data out to the devices, write the test set into the result folder, and choose the engine.

    The data set itself is let go: the engine has what it needs of it. Without `train` nothing will be learnt, so a few
    test samples do.
    """
    job = simulation.read()
    size = InputSpec(job.data.input, job.data.dtype) if job.data.input else None
    data = load(simulation.fleet.data, how=job.data.files, wanted=size, task=job.task, data=job.data)
    for text in (*data.odd, *(f"left out: {text}" for text in data.skipped)):
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
    """The data with as many test samples as exemplars are cut from: twice as many, so that none are spared."""
    each = 2 * job.data.exemplars_per_class
    if job.task.kind != "classification":
        most = min(len(data.y_test), each * job.task.strata)
        some = np.linspace(0, len(data.y_test) - 1, most).astype(np.int64)
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
    """The torch module that the job's kit is compiled from."""
    job = read_job(job_text, "the simulation")
    data = public_data(job)
    module = job_model(job, data.input, data.output)
    return engines.Network(module, data.mean, data.std, job.model.batchnorm, job_learning(job, data))
