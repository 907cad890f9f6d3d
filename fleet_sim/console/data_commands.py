"""`sojourn data`: data sets, and how they are split over devices."""

from __future__ import annotations

from functools import partial
from pathlib import Path
from typing import Annotated, Any

import typer

from sojourn import options
from sojourn.errors import ConfigError

app = typer.Typer(
    add_completion=False, no_args_is_help=True, help="Data sets by name, and how they are split over devices."
)


@app.callback()
def data_() -> None:
    """Data sets by name, and how they are split over devices."""


@app.command("list")
def list_() -> None:
    """List the data sets that are known by name, and what each is for."""
    from rich.console import Console

    from sojourn import extras

    extras.need("cloud", "a list of data sets")
    from fleet_sim.console.tables import plain_table
    from fleet_sim.datasets import NAMES
    from fleet_sim.datasets.made.registry import MADE

    table = plain_table("", "name", "kind", "what")
    for column in table.columns[1:]:
        column.justify, column.no_wrap = "left", False
    for name in NAMES:
        made = MADE.get(name)
        what = made.about if made else "built in, scikit-learn's" if name == "digits" else "read where it is on disk"
        table.add_row(name, made.kind if made else "classification", what)
    Console().print(table, highlight=False)


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
        str, typer.Option("--split", metavar="WAY", help="iid, dirichlet, shards, quantity, range, user or domain.")
    ] = "dirichlet",
    alpha: Annotated[
        float, typer.Option(help="For dirichlet and quantity: small is uneven, 0 is one class per device.")
    ] = 0.1,
    overlap: Annotated[
        float, typer.Option(help="For range: how far ranges reach into each other, in widths of a range.")
    ] = 0.0,
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
    """Draw a split: how many samples of each class or range of targets every device gets."""
    from rich.console import Console

    from sojourn import extras
    from sojourn.settings import validated

    extras.need("cloud", "a split")
    from fleet_sim.console.dealt_data import dealt_data
    from fleet_sim.console.split_view import draw, write_csv
    from fleet_sim.datasets import load
    from fleet_sim.datasets.partition import Split, split
    from sojourn.data.source import read_as
    from sojourn.protocol.spec import InputSpec

    values: dict[str, Any] = {"by": by, "alpha": alpha, "overlap": overlap, "shards": shards, "samples": samples}
    settings = validated(values, Split, "the command line")
    how = partial(read_as, label=label, header=header, scale=scale)
    # Counts do not depend on the size of images: any will do.
    found, console = load(data, folder, how=how, wanted=InputSpec((3, 8, 8))), Console()
    parts = split(settings, found, devices, seed)
    dealt = dealt_data(found, parts)
    given = int(dealt.samples.sum())
    rest = f", {len(found.y_train) - given:,} left out" if given < len(found.y_train) else ""
    of = f" of {len(dealt.names)} {dealt.word}" if dealt.word in ("classes", "labels") else f" for {found.kind}"
    title = f"{found.name}: {given:,} training samples{of} over {devices:,} devices{rest}"
    console.print(title, style="bold", markup=False, highlight=False)
    for text in (*(f"odd: {text}" for text in found.odd), *(f"left out: {text}" for text in found.skipped)):
        console.print(text, markup=False, highlight=False)
    draw(dealt, console)
    if table is not None:
        try:
            write_csv(dealt, table)
        except OSError as error:
            raise ConfigError(f"--csv {table}: {error.strerror or error}") from error
        console.print(f"All devices are in {table}", markup=False, highlight=False, soft_wrap=True)
