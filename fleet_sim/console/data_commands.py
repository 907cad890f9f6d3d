"""The command `sojourn data`: data sets, and how they are split over devices."""

from __future__ import annotations

from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from sojourn import options
from sojourn.errors import ConfigError

if TYPE_CHECKING:
    from coordinator.jobs.settings_tables import TaskSettings

app = typer.Typer(
    add_completion=False, no_args_is_help=True, help="List data sets and show how they are split over devices."
)


@app.callback()
def data_() -> None:
    """List data sets and show how they are split over devices."""


@app.command("list")
def list_() -> None:
    """List the data sets that are available by name, with their tasks."""
    from rich.console import Console

    from sojourn import errors

    errors.require_extra("cloud", "the list of data sets")
    from fleet_sim.datasets import NAMES
    from fleet_sim.datasets.built_in_sets import MADE
    from sojourn.tables import number_table

    table = number_table("", "name", "kind", "what")
    for column in table.columns[1:]:
        column.justify, column.no_wrap = "left", False
    for name in NAMES:
        made = MADE.get(name)
        what = made.about if made else "built in (scikit-learn)" if name == "digits" else "read from local files"
        table.add_row(name, made.kind if made else "classification", what)
    Console().print(table, highlight=False)


@app.command()
def show(
    data: Annotated[
        str,
        typer.Option(
            metavar="NAME|PATH",
            help="Data set: a name, an NPZ or CSV file, or a folder of images. An unknown name prints the list of "
            "names.",
        ),
    ] = "digits",
    devices: Annotated[int, typer.Option(help="Number of devices.", min=1, max=1_000_000)] = 10,
    by: Annotated[
        str,
        typer.Option("--split", metavar="WAY", help="Split: iid, dirichlet, shards, quantity, range, user or domain."),
    ] = "dirichlet",
    alpha: Annotated[
        float,
        typer.Option(
            help="Alpha of the splits dirichlet and quantity: small is uneven; for dirichlet, 0 "
            "gives one class per device."
        ),
    ] = 0.1,
    overlap: Annotated[float, typer.Option(help="Overlap of the split range, in widths of a range.")] = 0.0,
    shards: Annotated[int, typer.Option(help="Shards per device of the split shards.")] = 2,
    samples: Annotated[int, typer.Option(help="Limit every device to this many samples. 0 sets no limit.")] = 0,
    seed: Annotated[int, typer.Option(help="Seed of the split.", min=0)] = 0,
    task: Annotated[
        str | None,
        typer.Option(
            metavar="KIND",
            help="Task of a file: multilabel, regression, reconstruction, forecast, tokens or classification.",
            show_default="the named set's task, otherwise classification",
        ),
    ] = None,
    targets: Annotated[
        list[str] | None, typer.Option("--target", metavar="NAME", help="Target column of a file. May be repeated.")
    ] = None,
    steps: Annotated[
        int | None,
        typer.Option(min=1, help="Steps of a series that the model sees (forecast), or length of a sequence (tokens)."),
    ] = None,
    horizon: Annotated[int, typer.Option(min=1, help="Steps to predict (forecast).")] = 1,
    ignore: Annotated[
        list[str] | None, typer.Option(metavar="COLUMN", help="Column of a CSV file to ignore. May be repeated.")
    ] = None,
    time: Annotated[
        str | None, typer.Option(metavar="COLUMN", help="Column with the time of each row of a series.")
    ] = None,
    series: Annotated[
        str | None, typer.Option(metavar="COLUMN", help="Column with the series that each row belongs to.")
    ] = None,
    label: options.Label = None,
    header: options.Header = None,
    scale: options.Scale = None,
    folder: Annotated[
        Path | None,
        typer.Option("--data-folder", metavar="FOLDER", help="Folder of data sets. Overrides SOJOURN_DATA."),
    ] = None,
    table: Annotated[
        Path | None, typer.Option("--csv", metavar="FILE", help="Write the split of all devices to this CSV file.")
    ] = None,
) -> None:
    """Show a split: the number of samples of each class or target range on every device."""
    from rich.console import Console

    from sojourn import errors
    from sojourn.settings import validated

    errors.require_extra("cloud", "a split")
    from coordinator.jobs.settings import JobData
    from fleet_sim.console.split_view import dealt_data, draw, write_csv
    from fleet_sim.datasets import load
    from fleet_sim.datasets.partition import Split, split
    from sojourn.data.source import read_as
    from sojourn.protocol.spec import InputSpec

    values: dict[str, Any] = {"by": by, "alpha": alpha, "overlap": overlap, "shards": shards, "samples": samples}
    settings = validated(values, Split, "the command line")
    how = partial(read_as, label=label, header=header, scale=scale, ignore=ignore, time=time, series=series)
    # Counts do not depend on the size of images, so any size will do.
    task_settings = _task_settings(data, task, targets, steps, horizon)
    given = JobData(input=(steps,), dtype="int64") if task == "tokens" and steps else None
    found, console = load(data, folder, how=how, wanted=InputSpec((3, 8, 8)), task=task_settings, data=given), Console()
    parts = split(settings, found, devices, seed)
    dealt = dealt_data(found, parts)
    dealt_out = int(dealt.samples.sum())
    rest = f", {len(found.y_train) - dealt_out:,} left out" if dealt_out < len(found.y_train) else ""
    of = f" of {len(dealt.names)} {dealt.word}" if dealt.word in ("classes", "labels") else f" for {found.kind}"
    title = f"{found.name}: {dealt_out:,} training samples{of} over {devices:,} devices{rest}"
    console.print(title, style="bold", markup=False, highlight=False)
    for text in (*(f"warning: {text}" for text in found.warnings), *(f"skipped: {text}" for text in found.skipped)):
        console.print(text, markup=False, highlight=False)
    draw(dealt, console)
    if table is not None:
        try:
            write_csv(dealt, table)
        except OSError as error:
            raise ConfigError(f"--csv {table}: {error.strerror or error}") from error
        console.print(f"The split of all devices is in {table}", markup=False, highlight=False, soft_wrap=True)


def _task_settings(
    data: str, kind: str | None, targets: list[str] | None, steps: int | None, horizon: int
) -> TaskSettings | None:
    """Return the task settings of the command line; None if there are none."""
    from coordinator.jobs.settings import JobData
    from coordinator.jobs.settings_tables import TaskSettings, objections_to_task
    from fleet_sim.datasets.loading import made_set
    from sojourn.settings import validated

    made = made_set(data)
    kind = kind or (made.kind if made else None)
    if kind is None:
        if targets or steps:
            raise ConfigError("--target and --steps apply to a file's task: set it with --task")
        return None
    table: dict[str, Any] = {**(made.task if made and made.kind == kind else {}), "kind": kind}
    table |= {"targets": tuple(targets)} if targets else {}
    if kind == "forecast" and steps:
        table |= {"steps": steps, "horizon": horizon}
    found = validated(table, TaskSettings, "the command line")
    if wrong := [*objections_to_task(found, JobData())]:
        raise ConfigError(f"the command line: {'; '.join(wrong)}")
    return found
