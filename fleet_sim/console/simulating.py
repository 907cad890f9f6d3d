"""One simulation on a terminal, as `sojourn simulate` shows it."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from coordinator.console.compiling_lines import compiling
from coordinator.console.following import failure_of
from coordinator.console.visit_rate import describe_rate
from coordinator.console.watching import is_live, result_table, round_line, show
from coordinator.results.folder import CONFIG, HOME, free
from coordinator.results.report import REPORT
from coordinator.results.task_figures import task_of
from coordinator.results.what_was_run import what_was_run
from coordinator.strategies import RECOMMENDED
from fleet_sim.console.setting_options import option_of
from fleet_sim.run import SimulationRun
from fleet_sim.settings import read_simulation, read_simulation_file
from sojourn.errors import ConfigError, JobError
from sojourn.figures import clock_of
from sojourn.settings import parse

if TYPE_CHECKING:
    from collections.abc import Iterator, Mapping
    from pathlib import Path

    from rich.console import Console

    from coordinator.console.following import JobProgress
    from fleet_sim.settings import Simulation

LINES = 10
"""Lines that a simulation leaves in a log while it runs, at most: its rounds pass faster than anybody reads."""
CHANGEABLE = (
    "rounds",
    "schedule.trips",
    "target",
    *(f"simulation.{key}" for key in ("engine", "workers", "device", "ray")),
    *(f"tracking.{key}" for key in ("mlflow", "tensorboard", "experiment")),
)
"""What may change when a simulation goes on: how long it is, who trains, and where else its rounds are written."""


def one(
    file: Path | None, changes: Mapping[str, Any], output: Path | None, resume: Path | None, console: Console
) -> Path:
    """Run one simulation, or go on with it; returns the folder of its results."""
    if resume is not None:
        simulation, folder = resumed(file, changes, output, resume), resume
    else:
        simulation = read(file, changes)
        folder = output or free(HOME / simulation.job["name"])
    again = f"sojourn simulate --resume {folder}"
    for note in simulation.notes:
        write(console, note, "yellow")
    write(console, what_was_run(parse(simulation.text, CONFIG)))
    running, course = run(simulation, folder, console, again, resume=resume is not None)
    console.print(result_table(course))
    if running.losses:
        write(console, running.losses)
    write(console, f"{course.view.status.capitalize()}: {course.view.detail}. {_pace(running)}")
    console.print(f"Tables, pictures and the model are in {folder}", soft_wrap=True, markup=False)
    console.print(f"To see them: {folder / REPORT}", soft_wrap=True, markup=False)
    if failed := failure_of(course.view):
        raise JobError(failed)
    return folder


def resumed(file: Path | None, changes: Mapping[str, Any], output: Path | None, folder: Path) -> Simulation:
    """The simulation in a folder, as it was begun but for what may change on the way; ConfigError for all else."""
    config = folder / CONFIG
    if not config.exists():
        raise ConfigError(f"--resume {folder}: there is no {CONFIG} in it")
    anew = "leave that out, or begin anew in another folder, without --resume"
    if file is not None or output is not None:
        given = f"the file {file}" if file is not None else f"--output {output}"
        raise ConfigError(
            f"--resume {folder} goes on there, with the settings in its {CONFIG}, not with {given}: {anew}"
        )
    begun = parse(config.read_text(encoding="utf-8"), str(config))
    for path, value in changes.items():
        before = _at(begun, path)
        same = value in (before, [before])
        if path not in CHANGEABLE and not same:
            was = "it was not set" if before is None else f"it was {before!r}"
            raise ConfigError(f"--resume {folder}: {option_of(path)} cannot change on the way ({was}): {anew}")
    simulation = read(config, changes)
    if "rounds" in changes and simulation.read().all_rounds != changes["rounds"]:
        raise ConfigError(
            f"--resume {folder}: its schedule says itself how many rounds there are, so --rounds changes nothing: "
            f"where it has trips, --set schedule.trips={changes['rounds']}"
        )
    return simulation


def _at(tables: Mapping[str, Any], path: str) -> Any:
    """A setting by its path; None where there is none."""
    place: Any = tables
    for key in path.split("."):
        place = place.get(key) if isinstance(place, dict) else None
    return place


def run(
    simulation: Simulation, folder: Path, console: Console, again: str, *, resume: bool = False, rounds: bool = True
) -> tuple[SimulationRun, JobProgress]:
    """Run it before a person's eyes; `again` is the command that goes on with it.

    Without `rounds` nothing is said but what a live view shows: there are more runs than one.
    """
    with compiling(console) as tell:
        running = SimulationRun(simulation, folder, resume=resume, tell=tell)
    try:
        if rounds:
            write(console, f"Trained by: {running.why}.", "dim")
        if rounds and running.without_samples:
            write(console, running.without_samples, "yellow")
        course = _shown(running.courses(), console, LINES if rounds else 0)
        running.finish(course)
    except KeyboardInterrupt:
        console.print(f"Stopped. What was done is in {folder}; {again} goes on.", soft_wrap=True, markup=False)
        raise
    finally:
        running.close()
        running.draw()
    return running, course


def read(file: Path | None, changes: Mapping[str, Any], *, planned: bool = False) -> Simulation:
    """The simulation in a file, or of the command line alone, then of the strategy that we recommend."""
    if file is not None:
        return read_simulation_file(file, dict(changes), planned=planned)
    return read_simulation("", "the command line", {"strategy": RECOMMENDED, **changes})


def write(console: Console, text: str, style: str = "") -> None:
    """A sentence, as it is, within the width of the terminal."""
    console.print(text, style=style, markup=False, highlight=False)


def _shown(courses: Iterator[JobProgress], console: Console, lines: int) -> JobProgress:
    """A live view where there is a terminal; elsewhere some rounds, a line each, as they come."""
    if is_live(console):
        return show(courses, console)
    course = next(courses)
    written, step = len(course.history), max(1, -(-course.view.rounds // lines)) if lines else 0
    for course in courses:
        for report in course.history[written:]:
            if step and report.round % step == 0:
                write(console, round_line(report, course.view.rounds, task_of(course.view)))
        written = len(course.history)
    return course


def _pace(running: SimulationRun) -> str:
    """How much of the fleet's time passed, in how much of ours."""
    rate = describe_rate(running.visits / running.took) if running.visits and running.took else "no visits"
    return f"{clock_of(running.fleet.world.now)} of the fleet's time in {clock_of(running.took)}: {rate}."
