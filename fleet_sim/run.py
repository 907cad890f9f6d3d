"""Runs one simulation from its settings to its result folder, for `sojourn simulate` and for notebooks."""

from __future__ import annotations

import math
import os
import secrets
import time
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import msgspec
import numpy as np

from coordinator.console.job_progress import JobProgress, failure_of
from coordinator.records import ENDED
from coordinator.results.folder import HOME, LOG, ROUNDS, VISITS, EndedVisit, ResultFolder, free
from coordinator.results.report import MODEL, draw, save_answers, save_model
from coordinator.results.visit_totals import describe_losses, names, write_tallies
from coordinator.tracking.run_stores import TrackingSettings
from fleet_sim.engines.untrained import UntrainedGraphs
from fleet_sim.preparing import SimulatedDevices, custom_objectives, prepare_training
from fleet_sim.settings import Simulation, read_simulation, read_simulation_file, without_none
from fleet_sim.simulation_result import Simulated
from fleet_sim.tracking import TrackedSimulation
from fleet_sim.world import checkpoint
from fleet_sim.world.availability import fails, follow
from fleet_sim.world.memory_fleet import CLOUD
from fleet_sim.world.role_logs import roles_log
from fleet_sim.world.timing import Timing, WorkerStarts
from fleet_sim.world.virtual_fleet import VirtualFleet
from fleet_sim.world.world import rare_collections
from sojourn.errors import ConfigError, JobError
from sojourn.model.graphs import Graphs
from sojourn.protocol.operator_messages import Continue
from sojourn.protocol.wire import RoundReport
from sojourn.settings import dumps

REFRESH = 0.3
"""Minimum seconds of real time between two updates."""
SHARE = 0.005
"""The maximum share of time that updates take, including drawing, while no round has finished."""
SHARE_WITH_NEWS = 0.007
"""The maximum share at which a finished round is shown immediately."""


class LookPace:
    """Measures the duration of updates; a slow one is followed by a longer pause."""

    def __init__(self, clock: Callable[[], float] = time.monotonic) -> None:
        self._clock = clock
        self._began, self._spent = clock(), 0.0
        self.next = self._began
        """When the next update is due, on the clock."""

    def is_due(self, *, news: bool) -> bool:
        """Return whether to update now; `news` means that there is something new."""
        now = self._clock()
        return now >= self.next or (news and self._spent < SHARE_WITH_NEWS * (now - self._began))

    @contextmanager
    def look(self) -> Iterator[None]:
        """A context manager that measures one update."""
        before = self._clock()
        yield
        now = self._clock()
        self._spent += now - before
        self.next = now + max(REFRESH, (now - before) / SHARE)


MAX_IDLE_SECONDS = 3 * 86_400.0
"""Maximum seconds of simulated time that a job waits for devices; intermittent devices return within a day."""


