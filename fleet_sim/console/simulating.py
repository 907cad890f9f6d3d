"""One simulation on a terminal, as `sojourn simulate` shows it."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from coordinator.console.watching import is_live, result_table, round_line, show
from fleet_sim.results.folder import CONFIG, HOME, free
from fleet_sim.results.report import REPORT, what_was_run
from fleet_sim.run import SimulationRun
from fleet_sim.settings import read_simulation, read_simulation_file
from sojourn.errors import ConfigError
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


def one(
    file: Path | None, changes: Mapping[str, Any], output: Path | None, resume: Path | None, console: Console
) -> None:
    """Run one simulation, or go on with it."""
    if resume is not None:
        config = resume / CONFIG
        if not config.exists():
            raise ConfigError(f"--resume {resume}: there is no {CONFIG} in it")
        simulation, folder = read(config, changes), resume
    else:
        simulation = read(file, changes)
        folder = output or free(HOME / simulation.job["name"])
    again = f"sojourn simulate --resume {folder}"
    write(console, what_was_run(parse(simulation.text, CONFIG)))
    running, course = run(simulation, folder, console, again, resume=resume is not None)
    console.print(result_table(course))
    if running.losses:
        write(console, running.losses)
    write(console, f"{course.view.status.capitalize()}: {course.view.detail}. {_clock(running)} of the fleet's time.")
    console.print(f"Tables, pictures and the model are in {folder}", soft_wrap=True, markup=False)
    console.print(f"To see them: {folder / REPORT}", soft_wrap=True, markup=False)


def run(
    simulation: Simulation, folder: Path, console: Console, again: str, *, resume: bool = False, rounds: bool = True
) -> tuple[SimulationRun, JobProgress]:
    """Run it before a person's eyes; `again` is the command that goes on with it.

    Without `rounds` nothing is said but what a live view shows: there are more runs than one.
    """
    running = SimulationRun(simulation, folder, resume=resume)
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


def read(file: Path | None, changes: Mapping[str, Any]) -> Simulation:
    """The simulation in a file, or of the command line alone."""
    if file is not None:
        return read_simulation_file(file, dict(changes))
    return read_simulation("", "the command line", dict(changes))


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
                write(console, round_line(report, course.view.rounds))
        written = len(course.history)
    return course


def _clock(running: SimulationRun) -> str:
    return clock_of(running.fleet.world.now)
