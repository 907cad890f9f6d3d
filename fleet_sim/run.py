"""One simulation from its settings to its result folder; `sojourn simulate` and a notebook both call this."""

from __future__ import annotations

import math
import time
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING

import msgspec

from coordinator.records import ENDED
from fleet_sim.engines.untrained import UntrainedGraphs
from fleet_sim.preparing import SimulatedDevices, prepare_training
from fleet_sim.results.folder import ResultFolder
from fleet_sim.results.tallies import write_tallies
from fleet_sim.settings import Simulation, read_simulation
from fleet_sim.world import checkpoint
from fleet_sim.world.availability import fails, follow
from fleet_sim.world.timing import Timing
from fleet_sim.world.virtual_fleet import VirtualFleet
from fleet_sim.world.worker_starts import WorkerStarts
from sojourn.errors import JobError
from sojourn.model.graphs import Graphs

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator

    from coordinator.console.following import JobProgress
    from sojourn.protocol.wire import RoundReport

REFRESH = 0.3
"""Seconds of real time between two looks at a simulation, at least."""
LOOKING = 10
"""A simulation runs this many times longer than the looks at it take."""


@dataclass(frozen=True)
class Simulated:
    """How a simulation ended: its folder, how the job went, and the fleet's clock at the end."""

    folder: Path
    course: JobProgress
    clock: float
    why: str
    """Which engine was chosen, and why."""


class SimulationRun:
    """A simulation under way; without `train` a plan: time passes and bytes flow, and nothing is learnt."""

    def __init__(
        self,
        simulation: Simulation,
        folder: Path,
        *,
        resume: bool = False,
        train: bool = True,
        tell: Callable[[str], None] = lambda _text: None,
    ) -> None:
        """Prepare all and begin; with `resume` go on from the checkpoint in the folder.

        `tell` is told what compiling the model is at, and for how many seconds.
        """
        self.simulation, self._train, self._tell = simulation, train, tell
        self.results = ResultFolder(folder, resume=resume)
        job, devices = simulation.read(), SimulatedDevices.of(simulation.fleet)
        self.name, self.profiles = job.name, devices.profiles
        before = checkpoint.load(folder) if resume else checkpoint.Resumed()
        prepared = prepare_training(simulation, self.results, train=train)
        self.engine, self.why, self.samples = prepared.engine, prepared.why, prepared.samples
        self.fleet = self._build_fleet(devices, before, job.seed)
        if resume:
            self.results.back_to(before.clock)
        else:
            self.results.begin(simulation.text)
            self.fleet.submit(prepared.job_text)

    def _build_fleet(self, devices: SimulatedDevices, before: checkpoint.Resumed, seed: int) -> VirtualFleet:
        """All nodes, as they were `before`, and devices that come and go as the settings say."""
        settings, availability = self.simulation.fleet, self.simulation.availability
        fleet = VirtualFleet(
            settings.reached,
            self.engine,
            Timing(devices.boards, self.samples),
            WorkerStarts({name: board.visit_seconds for name, board in devices.boards.items()}, before.worker_times),
            self.results.visit,
            one_broker=settings.reach == "all",
            lost=lambda device, visit: fails(availability, device, visit, seed),
            links=devices.links,
            clock=before.clock,
            stores=before.stores,
            make=Graphs if self._train else UntrainedGraphs,
            tell=self._tell,
        )
        follow(fleet, availability, settings.names, seed)
        return fleet

    def courses(self) -> Iterator[JobProgress]:
        """How the job stands, a few times a second, until it has ended; rounds are written down as they close."""
        course = self._course()
        yield course
        written, look = len(course.history), time.monotonic() + REFRESH
        while not course.ended:
            going = self._advance(look, written)
            history = self.fleet.job(self.name).history
            for report in history[written:]:
                self.results.round(self._known(report), self.fleet.world.now)
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
        return msgspec.structs.replace(course, history=(*before, *map(self._known, course.history[len(before) :])))

    def _known(self, report: RoundReport) -> RoundReport:
        """A round as it is shown: without training, how good its model is means nothing."""
        return report if self._train else msgspec.structs.replace(report, accuracy=math.nan, loss=math.nan)

    @property
    def _ended(self) -> bool:
        return self.fleet.job(self.name).status in ENDED

    def close(self) -> None:
        """End the engine, and write the sums over sites and devices."""
        self.engine.close()
        self.sites, self.devices = write_tallies(
            self.results, self.samples, self.profiles, list(self.simulation.fleet.reached)
        )
        self.results.close()

    def _advance(self, until: float, written: int) -> bool:
        """Let the fleet's time pass until a round closes, the job ends, or it is this late in real time."""
        job = self.fleet.job(self.name)
        return self.fleet.world.run(
            lambda: len(job.history) > written or job.status in ENDED or time.monotonic() >= until, limit=math.inf
        )


def simulate(
    settings: Simulation | str | Path,
    folder: Path | str,
    *,
    resume: bool = False,
    watch: Callable[[Iterator[JobProgress]], JobProgress] | None = None,
) -> Simulated:
    """Run a simulation to its end. `settings` is a file, its text, or what `read_simulation` gave."""
    if isinstance(settings, Path):
        settings = settings.read_text(encoding="utf-8")
    if isinstance(settings, str):
        settings = read_simulation(settings, "the simulation")
    running = SimulationRun(settings, Path(folder), resume=resume)
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
