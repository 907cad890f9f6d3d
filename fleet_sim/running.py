"""One simulation from its settings to its result folder; `sojourn simulate` and a notebook both call this."""

from __future__ import annotations

import math
import time
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING

import numpy as np

from coordinator.coordinator_records import ENDED
from coordinator.job import read_job
from coordinator.job_data import public_data
from fleet_sim import checkpoint, engines
from fleet_sim.availability import fails, follow
from fleet_sim.datasets import load
from fleet_sim.partition import split
from fleet_sim.profiles import find_link, find_profile
from fleet_sim.results import ResultFolder
from fleet_sim.simulation import Simulation, read_simulation
from fleet_sim.timing import Timing
from fleet_sim.virtual_fleet import VirtualFleet
from sojourn.errors import JobError

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator

    from coordinator.following import Course
    from fleet_sim.datasets import DataSet

REFRESH = 0.3
"""Seconds of real time between two looks at a simulation."""


@dataclass(frozen=True)
class Simulated:
    """How a simulation ended."""

    folder: Path
    course: Course
    clock: float
    why: str
    """Which engine was chosen, and why."""


class Running:
    """A simulation under way."""

    def __init__(self, simulation: Simulation, folder: Path, *, resume: bool = False) -> None:
        self.simulation = simulation
        self.results = ResultFolder(folder, resume=resume)
        job = simulation.read()
        self.name, fleet = job.name, simulation.fleet
        self.data = load(fleet.data)
        self.parts = split(simulation.split, self.data, fleet.devices, job.seed)
        rows = dict(zip(fleet.names, self.parts, strict=True))
        shards = engines.Shards(self.data.x_train, self.data.y_train, self.data.classes, rows)
        test = _test_file(self.data, folder)
        self.engine, self.why = engines.choose(
            shards, engine=fleet.engine, trainer=fleet.trainer, device=fleet.device, workers=fleet.workers,
            network=_network(simulation.job_text(test)) if fleet.trainer == "torch" else None,
        )  # fmt: skip
        profile = find_profile(fleet.profile)
        clock, stores = checkpoint.load(folder) if resume else (0.0, {})
        self.fleet = VirtualFleet(
            fleet.reached, self.engine, Timing(profile.device, {name: len(part) for name, part in rows.items()}),
            self.results.visit, one_broker=fleet.reach == "all",
            lost=lambda device, visit: fails(simulation.availability, device, visit, job.seed),
            line=find_link(fleet.link) if fleet.link else profile.link, clock=clock, stores=stores,
        )  # fmt: skip
        follow(self.fleet, simulation.availability, fleet.names, job.seed)
        if not resume:
            self.results.begin(simulation)
            self.fleet.submit(simulation.job_text(test))

    def courses(self) -> Iterator[Course]:
        """How it stands, a few times a second, until it has ended."""
        course = self.fleet.course(self.name)
        told = len(course.history)
        yield course
        while not course.ended:
            going = self._advance(time.monotonic() + REFRESH, told)
            course = self.fleet.course(self.name, course.history)
            for report in course.history[told:]:
                self.results.round(report, self.fleet.world.now)
                checkpoint.save(self.fleet, self.results.path)
            told = len(course.history)
            yield course
            if not going and course.view.status not in ENDED:
                raise JobError(f"nothing more happens: {course.view.status}, {course.view.detail}")

    def close(self) -> None:
        """End what was started."""
        self.engine.close()

    def _advance(self, until: float, told: int) -> bool:
        """Let the fleet's time pass until there is news, or for a moment of ours."""
        return self.fleet.world.run(lambda: time.monotonic() >= until or self._news(told), limit=math.inf)

    def _news(self, told: int) -> bool:
        return len(self.fleet.job(self.name).history) > told or self.fleet.job(self.name).status in ENDED


def simulate(
    settings: Simulation | str | Path, folder: Path | str, *, resume: bool = False,
    watch: Callable[[Iterator[Course]], Course] | None = None,
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


def _last(courses: Iterator[Course]) -> Course:
    course = next(courses)
    for course in courses:  # noqa: B007  # only the last counts
        pass
    return course


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
