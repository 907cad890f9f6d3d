"""One simulation from its settings to its result folder; `sojourn simulate` and a notebook both call this."""

from __future__ import annotations

import math
import time
from dataclasses import dataclass, replace
from pathlib import Path
from typing import TYPE_CHECKING

import msgspec
import numpy as np

from coordinator.jobs.data import public_data
from coordinator.jobs.settings import read_job
from coordinator.records import ENDED
from fleet_sim import checkpoint, engines
from fleet_sim.availability import fails, follow
from fleet_sim.datasets import load
from fleet_sim.engines.untrained import UntrainedEngine, UntrainedGraphs
from fleet_sim.partition import split
from fleet_sim.profiles import find_link, find_profile
from fleet_sim.results import ResultFolder
from fleet_sim.simulation import Simulation, read_simulation
from fleet_sim.tallies import write_tallies
from fleet_sim.timing import Timing
from fleet_sim.virtual_fleet import VirtualFleet
from fleet_sim.worker_starts import Warmth
from sojourn.errors import JobError
from sojourn.model.graphs import Graphs

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator

    from coordinator.console.following import JobProgress
    from coordinator.jobs.settings import JobSettings
    from fleet_sim.datasets import DataSet
    from fleet_sim.simulation import SimulationSettings
    from sojourn.protocol.wire import RoundReport

REFRESH = 0.3
"""Seconds of real time between two looks at a simulation, at least."""
LOOKING = 10
"""So many times longer it runs than it is looked at."""


@dataclass(frozen=True)
class Simulated:
    """How a simulation ended."""

    folder: Path
    course: JobProgress
    clock: float
    why: str
    """Which engine was chosen, and why."""


class Running:
    """A simulation under way; with `train` off a plan, in which time passes and bytes flow and nothing is learnt."""

    def __init__(self, simulation: Simulation, folder: Path, *, resume: bool = False, train: bool = True) -> None:
        self.simulation, self._train = simulation, train
        self.results = ResultFolder(folder, resume=resume)
        job, fleet = simulation.read(), simulation.fleet
        self.name = job.name
        self.profiles = fleet.dealt(fleet.profile)
        boards = {name: find_profile(profile) for name, profile in self.profiles.items()}
        lines = {name: find_link(link) if link else boards[name].link for name, link in fleet.dealt(fleet.link).items()}
        data = load(fleet.data)
        rows = dict(zip(fleet.names, split(simulation.split, data, fleet.devices, job.seed), strict=True))
        self.samples = {name: len(part) for name, part in rows.items()}
        before = checkpoint.load(folder) if resume else checkpoint.Resumed()
        self.results.open()
        text = simulation.job_text(_test_file(data if train else _few(data, job), folder))
        shards = engines.Shards(data.x_train, data.y_train, data.classes, rows)
        self.engine, self.why = _engine(shards, fleet, text) if train else (UntrainedEngine(shards), "a plan")
        self.fleet = VirtualFleet(
            fleet.reached, self.engine, Timing({name: it.device for name, it in boards.items()}, self.samples),
            Warmth({name: it.device.visit_seconds for name, it in boards.items()}, before.warm),
            self.results.visit, one_broker=fleet.reach == "all",
            lost=lambda device, visit: fails(simulation.availability, device, visit, job.seed),
            lines=lines, clock=before.clock, stores=before.stores, make=Graphs if train else UntrainedGraphs,
        )  # fmt: skip
        follow(self.fleet, simulation.availability, fleet.names, job.seed)
        del data, rows, shards  # the engine has what it needs of them
        if resume:
            self.results.back_to(before.clock)
        else:
            self.results.begin(simulation)
            self.fleet.submit(text)

    def courses(self) -> Iterator[JobProgress]:
        """How it stands, a few times a second, until it has ended."""
        course = self._course()
        yield course
        written, look = len(course.history), time.monotonic() + REFRESH
        while not course.ended:
            going = self._advance(look, written)
            history = self.fleet.job(self.name).history
            for report in history[written:]:
                self.results.round(self._told(report), self.fleet.world.now)
                checkpoint.save(self.fleet, self.results.path)
            written, now = len(history), time.monotonic()
            if going and now < look and not self._ended:
                continue
            course = self._course(course.history)
            yield course
            look = time.monotonic() + max(REFRESH, LOOKING * (time.monotonic() - now))
            if not going and not self._ended:
                raise JobError(f"nothing more happens: {course.view.status}, {course.view.detail}")

    def _course(self, before: tuple[RoundReport, ...] = ()) -> JobProgress:
        course = self.fleet.course(self.name, before)
        return msgspec.structs.replace(course, history=(*before, *map(self._told, course.history[len(before) :])))

    def _told(self, report: RoundReport) -> RoundReport:
        """How good a model is that nobody trained says nothing."""
        return report if self._train else msgspec.structs.replace(report, accuracy=math.nan, loss=math.nan)

    @property
    def _ended(self) -> bool:
        return self.fleet.job(self.name).status in ENDED

    def close(self) -> None:
        """End what was started, and add up what was done."""
        self.engine.close()
        self.sites, self.devices = write_tallies(
            self.results, self.samples, self.profiles, list(self.simulation.fleet.reached)
        )
        self.results.close()

    def _advance(self, until: float, written: int) -> bool:
        """Let the fleet's time pass until there is news, or for a moment of ours."""
        job = self.fleet.job(self.name)
        return self.fleet.world.run(
            lambda: len(job.history) > written or job.status in ENDED or time.monotonic() >= until, limit=math.inf
        )


