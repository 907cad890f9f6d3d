"""`sojourn simulate`, `sojourn compare` and `sojourn plan`."""

from __future__ import annotations

from contextlib import nullcontext
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from fleet_sim.console.setting_options import ENGINE, FLEET, TRACKING, takes_settings

if TYPE_CHECKING:
    from rich.console import Console

simulate = typer.Typer(add_completion=False, help="Simulate a whole fleet on this machine.")
compare = typer.Typer(add_completion=False, help="Simulate several jobs on the same split, side by side.")
plan = typer.Typer(
    add_completion=False, help="Tell how long a job would take on a fleet and how many bytes, without training."
)

File = Annotated[
    Path | None, typer.Argument(metavar="FILE", help="A job file, with the tables simulation, split, availability.")
]
Output = Annotated[
    Path | None,
    typer.Option("--output", "-o", metavar="FOLDER", help="Where results go.", show_default="simulations/..."),
]


@simulate.command()
@takes_settings("strategy", "seed", *FLEET, *ENGINE, *TRACKING)
def run(
    *,
    file: File = None,
    changes: dict[str, Any],
    output: Output = None,
    resume: Annotated[
        Path | None, typer.Option(metavar="FOLDER", help="Go on with a simulation; --rounds gives it more rounds.")
    ] = None,
    profile: Annotated[
        bool, typer.Option("--profile", help="Tell at the end where this machine's time went, by phase.")
    ] = False,
) -> None:
    """Simulate a whole fleet on this machine: the same roles, strategies and protocol, under a virtual clock."""
    from fleet_sim.console.phase_sampler import PhaseSampler

    with PhaseSampler() if profile else nullcontext() as sampler:
        console = _ready()
        from fleet_sim.console.simulating import one

        folder = one(file, changes, output, resume, console)
    if sampler:
        from fleet_sim.console.time_report import show_time

        show_time(sampler, folder, console)


@compare.command()
@takes_settings(*FLEET, *ENGINE, *TRACKING)
def side_by_side(
    *,
    files: Annotated[list[Path] | None, typer.Argument(metavar="FILE", help="Job files.")] = None,
    strategy: Annotated[list[str] | None, typer.Option(help="A strategy; may be repeated.")] = None,
    seed: Annotated[list[int] | None, typer.Option(help="A seed; may be repeated.")] = None,
    changes: dict[str, Any],
    same_training: Annotated[
        bool,
        typer.Option(
            "--same-training", help="All train as the first does, or as --epochs, --batch, --lr and --set training say."
        ),
    ] = False,
    reach: Annotated[
        str | None,
        typer.Option(metavar="FIGURE", help="Also tell in which round this was reached: 0.9, or 'rmse <= 0.5'."),
    ] = None,
    output: Output = None,
    resume: Annotated[
        Path | None, typer.Option(metavar="FOLDER", help="Go on with a comparison: the same words, and its folder.")
    ] = None,
) -> None:
    """Simulate several strategies or seeds on the same split: one table, one picture."""
    console = _ready()
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
        typer.Option("--output", "-o", metavar="FOLDER", help="Where tables of all rounds, sites and devices go."),
    ] = None,
) -> None:
    """Tell how long a job would take on a fleet and how many bytes: a simulation in which nothing is trained."""
    console = _ready()
    from fleet_sim.console import planning

    planning.plan(file, changes, output, console)


def _ready() -> Console:
    """A terminal to write on, when all is installed that a simulation needs."""
    from rich.console import Console

    from sojourn import extras

    extras.need("cloud", "a simulation")
    extras.need("sim", "a simulation")
    return Console(highlight=False)
