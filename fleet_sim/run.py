"""One simulation from its settings to its result folder; `sojourn simulate` and a notebook both call this."""

from __future__ import annotations

import math
import os
import secrets
import time
from pathlib import Path
from typing import TYPE_CHECKING, Any

import msgspec
import numpy as np
from msgspec import UNSET

from coordinator.console.following import failure_of
from coordinator.records import ENDED
from coordinator.results.answers_table import save_answers
from coordinator.results.folder import HOME, LOG, ROUNDS, VISITS, ResultFolder, free
from coordinator.results.report import MODEL, draw, save_model
from coordinator.results.tallies import describe_losses, names, write_tallies
from coordinator.tracking.settings import TrackingSettings
from fleet_sim.engines.untrained import UntrainedGraphs
from fleet_sim.look_pace import LookPace
from fleet_sim.preparing import SimulatedDevices, custom_objectives, prepare_training
from fleet_sim.settings import Simulation, read_simulation, read_simulation_file
from fleet_sim.simulated import Simulated
from fleet_sim.tracked import TrackedSimulation
from fleet_sim.world import checkpoint
from fleet_sim.world.availability import fails, follow
from fleet_sim.world.memory_fleet import CLOUD
from fleet_sim.world.roles_log import roles_log
from fleet_sim.world.timing import Timing
from fleet_sim.world.virtual_fleet import VirtualFleet
from fleet_sim.world.worker_starts import WorkerStarts
from fleet_sim.world.world import rare_collections
from sojourn.errors import ConfigError, JobError
from sojourn.model.graphs import Graphs
from sojourn.protocol.job_messages import Continue
from sojourn.toml import dumps

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator, Mapping

    from coordinator.console.following import JobProgress
    from coordinator.results.folder import EndedVisit
    from sojourn.protocol.wire import RoundReport

