"""`sojourn simulate` and `sojourn compare`."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated, Any

import typer

from sojourn.errors import ConfigError

simulate = typer.Typer(help="Simulate a whole fleet on this machine.")
compare = typer.Typer(help="Simulate several jobs on the same split, side by side.")

File = Annotated[Path | None, typer.Argument(metavar="[FILE]", help="A job file, with [simulation] and [split].")]
Strategy = Annotated[str | None, typer.Option(help="Any of `sojourn strategies`.")]
Data = Annotated[str | None, typer.Option(help="A data set's name, or an NPZ file.")]
Devices = Annotated[int | None, typer.Option(help="How many devices.", min=1)]
Sites = Annotated[int | None, typer.Option(help="How many edge servers.", min=1)]
Alpha = Annotated[float | None, typer.Option(help="Dirichlet's alpha; 0: one class for each device.", min=0.0)]
Rounds = Annotated[int | None, typer.Option(help="How many rounds.", min=1)]
Seed = Annotated[int | None, typer.Option(help="All randomness comes from it.", min=0)]
Set = Annotated[
    list[str] | None,
    typer.Option("--set", metavar="KEY=VALUE", help="Any other setting, as in the file: training.lr=0.1. Repeatable."),
]
Output = Annotated[
    Path | None, typer.Option(metavar="FOLDER", help="Where results go.", show_default="simulations/...")
]


def changes(values: dict[str, Any], settings: list[str] | None) -> dict[str, Any]:
    """What the command line says, by path in the file."""
    import tomllib

    found = {path: value for path, value in values.items() if value is not None}
    for each in settings or ():
        path, equals, value = each.partition("=")
        if not equals:
            raise ConfigError(f"--set {each}: write KEY=VALUE, as training.lr=0.1")
        try:
            found[path.strip()] = tomllib.loads(f"value = {value}")["value"]
        except tomllib.TOMLDecodeError:
            found[path.strip()] = value.strip()
    return found


@simulate.command()
def run(
    file: File = None,
    strategy: Strategy = None,
    data: Data = None,
    devices: Devices = None,
    sites: Sites = None,
    alpha: Alpha = None,
    rounds: Rounds = None,
    seed: Seed = None,
    engine: Annotated[str | None, typer.Option(help="auto, serial, pool or batched.")] = None,
    trainer: Annotated[str | None, typer.Option(help="onnx (a device's own) or torch.")] = None,
    device: Annotated[str | None, typer.Option(help="auto, cpu, cuda or mps, for --trainer torch.")] = None,
    settings: Set = None,
    output: Output = None,
    resume: Annotated[Path | None, typer.Option(metavar="FOLDER", help="Go on with a simulation.")] = None,
) -> None:
    """Simulate a whole fleet on this machine: the same roles, strategies and protocol, under a virtual clock."""
    from rich.console import Console

    from sojourn import extras

    extras.need("cloud", "a simulation")
    extras.need("sim", "a simulation")
    from fleet_sim import simulating

    told = changes(
        {
            "strategy": strategy, "simulation.data": data, "simulation.devices": devices, "simulation.sites": sites,
            "split.alpha": alpha, "rounds": rounds, "seed": seed, "simulation.engine": engine,
            "simulation.trainer": trainer, "simulation.device": device,
        },
        settings,
    )  # fmt: skip
    simulating.one(file, told, output, resume, Console(highlight=False))


@compare.command()
def side_by_side(
    files: Annotated[list[Path] | None, typer.Argument(metavar="[FILE]...", help="Job files.")] = None,
    strategy: Annotated[list[str] | None, typer.Option(help="A strategy; may be repeated.")] = None,
    data: Data = None,
    devices: Devices = None,
    sites: Sites = None,
    alpha: Alpha = None,
    rounds: Rounds = None,
    seed: Annotated[list[int] | None, typer.Option(help="A seed; may be repeated.")] = None,
    settings: Set = None,
    output: Output = None,
) -> None:
    """Simulate several strategies or seeds on the same split: one table, one picture."""
    from rich.console import Console

    from sojourn import extras

    extras.need("cloud", "a simulation")
    extras.need("sim", "a simulation")
    from fleet_sim import simulating

    told = changes(
        {
            "simulation.data": data, "simulation.devices": devices, "simulation.sites": sites, "split.alpha": alpha,
            "rounds": rounds,
        },
        settings,
    )  # fmt: skip
    simulating.several(files or [], strategy or [], seed or [], told, output, Console(highlight=False))
