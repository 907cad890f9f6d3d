"""One simulation on a terminal, as `sojourn simulate` shows it."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Any

from coordinator.console.compiling_lines import compiling
from coordinator.console.watching import result_table, show
from fleet_sim.results.folder import CONFIG
from fleet_sim.results.report import MODEL, draw, save_model
from fleet_sim.run import SimulationRun
from fleet_sim.settings import read_simulation
from sojourn.errors import ConfigError, JobError

if TYPE_CHECKING:
    from collections.abc import Mapping

    from rich.console import Console

    from coordinator.console.following import JobProgress
    from fleet_sim.settings import Simulation

HOME = Path("simulations")
"""Where results go, unless a person names a folder."""


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
    running, course = run(simulation, folder, console, again, resume=resume is not None)
    console.print(result_table(course))
    console.print(f"{_end_of(course)} {clock_of(running.fleet.world.now)} of the fleet's time.")
    console.print(f"Tables, pictures and the model are in {folder}; report.html shows them.", soft_wrap=True)


def run(
    simulation: Simulation, folder: Path, console: Console, again: str, *, resume: bool = False
) -> tuple[SimulationRun, JobProgress]:
    """Run it before a person's eyes; `again` is the command that goes on with it."""
    with compiling(console) as tell:
        running = SimulationRun(simulation, folder, resume=resume, tell=tell)
    console.print(f"[dim]{running.why}[/]")
    try:
        course = show(running.courses(), console)
        if not course.history:
            raise JobError(f"{_end_of(course)} Not one round was finished")
        running.engine.close()  # its memory is needed no more
        save_model(running.fleet, running.name, folder / MODEL)
    except KeyboardInterrupt:
        console.print(f"Stopped. What was done is in {folder}; {again} goes on.", soft_wrap=True)
        raise
    finally:
        running.close()
        draw(running.results, running.name, list(running.samples))
    return running, course


def read(file: Path | None, changes: Mapping[str, Any]) -> Simulation:
    """The simulation in a file, or of the command line alone."""
    if file is not None and not file.is_file():
        raise ConfigError(f"there is no file {file}")
    text = file.read_text(encoding="utf-8") if file else ""
    return read_simulation(text, str(file) if file else "the command line", dict(changes))


def free(path: Path) -> Path:
    """The path, with a number if it is taken."""
    number, found = 1, path
    while found.exists():
        number += 1
        found = path.with_name(f"{path.name}-{number}")
    return found


def clock_of(seconds: float) -> str:
    """A time for people."""
    if seconds < 60:
        return f"{seconds:.1f} s"
    days, minutes = divmod(int(seconds // 60), 24 * 60)
    hours, minutes = divmod(minutes, 60)
    if days:
        return f"{days} d {hours:02} h"
    return f"{hours} h {minutes:02} min" if hours else f"{minutes} min {int(seconds % 60):02} s"


def _end_of(course: JobProgress) -> str:
    return f"{course.view.status.capitalize()}: {course.view.detail}."
