"""Where a simulation's real time went, for people: a table by phase, on the terminal and in the result folder."""

from __future__ import annotations

from typing import TYPE_CHECKING

from coordinator.results.folder import write_table
from fleet_sim.console.phase_sampler import PhaseSeconds
from fleet_sim.console.phases import COMPILING, PHASES, WAITING
from fleet_sim.console.simulating import write
from fleet_sim.console.tables import plain_table
from sojourn.figures import percent

if TYPE_CHECKING:
    from pathlib import Path

    from rich.console import Console

    from fleet_sim.console.phase_sampler import PhaseSampler

FILE = "time.csv"


def show_time(sampler: PhaseSampler, folder: Path, console: Console) -> None:
    """Print the table, and write it into the folder."""
    rows = time_rows(sampler)
    write_table(folder / FILE, ("phase", "seconds", "share", "cpu", "cpu_of_others"), rows)
    table = plain_table("where the time went", "phase", "seconds", "share", "CPU here", "CPU of others")
    for phase, *numbers in rows:
        table.add_row(phase, *_readable(*numbers))
    total = sampler.total
    table.add_row("all", *_readable(total.passed, 1.0, total.cpu, sampler.compiler + sampler.workers), style="bold")
    console.print(table)
    write(console, f"CPU here: the main thread's seconds; other threads had {sampler.threads:.2f} more.", "dim")
    console.print(f"This table is in {folder / FILE}", soft_wrap=True, markup=False)


def time_rows(sampler: PhaseSampler) -> list[tuple[str, float, float, float, float]]:
    """Of each phase: seconds, their share of all, the main thread's processor time, and that of other processes."""
    spent, whole = sampler.spent, sampler.total.passed or 1.0
    others = {COMPILING: sampler.compiler, WAITING: sampler.workers}
    return [
        (phase, it.passed, it.passed / whole, it.cpu, others.get(phase, 0.0))
        for phase in PHASES
        if (it := spent.get(phase, PhaseSeconds())).passed or others.get(phase)
    ]


def _readable(passed: float, share: float, cpu: float, elsewhere: float) -> tuple[str, ...]:
    return f"{passed:.2f}", percent(share), f"{cpu:.2f}", f"{elsewhere:.2f}" if elsewhere >= 0.005 else ""
