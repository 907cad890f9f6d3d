"""Plans a job: how long it would take on a fleet and how many bytes it would transfer, without training."""

from __future__ import annotations

import tempfile
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from statistics import fmean
from typing import Any

from rich.console import Console
from rich.progress import Progress
from rich.table import Table

from coordinator.console.job_progress import JobProgress, failure_of, rounds_done
from coordinator.results.folder import CONFIG, ROUNDS, VISITS
from coordinator.results.run_description import what_was_run
from coordinator.results.visit_totals import DEVICES, SITES, VisitTally
from fleet_sim.board_profiles import find_profile
from fleet_sim.console.simulating import read, write
from fleet_sim.run import SimulationRun, last_course
from sojourn.errors import Fault, JobError
from sojourn.settings import parse
from sojourn.tables import number_table
from sojourn.text import clock_of

MAX_ROWS = 8
"""Maximum number of sites and devices printed; the tables in the folder contain all."""
MIB = 1 << 20
SYSTEM = 160 * MIB
"""Memory of a board's system and the agent's own process, in bytes; assumed for a system without a desktop."""


def plan(file: Path | None, changes: Mapping[str, Any], output: Path | None, console: Console) -> None:
    """Simulate a job without training, and print its time and traffic."""
    simulation = read(file, changes, planned=True)
    for note in simulation.notes:
        write(console, note, "yellow")
    simulation.job.pop("target", None)  # without training there is no target to reach
    if output is not None:
        _run(SimulationRun(simulation, output, train=False), console)
        console.print(f"{ROUNDS}, {VISITS}, {SITES} and {DEVICES} are in {output}", soft_wrap=True, markup=False)
        return
    with tempfile.TemporaryDirectory(prefix="sojourn-plan-") as folder:
        _run(SimulationRun(simulation, Path(folder), train=False), console)


def _run(running: SimulationRun, console: Console) -> None:
    try:
        course = _show_progress(running.courses(), console)
    finally:
        running.close()
    if not course.history:
        raise JobError(f"no round finished: {course.view.detail}")
    failed = failure_of(course.view)
    write(console, what_was_run(parse(running.simulation.text, CONFIG)))
    if running.without_samples:
        write(console, running.without_samples, "yellow")
    console.print(_rounds(running.results.rows(ROUNDS), running.fleet.world.now, running.fleet.traffic))
    console.print(_sites(running.sites))
    console.print(_devices(running.devices, running.samples, running.profiles))
    fits, lacks = _memory(running)
    write(console, f"\n{fits}")
    for line in lacks:
        write(console, line, "yellow")
    if running.losses:
        write(console, f"\n{running.losses}")
    write(
        console,
        "\nNothing was trained: times are based on the profiles, bytes on real messages, and devices are "
        "arranged by their true class mix.",
        "dim",
    )
    if failed:
        raise JobError(failed)


def _show_progress(courses: Iterator[JobProgress], console: Console) -> JobProgress:
    """Show a progress bar until the job has ended."""
    if not console.is_terminal:  # progress bars are useless in a log
        return last_course(courses)
    course = next(courses)
    with Progress(*Progress.get_default_columns(), console=console, transient=True) as bar:
        task = bar.add_task("planning", total=course.view.rounds)
        for course in courses:
            bar.update(task, completed=rounds_done(course))
    return course


def _rounds(rows: Sequence[Mapping[str, str]], clock: float, traffic: int) -> Table:
    """Return a row per phase and a total; traffic outside of rounds (estimates, kits, presence) comes first."""
    times, sizes = [float(row["seconds"]) for row in rows], [float(row["bytes"]) / 1e6 for row in rows]
    table = number_table("time and bytes", "phase", "time", "shortest", "longest", "MB")
    table.add_row("before the first round", clock_of(clock - sum(times)), "", "", _mb(traffic / 1e6 - sum(sizes)))
    spread = [clock_of(each) for each in (fmean(times), min(times), max(times))]
    table.add_row("mean of a round", *spread, _mb(fmean(sizes)))
    table.add_row(f"the whole job, {len(rows)} rounds", clock_of(clock), "", "", _mb(traffic / 1e6), style="bold")
    return table


def _sites(sites: Mapping[str, VisitTally]) -> Table:
    table = number_table("sites, busiest first", "site", "devices", "visits", "lost", "busy", "MB down", "MB up")
    ranked = sorted(sites.items(), key=lambda each: (-each[1].busy, each[0]))
    for name, it in ranked[:MAX_ROWS]:
        counts = str(len(it.devices)), str(it.visits), str(it.lost)
        table.add_row(name, *counts, clock_of(it.busy), _mb(it.down / 1e6), _mb(it.up / 1e6))
    return _with_rest(table, len(ranked))


def _devices(devices: Mapping[str, VisitTally], samples: Mapping[str, int], profiles: Mapping[str, str]) -> Table:
    headings = "device", "profile", "samples", "visits", "busy", "a visit", "MB"
    table = number_table("devices, busiest first", *headings)
    ranked = sorted(devices.items(), key=lambda each: (-each[1].seconds, each[0]))
    for name, it in ranked[:MAX_ROWS]:
        ended = it.visits + it.lost
        times = clock_of(it.seconds), clock_of(it.seconds / ended)
        table.add_row(name, profiles[name], str(samples[name]), str(it.visits), *times, _mb((it.down + it.up) / 1e6))
    return _with_rest(table, len(ranked))


def _memory(running: SimulationRun) -> tuple[str, list[str]]:
    """Describe how much memory training needs on a device, and each board with too little memory."""
    state = running.fleet.job(running.name)
    if not state.size or state.kit is None:
        raise Fault(f"{running.name} has rounds but was not compiled")
    batch = state.strategy.training.batch
    needed = state.size.memory(batch, state.kit.size)
    lines = []
    for profile in dict.fromkeys(running.profiles.values()):
        memory = find_profile(profile).device.memory
        if needed > memory - SYSTEM:
            devices = sum(name == profile for name in running.profiles.values())
            lines.append(
                f"{profile} cannot train this model: of its {memory / MIB:,.0f} MB of memory, the system uses "
                f"about {SYSTEM / MIB:,.0f} MB ({devices:,} of {len(running.profiles):,} devices). Use a smaller model "
                "or batch, or another board."
            )
    parameters = state.size.parameters
    text = f"Training needs about {needed / MIB:,.0f} MB of memory ({parameters:,} parameters, batch {batch})"
    return f"{text}; all boards have enough." if not lines else f"{text}.", lines


def _with_rest(table: Table, all_of_them: int) -> Table:
    if all_of_them > MAX_ROWS:
        table.caption = f"and {all_of_them - MAX_ROWS} more; --output FOLDER writes all of them to tables"
    return table


def _mb(megabytes: float) -> str:
    return f"{megabytes:.2f}" if megabytes < 100 else f"{megabytes:,.0f}"
