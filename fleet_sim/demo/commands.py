"""The command `sojourn demo`."""

from __future__ import annotations

import tempfile
from pathlib import Path
from typing import Annotated, Any

import typer

from sojourn.errors import ConfigError, SojournError

demo = typer.Typer(add_completion=False, help="Train one model on a small fleet on this machine, over real MQTT.")


@demo.command()
def run(
    devices: Annotated[int, typer.Option(help="Number of agents.", min=1, max=64)] = 8,
    sites: Annotated[int, typer.Option(help="Number of edge servers.", min=1, max=16)] = 2,
    rounds: Annotated[int, typer.Option(help="Maximum number of rounds.", min=1)] = 15,
    target: Annotated[float | None, typer.Option(help="Stop at this accuracy.", min=0.0, max=1.0)] = 0.93,
    strategy: Annotated[
        str | None, typer.Option(help="Strategy; see `sojourn strategies`.", show_default="keel")
    ] = None,
    alpha: Annotated[float, typer.Option(help="Dirichlet's alpha of the split. Small is uneven.", min=0.001)] = 0.3,
    seed: Annotated[int, typer.Option(help="Seed of the split and of the model.", min=0)] = 1,
    output: Annotated[
        Path | None,
        typer.Option("--output", "-o", metavar="FOLDER", help="Keep all files (logs, data) in this folder."),
    ] = None,
    brokers: Annotated[str, typer.Option(metavar="one|per-site", help="One broker for all, or one per site.")] = "one",
) -> None:
    """Train one model on a small fleet on this machine, over real MQTT."""
    from rich.console import Console

    from sojourn import errors
    from sojourn.settings import validated

    errors.require_extra("cloud", "the demo")
    from coordinator.strategies import RECOMMENDED_STRATEGY, named
    from fleet_sim.demo import fleet as it

    strategy = strategy or RECOMMENDED_STRATEGY
    named(strategy, "--strategy")
    values: dict[str, Any] = {
        "devices": devices,
        "edges": min(sites, devices),
        "rounds": rounds,
        "target": target or None,
        "strategy": strategy,
        "alpha": alpha,
        "seed": seed,
        "brokers": brokers,
    }
    chosen = validated(values, it.Demo, "the command line")
    folder, console = _folder(output), Console(highlight=False)
    try:
        it.run(chosen, folder, console)
    except SojournError:
        console.print(f"[dim]All files, including a log per process, are in {folder}[/]", soft_wrap=True)
        raise
    except KeyboardInterrupt:
        console.print(f"Stopped; all processes have ended. Their files are in {folder}", soft_wrap=True)
        raise typer.Exit(130) from None
    if output is None:
        it.tidy(folder)


def _folder(output: Path | None) -> Path:
    if output is None:
        return Path(tempfile.mkdtemp(prefix="sojourn-demo-"))
    if output.exists() and not output.is_dir():
        raise ConfigError(f"--output {output} is a file: use a folder")
    output.mkdir(parents=True, exist_ok=True)
    if any(output.iterdir()):
        raise ConfigError(f"--output {output} is not empty: use a new folder")
    return output.resolve()
