"""`sojourn data`: data sets, and how they are split over devices."""

from __future__ import annotations

from functools import partial
from pathlib import Path
from typing import Annotated, Any

import typer

from sojourn import options
from sojourn.errors import ConfigError

app = typer.Typer(add_completion=False, no_args_is_help=True, help="Show how a data set is split over devices.")


@app.callback()
def data_() -> None:
    """Show how a data set is split over devices."""


@app.command()
def show(
    data: Annotated[
        str,
        typer.Option(
            metavar="NAME|PATH",
            help="A data set's name, an NPZ or CSV file, or a folder of images; an unknown name lists those known.",
        ),
    ] = "digits",
    devices: Annotated[int, typer.Option(help="How many devices.", min=1, max=1_000_000)] = 10,
    by: Annotated[
        str, typer.Option("--split", metavar="WAY", help="iid, dirichlet, shards, quantity, user or domain.")
    ] = "dirichlet",
    alpha: Annotated[
        float, typer.Option(help="For dirichlet and quantity: small is uneven, 0 is one class per device.")
    ] = 0.1,
    shards: Annotated[int, typer.Option(help="For shards: how many each device gets.")] = 2,
    samples: Annotated[int, typer.Option(help="Cut every device to this many samples; 0: as the split gives.")] = 0,
    seed: Annotated[int, typer.Option(help="Another seed, another split.", min=0)] = 0,
    label: options.Label = None,
    header: options.Header = None,
    scale: options.Scale = None,
    folder: Annotated[
        Path | None,
        typer.Option("--data-folder", metavar="FOLDER", help="Where data sets are, instead of SOJOURN_DATA."),
    ] = None,
    table: Annotated[Path | None, typer.Option("--csv", metavar="FILE", help="Write all devices here.")] = None,
) -> None:
    """Draw a split: how many samples of each class every device gets."""
    from rich.console import Console

    from sojourn import extras
    from sojourn.settings import validated

    extras.need("cloud", "a split")
    from fleet_sim.console.split_view import counts_of, draw, write_csv
    from fleet_sim.datasets import load
    from fleet_sim.datasets.partition import Split, split
    from sojourn.data.source import read_as
    from sojourn.protocol.spec import InputSpec

    values: dict[str, Any] = {"by": by, "alpha": alpha, "shards": shards, "samples": samples}
    settings = validated(values, Split, "the command line")
    how = partial(read_as, label=label, header=header, scale=scale)
    # Counts do not depend on the size of images: any will do.
    found, console = load(data, folder, how=how, wanted=InputSpec((3, 8, 8))), Console()
    parts = split(settings, found, devices, seed)
    counts = counts_of(found, parts)
    given = int(counts.sum())
    rest = f", {len(found.y_train) - given:,} left out" if given < len(found.y_train) else ""
    title = f"{found.name}: {given:,} training samples of {len(found.classes)} classes over {devices:,} devices{rest}"
    console.print(title, style="bold", markup=False, highlight=False)
    for text in (*(f"odd: {text}" for text in found.odd), *(f"left out: {text}" for text in found.skipped)):
        console.print(text, markup=False, highlight=False)
    draw(found, counts, console)
    if table is not None:
        try:
            write_csv(found, counts, table)
        except OSError as error:
            raise ConfigError(f"--csv {table}: {error.strerror or error}") from error
        console.print(f"All devices are in {table}", markup=False, highlight=False, soft_wrap=True)
