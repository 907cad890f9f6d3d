"""`sojourn data`: data sets, and how they are split over devices."""

from __future__ import annotations

from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from sojourn import options
from sojourn.errors import ConfigError

if TYPE_CHECKING:
    from coordinator.jobs.task_settings import TaskSettings

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
    task: Annotated[
        str | None,
        typer.Option(
            metavar="KIND",
            help="What is learnt of a file: multilabel, regression, reconstruction, forecast, tokens, classification.",
            show_default="what a set by name is for, else classification",
        ),
    ] = None,
    targets: Annotated[
        list[str] | None, typer.Option("--target", metavar="NAME", help="A quantity of a file. Repeatable.")
    ] = None,
    steps: Annotated[
        int | None, typer.Option(min=1, help="Of a forecast: how much of a series is seen. Of tokens: how long.")
    ] = None,
    horizon: Annotated[int, typer.Option(min=1, help="Of a forecast: how many steps are to come.")] = 1,
    ignore: Annotated[
        list[str] | None, typer.Option(metavar="COLUMN", help="A column of a CSV file that is not read. Repeatable.")
    ] = None,
    time: Annotated[str | None, typer.Option(metavar="COLUMN", help="When each row of a series was.")] = None,
    series: Annotated[str | None, typer.Option(metavar="COLUMN", help="Which series each row is of.")] = None,
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
    from coordinator.jobs.settings import JobData
    from fleet_sim.console.dealt_data import dealt_data
    from fleet_sim.console.split_view import draw, write_csv
    from fleet_sim.datasets import load
    from fleet_sim.datasets.partition import Split, split
    from sojourn.data.source import read_as
    from sojourn.protocol.spec import InputSpec

    values: dict[str, Any] = {"by": by, "alpha": alpha, "overlap": overlap, "shards": shards, "samples": samples}
    settings = validated(values, Split, "the command line")
    how = partial(read_as, label=label, header=header, scale=scale, ignore=ignore, time=time, series=series)
    # Counts do not depend on the size of images: any will do.
    learnt = _learnt(data, task, targets, steps, horizon)
    given = JobData(input=(steps,), dtype="int64") if task == "tokens" and steps else None
    found, console = load(data, folder, how=how, wanted=InputSpec((3, 8, 8)), task=learnt, data=given), Console()
    parts = split(settings, found, devices, seed)
    dealt = dealt_data(found, parts)
    dealt_out = int(dealt.samples.sum())
    rest = f", {len(found.y_train) - dealt_out:,} left out" if dealt_out < len(found.y_train) else ""
    of = f" of {len(dealt.names)} {dealt.word}" if dealt.word in ("classes", "labels") else f" for {found.kind}"
    title = f"{found.name}: {dealt_out:,} training samples{of} over {devices:,} devices{rest}"
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


def _learnt(
    data: str, kind: str | None, targets: list[str] | None, steps: int | None, horizon: int
) -> TaskSettings | None:
    """What the command line says is learnt; None where it says nothing."""
    from coordinator.jobs.settings import JobData
    from coordinator.jobs.task_settings import TaskSettings, objections_to_task
    from fleet_sim.datasets.loading import made_set
    from sojourn.settings import validated

    made = made_set(data)
    kind = kind or (made.kind if made else None)
    if kind is None:
        if targets or steps:
            raise ConfigError("--target and --steps say how a file is read for a task: name its kind with --task")
        return None
    table: dict[str, Any] = {**(made.task if made and made.kind == kind else {}), "kind": kind}
    table |= {"targets": tuple(targets)} if targets else {}
    if kind == "forecast" and steps:
        table |= {"steps": steps, "horizon": horizon}
    found = validated(table, TaskSettings, "the command line")
    if wrong := [*objections_to_task(found, JobData())]:
        raise ConfigError(f"the command line: {'; '.join(wrong)}")
    return found