class SimulationRun:
    """A running simulation. Without `train` it is a plan: time passes and bytes are sent, but nothing is learned."""

    def __init__(
        self,
        simulation: Simulation,
        folder: Path,
        *,
        resume: bool = False,
        train: bool = True,
        notify: Callable[[str], None] = lambda _text: None,
    ) -> None:
        """Prepare everything and start; with `resume`, continue from the checkpoint in the folder.

        `notify` receives the progress of compiling the model, with the elapsed seconds.
        """
        self.simulation, self._train, self._notify = simulation, train, notify
        plain = msgspec.structs.replace(simulation, tracking=TrackingSettings())
        self._tracked = TrackedSimulation(simulation if train else plain)
        self.visits = 0
        """The number of visits of closed rounds in this run."""
        self._waits_since = 0.0
        """The clock when the job was last active."""
        self.took = 0.0
        """Seconds of real time from the first update to the job's end."""
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
        """The number of rounds in the table; after an interruption, the newest may be included or not."""

    def _extend(self) -> None:
        """Apply the rounds and the target of the settings, if they differ from the job's."""
        job, begun = self.simulation.read(), self.fleet.job(self.name).settings
        if (job.all_rounds, job.target) == (begun.all_rounds, begun.target):
            return
        rounds = job.all_rounds if job.all_rounds != begun.all_rounds else None
        asked = Continue(f"extend-{secrets.token_hex(4)}", self.name, rounds, 0.0)
        if job.goal is not None and job.goal.metric == "accuracy":
            asked = msgspec.structs.replace(asked, target=job.goal.value)
        elif job.goal is not None:
            asked = msgspec.structs.replace(asked, goal=job.goal.text)
        if reason := self.fleet.continue_job(asked):
            raise ConfigError(f"{self.results.path}: {reason}")
        self.results.settings(self.simulation.text)

    def _build_fleet(self, devices: SimulatedDevices, before: checkpoint.Resumed, seed: int) -> VirtualFleet:
        """Create all nodes, from `before` if given, and devices that come and go according to the settings."""
        settings, availability = self.simulation.fleet, self.simulation.availability
        fleet = VirtualFleet(
            settings.devices_by_site,
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
            notify=self._notify,
            direct=settings.transfers == "computed",
            objectives=self._objectives,
        )
        follow(fleet, availability, settings.names, seed)
        return fleet

    def courses(self) -> Iterator[JobProgress]:
        """Yield the job's progress a few times a second until it has ended; record rounds as they are evaluated."""
        began = time.monotonic()
        with roles_log(self.results.path / LOG, lambda: self.fleet.world.now), rare_collections():
            yield from self._courses()
        self.took = time.monotonic() - began

    def _courses(self) -> Iterator[JobProgress]:
        self.fleet.settle()  # evaluations that were pending when the simulation was interrupted
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
                self.results.flush()  # visits from before the checkpoint, which are not repeated
                checkpoint.save(self.fleet, self.results.path)
            if going and not self._ended and not pace.is_due(news=self._written > len(course.history)):
                continue
            with pace.look():
                course = self._course(course.history)
                yield course
            if not self._ended and (not going or self._is_stuck(course)):
                raise JobError(f"no more events: {course.view.status}, {course.view.detail}")

    def _is_stuck(self, course: JobProgress) -> bool:
        """Return whether the job has waited too long: intermittent devices would have returned by now."""
        now = self.fleet.world.now
        if course.view.status != "waiting":
            self._waits_since = now
        return now - self._waits_since > MAX_IDLE_SECONDS

    def _visited(self, visit: EndedVisit) -> None:
        self.visits += 1
        self.results.visit(visit)

    def _write_rounds(self) -> None:
        """Record the newly evaluated rounds; the clock of each is that of its end."""
        for report in self.fleet.evaluated_rounds(self.name, self._written):
            ended = report.ended if isinstance(report.ended, float) else self.fleet.world.now
            self.results.round(self._for_display(report), ended)
            self._tracked.round(report, ended)
            self._written += 1

    def _course(self, before: tuple[RoundReport, ...] = ()) -> JobProgress:
        course = self.fleet.course(self.name, before)
        history = (*before, *map(self._for_display, course.history[len(before) :]))
        return msgspec.structs.replace(course, history=history, visits=self.visits + self.fleet.held)

    def _for_display(self, report: RoundReport) -> RoundReport:
        """Return a round for display: without training, the model's metrics are meaningless."""
        if self._train:
            return report
        return msgspec.structs.replace(report, accuracy=math.nan, loss=math.nan, metrics={})

    @property
    def _ended(self) -> bool:
        return self.fleet.job(self.name).status in ENDED

    def finish(self, course: JobProgress) -> None:
        """Write the newest model, and why the job failed if it did; without a round there is no model."""
        self.results.set_failure(failure_of(course.view))
        if not course.history:
            why = failure_of(course.view) or f"{course.view.status}: {course.view.detail}"
            raise JobError(f"{why}. No round was finished")
        self.engine.close()  # its memory is no longer needed
        state, blobs = self.fleet.job(self.name), self.fleet.stores[CLOUD].blobs
        save_model(state, blobs, self.results.path / MODEL)
        if self._train:
            save_answers(state, blobs, self.results)

    def close(self) -> None:
        """Stop the engine, and write the totals of sites and devices."""
        self.engine.close()
        self.fleet.close()
        self.sites, self.devices = write_tallies(
            self.results, self.samples, self.profiles, list(self.simulation.fleet.devices_by_site)
        )
        self.results.close()
        job = self.fleet.job(self.name)
        self._tracked.close(job.status, job.detail)

    def draw(self) -> None:
        """Create the images and the page from the tables; call it after `close`, because it needs the totals."""
        draw(self.results, self.name, list(self.samples))

    @property
    def losses(self) -> str:
        """Describe lost visits and visits that the gate would have refused, with reasons; empty if there are none."""
        return describe_losses(self.results.rows(VISITS))

    @property
    def without_samples(self) -> str:
        """Describe the devices without samples in one sentence; empty if there are none."""
        empty = [name for name, count in self.samples.items() if not count]
        if not empty:
            return ""
        have = (
            f"{len(empty):,} of {len(self.samples):,} devices have no samples ({names(empty)}) and decline all visits"
        )
        return f"{have}: use a larger alpha, another split or fewer devices."

    def _advance(self, until: float, closed: int) -> bool:
        """Advance time until a round closes, the job ends, or this real time is reached."""
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

    settings: the path of a job file, its text, its tables as a dict, or the result of `read_simulation`. folder: where
    to write results; by default a new folder below `simulations`. resume: continue the simulation in the folder. watch:
    receives the iterator of the job's progress and returns its last item. Raise JobError if the job fails; its results
    so far are in the folder.
    """
    simulation = settings if isinstance(settings, Simulation) else _read(settings)
    if folder is None and resume:
        raise ConfigError("resume needs the folder of the simulation")
    path = free(HOME / simulation.job["name"]) if folder is None else Path(folder)
    running = SimulationRun(simulation, path, resume=resume)
    try:
        course = watch(running.courses()) if watch else last_course(running.courses())
        running.finish(course)
    finally:
        running.close()
        running.draw()
    if failed := failure_of(course.view):
        raise JobError(f"{failed}. Its results so far are in {path}")
    return Simulated(path, course, running.fleet.world.now, running.why)


def _read(settings: str | Path | Mapping[str, Any]) -> Simulation:
    """Read a simulation from a file, a text or a dict; a text without a line break and without `=` is a file's name."""
    if isinstance(settings, Path) or (
        isinstance(settings, str) and settings.strip() and not set("=\n[") & set(settings)
    ):
        return read_simulation_file(Path(settings))
    if isinstance(settings, str):
        return read_simulation(settings, "the text")
    return read_simulation(dumps(msgspec.to_builtins(without_none(settings), enc_hook=_as_toml)), "the dict")


def _as_toml(value: Any) -> Any:
    """Convert paths and numpy numbers to TOML values."""
    if isinstance(value, os.PathLike):
        return os.fspath(value)
    if isinstance(value, np.generic):
        return value.item()
    raise ConfigError(f"the dict: a job file cannot contain {value!r}, a {type(value).__name__}")


def last_course(courses: Iterator[JobProgress]) -> JobProgress:
    """Run a job to its end, and return its last progress."""
    course = next(courses)
    for course in courses:  # noqa: B007  # only the last counts
        pass
    return course