def simulate(
    settings: Simulation | str | Path, folder: Path | str, *, resume: bool = False,
    watch: Callable[[Iterator[JobProgress]], JobProgress] | None = None,
) -> Simulated:  # fmt: skip
    """Run a simulation to its end. `settings` is a file, its text, or what `read_simulation` gave."""
    if isinstance(settings, Path):
        settings = settings.read_text(encoding="utf-8")
    if isinstance(settings, str):
        settings = read_simulation(settings, "the simulation")
    running = Running(settings, Path(folder), resume=resume)
    try:
        course = watch(running.courses()) if watch else _last(running.courses())
    finally:
        running.close()
    return Simulated(Path(folder), course, running.fleet.world.now, running.why)


def _last(courses: Iterator[JobProgress]) -> JobProgress:
    course = next(courses)
    for course in courses:  # noqa: B007  # only the last counts
        pass
    return course


def _engine(shards: engines.Shards, fleet: SimulationSettings, text: str) -> tuple[engines.Engine, str]:
    return engines.choose(
        shards, engine=fleet.engine, trainer=fleet.trainer, device=fleet.device, workers=fleet.workers,
        network=_network(text) if fleet.trainer == "torch" else None, ray=fleet.ray,
    )  # fmt: skip


def _network(text: str) -> engines.Network:
    """The torch module that the job's kit is compiled from."""
    from coordinator.models import build  # noqa: PLC0415  # torch takes seconds and 280 MB

    job = read_job(text, "the simulation")
    data = public_data(job)
    module = build(job.model.name, data.input, len(data.classes), job.model.options, job.seed)
    return engines.Network(module, data.mean, data.std)


def _test_file(data: DataSet, folder: Path) -> Path:
    path = (folder / "test.npz").resolve()
    np.savez(path, x=data.x_test, y=data.y_test, classes=np.array(data.classes))
    return path


def _few(data: DataSet, job: JobSettings) -> DataSet:
    """The data with as many test samples as exemplars are cut from, and one of each class to test on."""
    each = job.data.exemplars_per_class + 1
    rows = np.concatenate([np.flatnonzero(data.y_test == label)[:each] for label in np.unique(data.y_test)])
    return replace(data, x_test=data.x_test[rows], y_test=data.y_test[rows])
