"""`sojourn job continue | export | report | remove`: what becomes of a job, and what it leaves."""

from __future__ import annotations

from math import isnan
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any, Literal

import typer

from coordinator.console.asking import asking
from sojourn.errors import ConfigError, MachineError

if TYPE_CHECKING:
    from coordinator.console.operator import Operator
    from sojourn.protocol.wire import JobView

Job = Annotated[str, typer.Argument(metavar="JOB", help="The job's name.")]
Round = Annotated[int | None, typer.Option("--round", min=1, help="The model of this round.", show_default="newest")]
Best = Annotated[bool, typer.Option("--best", help="The best model.")]


@asking
def continue_(
    operator: Any,
    job: Job,
    rounds: Annotated[
        int | None, typer.Option(min=1, help="How many rounds in all, those done included.", show_default="as before")
    ] = None,
    target: Annotated[
        str | None,
        typer.Option(
            metavar="FIGURE", help="End at this accuracy, or at 'rmse <= 0.5'; 0: at none.", show_default="as before"
        ),
    ] = None,
    devices: Annotated[
        int | None,
        typer.Option(min=1, help="How many devices it needs before the first round.", show_default="as before"),
    ] = None,
    watch: Annotated[bool, typer.Option("--watch", help="Watch it until it ends.")] = False,
) -> None:
    """Continue a job that has ended, give one more rounds, or let one that waits begin with fewer devices."""
    from coordinator.jobs.goal import target_of

    view: JobView = operator.go_on(job, rounds, _target(target_of(target)), devices)
    doing = "is queued" if view.status == "queued" else "goes on"
    typer.echo(f"job {view.job} {doing}: {view.round} rounds are done, {view.rounds} in all")
    if watch:
        from coordinator.console.job_watch import watch_job

        watch_job(operator, view.job)
    else:
        typer.echo(f"To watch it: {operator.command(f'job watch {view.job}')}")


@asking
def export(
    operator: Any,
    job: Job,
    output: Annotated[
        Path | None,
        typer.Option("--output", "-o", metavar="FILE", help="The ONNX file to write.", show_default="JOB-ROUND.onnx"),
    ] = None,
    number: Round = None,
    best: Best = False,
) -> None:
    """Write a model of a job to an ONNX file: the newest, the best, or that of a round that is kept."""
    from sojourn.figures import percent

    made = operator.export(job, which_round(number, best=best))
    warn_if_failed(operator, job)
    path = output or Path(f"{job}.onnx" if made.round is None else f"{job}-{made.round}.onnx")
    try:
        path.write_bytes(made.model)
    except OSError as error:
        raise MachineError(f"{path} cannot be written: {error.strerror}") from error
    of = "" if made.round is None else f"round {made.round}, "
    good = "" if isnan(made.accuracy) else f", accuracy {percent(made.accuracy)}"
    typer.echo(f"{path}: {of}{len(made.model):,} bytes{good}")


@asking
def report(
    operator: Any,
    job: Job,
    output: Annotated[
        Path | None,
        typer.Option("--output", "-o", metavar="FOLDER", help="Where it goes.", show_default="reports/JOB"),
    ] = None,
) -> None:
    """Write what a job did into a folder: tables, pictures, its file, its model, and a page that shows them."""
    from coordinator.console.job_report import write_report

    for line in write_report(operator, job, output or Path("reports") / job):
        typer.echo(line)


@asking
def remove(
    operator: Any, job: Job, yes: Annotated[bool, typer.Option("--yes", "-y", help="Do not ask.")] = False
) -> None:
    """Forget a job that is over, and delete its models."""
    from coordinator.console.job_tables import figure_words

    view: JobView = operator.job(job)
    what = f"job {view.job} ({view.status}, {view.round} rounds, {figure_words(view)})"
    if not yes and not typer.confirm(f"Remove {what} with all its models? There is no way back"):
        typer.echo(f"{view.job} stays")
        raise typer.Exit(1)
    gone = operator.remove(job)
    freed = f"{gone.blobs} files ({gone.freed:,} bytes) are deleted within a minute"
    shared = "nothing is deleted: other jobs have all its files, too"
    typer.echo(f"{what} is removed: {freed if gone.blobs else shared}")


def warn_if_failed(operator: Operator, job: str) -> None:
    """Print a warning where the job whose model is taken has failed."""
    from coordinator.console.following import failure_of

    if failed := failure_of(operator.job(job)):
        typer.echo(f"Warning: {failed}", err=True)


def _target(given: float | str | None) -> float | str | None:
    """A target as it travels: a number is an accuracy, of another figure people say which."""
    if isinstance(given, float) and not 0 <= given <= 1:
        raise ConfigError(f"--target {given:g}: an accuracy is from 0 to 1; else write 'rmse <= {given:g}'")
    return given


def which_round(number: int | None, *, best: bool) -> int | Literal["best"] | None:
    """The round that two options say: its number, the best, or the newest (None)."""
    if number is not None and best:
        raise ConfigError("--round and --best: give one of the two")
    return "best" if best else number
