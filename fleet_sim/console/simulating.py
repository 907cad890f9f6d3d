"""Runs one simulation on a terminal for `sojourn simulate`, and reports where its real time went."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import TYPE_CHECKING, Any

from coordinator.console.compile_progress import compiling
from coordinator.console.job_progress import JobProgress, describe_rate, failure_of
from coordinator.console.live_view import is_live, result_table, round_line, show
from coordinator.results.folder import CONFIG, HOME, free, write_table
from coordinator.results.job_metrics import task_of
from coordinator.results.report import REPORT
from coordinator.results.run_description import what_was_run
from coordinator.strategies import RECOMMENDED_STRATEGY
from fleet_sim.console.setting_options import option_of
from fleet_sim.console.time_by_phase import COMPILING, PHASES, WAITING, PhaseSampler, PhaseSeconds
from fleet_sim.run import SimulationRun
from fleet_sim.settings import Simulation, read_simulation, read_simulation_file
from sojourn.errors import ConfigError, JobError
from sojourn.settings import parse
from sojourn.tables import number_table
from sojourn.text import clock_of, percent

if TYPE_CHECKING:
    from rich.console import Console


LINES = 10
"""Maximum number of lines that a simulation writes to a log; rounds may finish in quick succession."""
CHANGEABLE = (
    "rounds",
    "schedule.trips",
    "target",
    *(f"simulation.{key}" for key in ("engine", "workers", "device", "ray")),
    *(f"tracking.{key}" for key in ("mlflow", "tensorboard", "experiment")),
)
"""Settings that may change when a simulation resumes: its length, its engine and its tracking."""


def one(
    file: Path | None, changes: Mapping[str, Any], output: Path | None, resume: Path | None, console: Console
) -> Path:
    """Run or resume one simulation; return the folder of its results."""
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
    console.print(f"Tables, images and the model are in {folder}", soft_wrap=True, markup=False)
    console.print(f"Open the report: {folder / REPORT}", soft_wrap=True, markup=False)
    if failed := failure_of(course.view):
        raise JobError(failed)
    return folder


def resumed(file: Path | None, changes: Mapping[str, Any], output: Path | None, folder: Path) -> Simulation:
    """Return the simulation in a folder, with the allowed changes; raise ConfigError for any other change."""
    config = folder / CONFIG
    if not config.exists():
        raise ConfigError(f"--resume {folder}: there is no {CONFIG} in it")
    remedy = "omit it, or start a new simulation in another folder, without --resume"
    if file is not None or output is not None:
        given = f"the file {file}" if file is not None else f"--output {output}"
        raise ConfigError(f"--resume {folder} uses the settings in its {CONFIG}, not {given}: {remedy}")
    begun = parse(config.read_text(encoding="utf-8"), str(config))
    for path, value in changes.items():
        before = _at(begun, path)
        same = value in (before, [before])
        if path not in CHANGEABLE and not same:
            was = "it was not set" if before is None else f"it was {before!r}"
            raise ConfigError(f"--resume {folder}: {option_of(path)} cannot change on resuming ({was}): {remedy}")
    simulation = read(config, changes)
    if "rounds" in changes and simulation.read().all_rounds != changes["rounds"]:
        raise ConfigError(
            f"--resume {folder}: the schedule defines the number of rounds, so --rounds has no effect; "
            f"if it has trips, use --set schedule.trips={changes['rounds']}"
        )
    return simulation


def _at(tables: Mapping[str, Any], path: str) -> Any:
    """Return a setting by its path; None if it is missing."""
    place: Any = tables
    for key in path.split("."):
        place = place.get(key) if isinstance(place, dict) else None
    return place


def run(
    simulation: Simulation, folder: Path, console: Console, again: str, *, resume: bool = False, rounds: bool = True
) -> tuple[SimulationRun, JobProgress]:
    """Run a simulation with a live view; `again` is the command that resumes it.

    Without `rounds`, print only the live view, because there are several runs.
    """
    with compiling(console) as notify:
        running = SimulationRun(simulation, folder, resume=resume, notify=notify)
    try:
        if rounds:
            write(console, f"Engine: {running.why}.", "dim")
        if rounds and running.without_samples:
            write(console, running.without_samples, "yellow")
        course = _show_progress(running.courses(), console, LINES if rounds else 0)
        running.finish(course)
    except KeyboardInterrupt:
        console.print(f"Stopped. Finished rounds are in {folder}; resume with: {again}", soft_wrap=True, markup=False)
        raise
    finally:
        running.close()
        running.draw()
    return running, course


def read(file: Path | None, changes: Mapping[str, Any], *, planned: bool = False) -> Simulation:
    """Return the simulation of a file, or of the command line with the default strategy."""
    if file is not None:
        return read_simulation_file(file, dict(changes), planned=planned)
    return read_simulation("", "the command line", {"strategy": RECOMMENDED_STRATEGY, **changes})


def write(console: Console, text: str, style: str = "") -> None:
    """Print a sentence without markup, wrapped to the width of the terminal."""
    console.print(text, style=style, markup=False, highlight=False)


def _show_progress(courses: Iterator[JobProgress], console: Console, lines: int) -> JobProgress:
    """Show a live view on a terminal; otherwise log a line for some of the rounds."""
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
    """Describe how much simulated time passed, in how much real time."""
    rate = describe_rate(running.visits / running.took) if running.visits and running.took else "no visits"
    return f"{clock_of(running.fleet.world.now)} of simulated time in {clock_of(running.took)}: {rate}."


FILE = "time.csv"


def show_time(sampler: PhaseSampler, folder: Path, console: Console) -> None:
    """Print the table of times, and write it to the folder."""
    rows = time_rows(sampler)
    write_table(folder / FILE, ("phase", "seconds", "share", "cpu", "cpu_of_others"), rows)
    table = number_table("real time by phase", "phase", "seconds", "share", "CPU here", "CPU of workers")
    for phase, *numbers in rows:
        table.add_row(phase, *_readable(*numbers))
    total = sampler.total
    table.add_row("all", *_readable(total.passed, 1.0, total.cpu, sampler.compiler + sampler.workers), style="bold")
    console.print(table)
    write(console, f"CPU here: seconds of the main thread; other threads used {sampler.threads:.2f} more.", "dim")
    console.print(f"This table is in {folder / FILE}", soft_wrap=True, markup=False)


def time_rows(sampler: PhaseSampler) -> list[tuple[str, float, float, float, float]]:
    """Return each phase's seconds, share of the total, and processor time of the main thread and of other processes."""
    spent, whole = sampler.spent, sampler.total.passed or 1.0
    others = {COMPILING: sampler.compiler, WAITING: sampler.workers}
    return [
        (phase, it.passed, it.passed / whole, it.cpu, others.get(phase, 0.0))
        for phase in PHASES
        if (it := spent.get(phase, PhaseSeconds())).passed or others.get(phase)
    ]


def _readable(passed: float, share: float, cpu: float, elsewhere: float) -> tuple[str, ...]:
    return f"{passed:.2f}", percent(share), f"{cpu:.2f}", f"{elsewhere:.2f}" if elsewhere >= 0.005 else ""
