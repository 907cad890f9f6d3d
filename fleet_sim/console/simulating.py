"""One simulation on a terminal, as `sojourn simulate` shows it."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Any

from coordinator.console.time_left import clock_of
from coordinator.console.watching import result_table, show
from coordinator.results.folder import CONFIG
from coordinator.results.report import MODEL, draw, save_model
from fleet_sim.console.setting_options import option_of
from fleet_sim.run import SimulationRun
from fleet_sim.settings import read_simulation
from fleet_sim.world.memory_fleet import CLOUD
from sojourn.errors import ConfigError, JobError
from sojourn.settings import parse

if TYPE_CHECKING:
    from collections.abc import Mapping

    from rich.console import Console

    from coordinator.console.following import JobProgress
    from fleet_sim.settings import Simulation

CHANGEABLE = (
    "rounds",
    "schedule.trips",
    "target",
    *(f"simulation.{key}" for key in ("engine", "workers", "device", "ray")),
)
"""What may change when a simulation goes on: how long it is, and who trains."""
HOME = Path("simulations")
"""Where results go, unless a person names a folder."""


def one(
    file: Path | None, changes: Mapping[str, Any], output: Path | None, resume: Path | None, console: Console
) -> None:
    """Run one simulation, or go on with it."""
    if resume is not None:
        simulation, folder = resumed(file, changes, output, resume), resume
    else:
        simulation = read(file, changes)
        folder = output or free(HOME / simulation.job["name"])
    again = f"sojourn simulate --resume {folder}"
    running, course = run(simulation, folder, console, again, resume=resume is not None)
    console.print(result_table(course))
    console.print(f"{_end_of(course)} {clock_of(running.fleet.world.now)} of the fleet's time.")
    console.print(f"Tables, pictures and the model are in {folder}; report.html shows them.", soft_wrap=True)


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
    simulation: Simulation, folder: Path, console: Console, again: str, *, resume: bool = False
) -> tuple[SimulationRun, JobProgress]:
    """Run it before a person's eyes; `again` is the command that goes on with it."""
    running = SimulationRun(simulation, folder, resume=resume)
    console.print(f"[dim]{running.why}[/]")
    try:
        course = show(running.courses(), console)
        if not course.history:
            raise JobError(f"{_end_of(course)} Not one round was finished")
        running.engine.close()  # its memory is needed no more
        save_model(running.fleet.job(running.name), running.fleet.stores[CLOUD].blobs, folder / MODEL)
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


def _end_of(course: JobProgress) -> str:
    return f"{course.view.status.capitalize()}: {course.view.detail}."
