"""Simulations on a terminal: one, or several side by side."""

from __future__ import annotations

from itertools import product
from pathlib import Path
from typing import TYPE_CHECKING, Any

from rich.table import Table

from coordinator.watching import percent, result_table, show
from fleet_sim.plots import accuracy_plot
from fleet_sim.report import draw, save_model, write_page
from fleet_sim.running import Running
from fleet_sim.simulation import read_simulation
from sojourn.errors import ConfigError

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence

    from rich.console import Console

    from coordinator.following import Course
    from fleet_sim.simulation import Simulation

HOME = Path("simulations")


def one(
    file: Path | None, changes: Mapping[str, Any], output: Path | None, resume: Path | None, console: Console
) -> None:
    """Run one simulation, or go on with it."""
    if resume is not None:
        config = resume / "config.toml"
        if not config.exists():
            raise ConfigError(f"--resume {resume}: there is no config.toml in it")
        simulation, folder = read_simulation(config.read_text(encoding="utf-8"), str(config), dict(changes)), resume
    else:
        simulation = _read(file, changes)
        folder = output or _free(HOME / simulation.job["name"])
    running, course = _run(simulation, folder, console, resume=resume is not None)
    console.print(result_table(course))
    console.print(f"{_told(course)} {_clock(running.fleet.world.now)} of the fleet's time.")
    console.print(f"Tables, pictures and the model are in {folder}; report.html shows them.", soft_wrap=True)


def several(
    files: Sequence[Path], strategies: Sequence[str], seeds: Sequence[int], changes: Mapping[str, Any],
    output: Path | None, console: Console,
) -> None:  # fmt: skip
    """Run several simulations on the same split and draw them together."""
    named: dict[str, Simulation] = {}
    for file, strategy, seed in product(files or (None,), strategies or (None,), seeds or (None,)):
        told = {"strategy": strategy, "seed": seed}
        simulation = _read(file, {**changes, **{path: value for path, value in told.items() if value is not None}})
        words = [file.stem if file else None, strategy, None if seed is None else f"seed {seed}"]
        name = " ".join(word for word in words if word) or simulation.job.get("strategy", "visit")
        if name in named:
            raise ConfigError(f"two of the runs are called {name!r}: name each file and strategy once")
        named[name] = simulation
    folder = output or _free(HOME / "compare")
    rows, table, found = {}, [], Table(title="side by side", title_justify="left", title_style="bold")
    for heading in ("run", "accuracy", "best", "rounds", "visits", "MB", "clock"):
        found.add_column(heading, justify="left" if heading == "run" else "right", no_wrap=True)
    for name, simulation in named.items():
        console.print(f"[bold]{name}[/]")
        running, course = _run(simulation, folder / name.replace(" ", "-"), console)
        rows[name] = running.results.rows("rounds.csv")
        row = _row(name, course, running.fleet.world.now)
        table.append(row)
        found.add_row(*row.values())
    console.print(found)
    accuracy_plot(rows, folder / "compare.png")
    write_page(folder / "report.html", "Side by side", {"compare.png": "Accuracy"}, table)
    console.print(f"compare.png and report.html are in {folder}", soft_wrap=True)


def _run(
    simulation: Simulation, folder: Path, console: Console, *, resume: bool = False
) -> tuple[Running, Course]:
    running = Running(simulation, folder, resume=resume)
    console.print(f"[dim]{running.why}[/]")
    try:
        course = show(running.courses(), console)
        save_model(running.fleet, running.name, folder / "model.onnx")
    except KeyboardInterrupt:
        console.print(f"Stopped. What was done is in {folder}; sojourn simulate --resume {folder} goes on.")
        raise
    finally:
        running.close()
        draw(running.results, running.name, simulation.fleet.names)
    return running, course


def _read(file: Path | None, changes: Mapping[str, Any]) -> Simulation:
    if file is not None and not file.exists():
        raise ConfigError(f"there is no file {file}")
    text = file.read_text(encoding="utf-8") if file else ""
    return read_simulation(text, str(file) if file else "the command line", dict(changes))


def _free(path: Path) -> Path:
    """The path, with a number if it is taken."""
    number, free = 1, path
    while free.exists():
        number += 1
        free = path.with_name(f"{path.name}-{number}")
    return free


def _told(course: Course) -> str:
    return f"{course.view.status.capitalize()}: {course.view.detail}."


def _row(name: str, course: Course, clock: float) -> dict[str, str]:
    history = course.history
    best = max((report.accuracy for report in history), default=float("nan"))
    return {
        "run": name,
        "accuracy": percent(history[-1].accuracy) if history else "-",
        "best": percent(best),
        "rounds": str(len(history)),
        "visits": str(sum(report.visits for report in history)),
        "MB": f"{sum(report.traffic for report in history) / 1e6:.1f}",
        "clock": _clock(clock),
    }


def _clock(seconds: float) -> str:
    if seconds < 60:
        return f"{seconds:.1f} s"
    hours, minutes = divmod(int(seconds // 60), 60)
    return f"{hours} h {minutes:02} min" if hours else f"{minutes} min {int(seconds % 60):02} s"