DAYS = 3 * 86_400.0
"""Seconds of simulated time for which a job may wait for devices: each comes at some time of a day, if it ever does."""


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
        plain = msgspec.structs.replace(simulation, tracking=TrackingSettings())
        self._tracked = TrackedSimulation(simulation if train else plain)
        self.visits = 0
        """How many visits of closed rounds have ended in this run."""
        self._waits_since = 0.0
        """The clock when the job was last seen doing something."""
        self.took = 0.0
        """Seconds of real time from the first look to the job's end."""
        self.results = ResultFolder(folder, resume=resume)
        job, devices = simulation.read(), SimulatedDevices.of(simulation.fleet)
        self.name, self.profiles = job.name, devices.profiles
        before = checkpoint.load(folder) if resume else checkpoint.Resumed()
        self._objectives = custom_objectives(job)
        prepared = prepare_training(simulation, self.results, train=train)
        self.engine, self.why, self.samples = prepared.engine, prepared.why, prepared.samples
        with roles_log(folder / LOG, lambda: before.clock), rare_collections():
            self.fleet = self._build_fleet(devices, before, job.seed)
        if resume:
            self.results.back_to(before.clock)
            self._extend()
        else:
            self.results.begin(simulation.text)
            self.fleet.submit(prepared.job_text)
        self._tracked.begin(folder)
        self._written = len(self.results.rows(ROUNDS))
        """How many rounds are in the table: of an interrupted simulation the newest may be, or may not."""

    def _extend(self) -> None:
        """Let the job have the rounds and the target of the settings, where those it began with are others."""
        job, begun = self.simulation.read(), self.fleet.job(self.name).settings
        if (job.all_rounds, job.target) == (begun.all_rounds, begun.target):
            return
        rounds = job.all_rounds if job.all_rounds != begun.all_rounds else UNSET
        asked = Continue(f"extend-{secrets.token_hex(4)}", self.name, rounds, 0.0)
        if job.goal is not None and job.goal.figure == "accuracy":
            asked = msgspec.structs.replace(asked, target=job.goal.value)
        elif job.goal is not None:
            asked = msgspec.structs.replace(asked, goal=job.goal.text)
        if reason := self.fleet.go_on(asked):
            raise ConfigError(f"{self.results.path}: {reason}")
        self.results.settings(self.simulation.text)

    def _build_fleet(self, devices: SimulatedDevices, before: checkpoint.Resumed, seed: int) -> VirtualFleet:
        """All nodes, as they were `before`, and devices that come and go as the settings say."""
        settings, availability = self.simulation.fleet, self.simulation.availability
        fleet = VirtualFleet(
            settings.reached,
            self.engine,
            Timing(devices.boards, self.samples),
            WorkerStarts({name: board.visit_seconds for name, board in devices.boards.items()}, before.worker_times),
            self._visited,
            one_broker=settings.reach == "all",
            lost=lambda device, visit: fails(availability, device, visit, seed),
            links=devices.links,
            clock=before.clock,
            stores=before.stores,
            make=Graphs if self._train else UntrainedGraphs,
            tell=self._tell,
            handing=settings.transfers == "reckoned",
            objectives=self._objectives,
        )
        follow(fleet, availability, settings.names, seed)
        return fleet

    def courses(self) -> Iterator[JobProgress]:
        """How the job stands, a few times a second, until it has ended; rounds are written down as they are tested."""
        began = time.monotonic()
        with roles_log(self.results.path / LOG, lambda: self.fleet.world.now), rare_collections():
            yield from self._courses()
        self.took = time.monotonic() - began

    def _courses(self) -> Iterator[JobProgress]:
        self.fleet.settle()  # what was being tested when the simulation was interrupted
        pace = LookPace()
        with pace.look():
            course = self._course()
            yield course
        self._write_rounds()
        closed = len(self.fleet.job(self.name).history)
        while not course.ended:
            going = self._advance(pace.next, closed)
            if self._ended or not going:
                self.fleet.settle()
            self._write_rounds()
            before, closed = closed, len(self.fleet.job(self.name).history)
            if before < closed:
                self.results.flush()  # its visits happened before the checkpoint, and are not done again
                checkpoint.save(self.fleet, self.results.path)
            if going and not self._ended and not pace.is_due(news=self._written > len(course.history)):
                continue
            with pace.look():
                course = self._course(course.history)
                yield course
            if not self._ended and (not going or self._waits_in_vain(course)):
                raise JobError(f"nothing more happens: {course.view.status}, {course.view.detail}")

    def _waits_in_vain(self, course: JobProgress) -> bool:
        """Whether the job has waited for days of simulated time: whoever comes and goes has come and gone by then."""
        now = self.fleet.world.now
        if course.view.status != "waiting":
            self._waits_since = now
        return now - self._waits_since > DAYS

    def _visited(self, visit: EndedVisit) -> None:
        self.visits += 1
        self.results.visit(visit)

    def _write_rounds(self) -> None:
        """Write down the rounds that were tested since; the clock of each is that of its end."""
        for report in self.fleet.told(self.name, self._written):
            ended = report.ended if isinstance(report.ended, float) else self.fleet.world.now
            self.results.round(self._known(report), ended)
            self._tracked.round(report, ended)
            self._written += 1

    def _course(self, before: tuple[RoundReport, ...] = ()) -> JobProgress:
        course = self.fleet.course(self.name, before)
        history = (*before, *map(self._known, course.history[len(before) :]))
        return msgspec.structs.replace(course, history=history, visits=self.visits + self.fleet.held)

    def _known(self, report: RoundReport) -> RoundReport:
        """A round as it is shown: without training, how good its model is means nothing."""
        if self._train:
            return report
        return msgspec.structs.replace(report, accuracy=math.nan, loss=math.nan, figures=UNSET)

    @property
    def _ended(self) -> bool:
        return self.fleet.job(self.name).status in ENDED

    def finish(self, course: JobProgress) -> None:
        """Write the newest model down, and why the job failed if it did; without a round there is no model."""
        self.results.set_failure(failure_of(course.view))
        if not course.history:
            why = failure_of(course.view) or f"{course.view.status}: {course.view.detail}"
            raise JobError(f"{why}. Not one round was finished")
        self.engine.close()  # its memory is needed no more
        state, blobs = self.fleet.job(self.name), self.fleet.stores[CLOUD].blobs
        save_model(state, blobs, self.results.path / MODEL)
        if self._train:
            save_answers(state, blobs, self.results)

    def close(self) -> None:
        """End the engine, and write the sums over sites and devices."""
        self.engine.close()
        self.fleet.close()
        self.sites, self.devices = write_tallies(
            self.results, self.samples, self.profiles, list(self.simulation.fleet.reached)
        )
        self.results.close()
        job = self.fleet.job(self.name)
        self._tracked.close(job.status, job.detail)

    def draw(self) -> None:
        """Make pictures and the page of what is in the tables; after `close`, for they need the sums."""
        draw(self.results, self.name, list(self.samples))

    @property
    def losses(self) -> str:
        """The visits that were lost so far or that the gate would have refused, and why; nothing if there are none."""
        return describe_losses(self.results.rows(VISITS))

    @property
    def without_samples(self) -> str:
        """One sentence on the devices that the split gave nothing; nothing if there are none."""
        empty = [name for name, count in self.samples.items() if not count]
        if not empty:
            return ""
        have = (
            f"{len(empty):,} of {len(self.samples):,} devices have no samples ({names(empty)}) and decline all visits"
        )
        return f"{have}: a larger alpha, another split or fewer devices gives them some."

    def _advance(self, until: float, closed: int) -> bool:
        """Let the fleet's time pass until a round closes, the job ends, or it is this late in real time."""
        job = self.fleet.job(self.name)
        return self.fleet.world.run(
            lambda: len(job.history) > closed or job.status in ENDED or time.monotonic() >= until, limit=math.inf
        )


