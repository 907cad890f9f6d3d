"""The commands `sojourn simulate`, `sojourn compare` and `sojourn plan`."""

from __future__ import annotations

from contextlib import nullcontext
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from fleet_sim.console.setting_options import ENGINE, FLEET, TRACKING, takes_settings

if TYPE_CHECKING:
    from rich.console import Console

simulate = typer.Typer(add_completion=False, help="Simulate a whole fleet on this machine.")
compare = typer.Typer(add_completion=False, help="Compare several simulations on the same split.")
plan = typer.Typer(add_completion=False, help="Estimate a job's duration and traffic on a fleet, without training.")

File = Annotated[
    Path | None, typer.Argument(metavar="FILE", help="Job file with the tables simulation, split and availability.")
]
Output = Annotated[
    Path | None,
    typer.Option("--output", "-o", metavar="FOLDER", help="Folder for the results.", show_default="simulations/..."),
]


@simulate.command()
@takes_settings("strategy", "seed", *FLEET, *ENGINE, *TRACKING)
def run(
    *,
    file: File = None,
    changes: dict[str, Any],
    output: Output = None,
    resume: Annotated[
        Path | None, typer.Option(metavar="FOLDER", help="Resume the simulation in this folder. --rounds extends it.")
    ] = None,
    profile: Annotated[
        bool, typer.Option("--profile", help="Print at the end how much real time each phase took.")
    ] = False,
) -> None:
    """Simulate a whole fleet on this machine, with the real roles, strategies and protocol on a virtual clock."""
    from fleet_sim.console.time_by_phase import PhaseSampler

    with PhaseSampler() if profile else nullcontext() as sampler:
        console = simulation_console()
        from fleet_sim.console.simulating import one

        folder = one(file, changes, output, resume, console)
    if sampler:
        from fleet_sim.console.simulating import show_time

        show_time(sampler, folder, console)


@compare.command()
@takes_settings(*FLEET, *ENGINE, *TRACKING)
def side_by_side(
    *,
    files: Annotated[list[Path] | None, typer.Argument(metavar="FILE", help="Job files.")] = None,
    strategy: Annotated[list[str] | None, typer.Option(help="Strategy. May be repeated.")] = None,
    seed: Annotated[list[int] | None, typer.Option(help="Seed. May be repeated.")] = None,
    changes: dict[str, Any],
    same_training: Annotated[
        bool,
        typer.Option(
            "--same-training",
            help="Use the training settings of the first run for all, except for --epochs, "
            "--batch, --lr and --set training.",
        ),
    ] = False,
    reach: Annotated[
        str | None,
        typer.Option(
            metavar="METRIC", help="Also report the first round that reaches this target: 0.9, or 'rmse <= 0.5'."
        ),
    ] = None,
    output: Output = None,
    resume: Annotated[
        Path | None,
        typer.Option(metavar="FOLDER", help="Resume the comparison in this folder. Repeat its other options."),
    ] = None,
) -> None:
    """Compare several strategies or seeds on the same split, in one table and one image."""
    console = simulation_console()
    from coordinator.jobs.goal import target_of
    from fleet_sim.console import comparing

    comparison = comparing.Comparison(
        files or [],
        strategy or [],
        seed or [],
        changes,
        output=output,
        resume=resume,
        reach=target_of(reach),
        same_training=same_training,
    )
    comparing.compare(comparison, console)


@plan.command()
@takes_settings("strategy", "seed", *FLEET)
def without_training(
    *,
    file: File = None,
    changes: dict[str, Any],
    output: Annotated[
        Path | None,
        typer.Option("--output", "-o", metavar="FOLDER", help="Folder for tables of all rounds, sites and devices."),
    ] = None,
) -> None:
    """Estimate a job's duration and traffic on a fleet with a simulation that trains nothing."""
    console = simulation_console()
    from fleet_sim.console import planning

    planning.plan(file, changes, output, console)


def simulation_console() -> Console:
    """Return the terminal; raise an error if a package for simulations is missing."""
    from rich.console import Console

    from sojourn import errors

    errors.require_extra("cloud", "a simulation")
    errors.require_extra("sim", "a simulation")
    return Console(highlight=False)
