"""`sojourn simulate`, `sojourn compare` and `sojourn plan`."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from sojourn.errors import ConfigError

if TYPE_CHECKING:
    from rich.console import Console

simulate = typer.Typer(add_completion=False, help="Simulate a whole fleet on this machine.")
compare = typer.Typer(add_completion=False, help="Simulate several jobs on the same split, side by side.")
plan = typer.Typer(
    add_completion=False, help="Tell how long a job would take on a fleet and how many bytes, without training."
)

File = Annotated[
    Path | None, typer.Argument(metavar="[FILE]", help="A job file, with the tables simulation, split, availability.")
]
Strategy = Annotated[str | None, typer.Option(help="Any of `sojourn strategies`.")]
Data = Annotated[str | None, typer.Option(help="A data set's name, or an NPZ file.")]
Devices = Annotated[int | None, typer.Option(help="How many devices.", min=1)]
Sites = Annotated[int | None, typer.Option(help="How many edge servers.", min=1)]
By = Annotated[str | None, typer.Option("--split", help="iid, dirichlet, shards, quantity, user or domain.")]
Alpha = Annotated[float | None, typer.Option(help="Dirichlet's alpha; 0: one class for each device.")]
Rounds = Annotated[int | None, typer.Option(help="How many rounds.", min=1)]
Seed = Annotated[int | None, typer.Option(help="All randomness comes from it.", min=0)]
Dropout = Annotated[float | None, typer.Option(help="The chance that a visit fails, 0 to 1.")]
Profile = Annotated[
    list[str] | None,
    typer.Option(help="What the devices are: a board's name, or a measured profile's file. Repeat it for a mix."),
]
Line = Annotated[
    list[str] | None, typer.Option("--link", help="How they are connected, if not as the profile says. Repeatable.")
]
Engine = Annotated[str | None, typer.Option(help="Who trains: auto, serial, pool, ray or batched.")]
Trainer = Annotated[str | None, typer.Option(help="onnx (a device's own) or torch.")]
Device = Annotated[str | None, typer.Option(help="auto, cpu, cuda or mps, for --trainer torch.")]
Workers = Annotated[int | None, typer.Option(help="Processes of the pool; 0: one for each core.", min=0)]
Set = Annotated[
    list[str] | None,
    typer.Option("--set", metavar="KEY=VALUE", help="Any other setting, as in the file: training.lr=0.1. Repeatable."),
]
Output = Annotated[
    Path | None, typer.Option(metavar="FOLDER", help="Where results go.", show_default="simulations/...")
]

PATHS = {
    "data": "simulation.data", "devices": "simulation.devices", "sites": "simulation.sites", "by": "split.by",
    "alpha": "split.alpha", "dropout": "availability.dropout", "profile": "simulation.profile",
    "link": "simulation.link", "engine": "simulation.engine", "trainer": "simulation.trainer",
    "device": "simulation.device", "workers": "simulation.workers",
}  # fmt: skip
"""Where an option stands in the file, if not at its top by its own name."""


def changes(options: dict[str, Any], settings: list[str] | None) -> dict[str, Any]:
    """What the command line says, by path in the file."""
    import tomllib

    found = {PATHS.get(name, name): value for name, value in options.items() if value not in (None, [])}
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
    by: By = None,
    alpha: Alpha = None,
    rounds: Rounds = None,
    seed: Seed = None,
    dropout: Dropout = None,
    profile: Profile = None,
    link: Line = None,
    engine: Engine = None,
    trainer: Trainer = None,
    device: Device = None,
    workers: Workers = None,
    settings: Set = None,
    output: Output = None,
    resume: Annotated[Path | None, typer.Option(metavar="FOLDER", help="Go on with a simulation.")] = None,
) -> None:
    """Simulate a whole fleet on this machine: the same roles, strategies and protocol, under a virtual clock."""
    told = {
        "strategy": strategy, "data": data, "devices": devices, "sites": sites, "by": by, "alpha": alpha,
        "rounds": rounds, "seed": seed, "dropout": dropout, "profile": profile, "link": link, "engine": engine,
        "trainer": trainer, "device": device, "workers": workers,
    }  # fmt: skip
    console = _ready()
    from fleet_sim.console.simulating import one

    one(file, changes(told, settings), output, resume, console)


@compare.command()
def side_by_side(
    files: Annotated[list[Path] | None, typer.Argument(metavar="[FILE]...", help="Job files.")] = None,
    strategy: Annotated[list[str] | None, typer.Option(help="A strategy; may be repeated.")] = None,
    data: Data = None,
    devices: Devices = None,
    sites: Sites = None,
    by: By = None,
    alpha: Alpha = None,
    rounds: Rounds = None,
    seed: Annotated[list[int] | None, typer.Option(help="A seed; may be repeated.")] = None,
    dropout: Dropout = None,
    profile: Profile = None,
    link: Line = None,
    engine: Engine = None,
    trainer: Trainer = None,
    device: Device = None,
    workers: Workers = None,
    settings: Set = None,
    reach: Annotated[
        float | None, typer.Option(help="Also tell in which round this accuracy was reached, 0 to 1.", min=0, max=1)
    ] = None,
    output: Output = None,
    resume: Annotated[
        Path | None, typer.Option(metavar="FOLDER", help="Go on with a comparison: the same words, and its folder.")
    ] = None,
) -> None:
    """Simulate several strategies or seeds on the same split: one table, one picture."""
    told = {
        "data": data, "devices": devices, "sites": sites, "by": by, "alpha": alpha, "rounds": rounds,
        "dropout": dropout, "profile": profile, "link": link, "engine": engine, "trainer": trainer, "device": device,
        "workers": workers,
    }  # fmt: skip
    console = _ready()
    from fleet_sim.console import comparing

    asked = comparing.Asked(
        files or [], strategy or [], seed or [], changes(told, settings), output=output, resume=resume, reach=reach
    )
    comparing.compare(asked, console)


@plan.command()
def without_training(
    file: File = None,
    strategy: Strategy = None,
    data: Data = None,
    devices: Devices = None,
    sites: Sites = None,
    by: By = None,
    alpha: Alpha = None,
    rounds: Rounds = None,
    seed: Seed = None,
    dropout: Dropout = None,
    profile: Profile = None,
    link: Line = None,
    settings: Set = None,
    output: Annotated[
        Path | None, typer.Option(metavar="FOLDER", help="Where tables of all rounds, sites and devices go.")
    ] = None,
) -> None:
    """Tell how long a job would take on a fleet and how many bytes: a simulation in which nothing is trained."""
    told = {
        "strategy": strategy, "data": data, "devices": devices, "sites": sites, "by": by, "alpha": alpha,
        "rounds": rounds, "seed": seed, "dropout": dropout, "profile": profile, "link": link,
    }  # fmt: skip
    console = _ready()
    from fleet_sim.console import planning

    planning.plan(file, changes(told, settings), output, console)


def _ready() -> Console:
    """A terminal to write on, when all is installed that a simulation needs."""
    from rich.console import Console

    from sojourn import extras

    extras.need("cloud", "a simulation")
    extras.need("sim", "a simulation")
    return Console(highlight=False)