def simulate(
    settings: Simulation | str | Path | Mapping[str, Any],
    folder: Path | str | None = None,
    *,
    resume: bool = False,
    watch: Callable[[Iterator[JobProgress]], JobProgress] | None = None,
) -> Simulated:
    """Run a simulation to its end, as `sojourn simulate` does.

    settings: the path of a job file, the text of one, its tables as a dict, or what `read_simulation` gave. folder:
    where results go; without one, a new folder below `simulations`. resume: go on with what is in the folder. watch:
    is given how the job stands, again and again, and returns the last of it. JobError where the job fails; what it did
    before is in the folder.
    """
    simulation = settings if isinstance(settings, Simulation) else _read(settings)
    if folder is None and resume:
        raise ConfigError("resume needs the folder of the simulation that is to go on")
    path = free(HOME / simulation.job["name"]) if folder is None else Path(folder)
    running = SimulationRun(simulation, path, resume=resume)
    try:
        course = watch(running.courses()) if watch else _last(running.courses())
        running.finish(course)
    finally:
        running.close()
        running.draw()
    if failed := failure_of(course.view):
        raise JobError(f"{failed}. What it did is in {path}")
    return Simulated(path, course, running.fleet.world.now, running.why)


def _read(settings: str | Path | Mapping[str, Any]) -> Simulation:
    """A simulation from a file, a text or a dict; a text without a line's end and without `=` is a file's name."""
    if isinstance(settings, Path) or (
        isinstance(settings, str) and settings.strip() and not set("=\n[") & set(settings)
    ):
        return read_simulation_file(Path(settings))
    if isinstance(settings, str):
        return read_simulation(settings, "the text")
    return read_simulation(dumps(msgspec.to_builtins(_said(settings), enc_hook=_as_toml)), "the dict")


def _said(table: Mapping[str, Any]) -> dict[str, Any]:
    """A table without what is None: TOML has no word for nothing."""
    return {key: _said(each) if isinstance(each, dict) else each for key, each in table.items() if each is not None}


def _as_toml(value: Any) -> Any:
    """A path or one of numpy's numbers as a file would have it."""
    if isinstance(value, os.PathLike):
        return os.fspath(value)
    if isinstance(value, np.generic):
        return value.item()
    raise ConfigError(f"the dict: a job file cannot hold {value!r}, a {type(value).__name__}")


def _last(courses: Iterator[JobProgress]) -> JobProgress:
    course = next(courses)
    for course in courses:  # noqa: B007  # only the last counts
        pass
    return course
