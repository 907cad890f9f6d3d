"""`sojourn job`: what an operator asks of a coordinator."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from coordinator.console.as_json import AsJson, print_json
from coordinator.console.asking import asking
from coordinator.console.job_life_commands import Job, continue_, export, remove, report
from coordinator.console.mandate_commands import (
    SPAN,
    For,
    Key,
    Purpose,
    Site,
    Trust,
    Yes,
    sign,
    sign_job,
    withdraw,
)
from coordinator.console.visit_commands import visits
from sojourn.errors import ConfigError

if TYPE_CHECKING:
    from sojourn.protocol.wire import JobView

app = typer.Typer(add_completion=False, no_args_is_help=True, help="Submit jobs to a coordinator and watch them.")
LONGEST_JOB = 50_000


@app.command()
@asking
def submit(
    operator: Any,
    file: Annotated[Path, typer.Argument(metavar="JOB.TOML", help="The job file.")],
    name: Annotated[str | None, typer.Option(help="Another name for the job.", show_default="as in the file")] = None,
    start_from: Annotated[
        str | None,
        typer.Option(
            metavar="NAME[@ROUND]", help="Start from the model of an earlier job, of its newest round, @12 or @best."
        ),
    ] = None,
    key: Key = None,
    span: For = SPAN,
    site: Site = None,
    purpose: Purpose = "",
    trust_coordinator: Trust = False,
    yes: Yes = False,
    watch: Annotated[bool, typer.Option("--watch", help="Watch it until it ends.")] = False,
) -> None:
    """Give a job to the coordinator. Files that it names must be on the coordinator's machine.

    With --key what devices may do for it is signed as soon as it is compiled; the next options are about that.
    """
    text = job_text(file, name, start_from)
    view = operator.submit(text)
    typer.echo(f"job {view.job} is {view.status}")
    if key is not None:
        sign_job(operator, view.job, text, key, span, site or (), purpose, None, trusting=trust_coordinator, yes=yes)
    if watch:
        from coordinator.console.job_watch import watch_job

        watch_job(operator, view.job)
    else:
        typer.echo(f"To watch it: {operator.command(f'job watch {view.job}')}")


@app.command()
def kit(
    file: Annotated[Path, typer.Argument(metavar="JOB.TOML", help="The job file.")],
    output: Annotated[
        Path | None,
        typer.Option("--output", "-o", metavar="FILE", help="The file to write.", show_default="JOB.kit"),
    ] = None,
) -> None:
    """Compile a job on this machine and write its kit, for `sojourn agent preflight --kit` on a device."""
    from coordinator.jobs.settings import read_job
    from coordinator.rounds.preparing import PrepareJob, prepare
    from sojourn.extras import need
    from sojourn.store.memory_blobs import MemoryBlobs

    need("cloud", "compiling a job")
    text = job_text(file)
    job, blobs = read_job(text, str(file)), MemoryBlobs()
    made = prepare(PrepareJob(job.name, text), blobs, say=lambda step: typer.echo(step, err=True))
    path = output or Path(f"{job.name}.kit")
    try:
        path.write_bytes(blobs.read(made.kit.digest))
    except OSError as error:
        raise ConfigError(f"{path} cannot be written: {error.strerror or error}") from error
    if made.size:
        batch = job.parts().training.batch
        memory = made.size.memory(batch, made.kit.size) / (1 << 20)
        typer.echo(
            f"{path}: {made.size.parameters:,} parameters, {made.kit.size:,} bytes; training with batch {batch} takes "
            f"about {memory:,.0f} MB on a device, and its data"
        )


@app.command("list")
@asking
def list_(operator: Any, as_json: AsJson = False) -> None:
    """List the jobs."""
    from rich.console import Console

    from coordinator.console.job_tables import job_table

    views, console = operator.jobs(), Console()
    if as_json:
        print_json(views)
    else:
        console.print(job_table(views, console.width))


@app.command()
@asking
def status(operator: Any, job: Job, as_json: AsJson = False) -> None:
    """Say how a job is doing, with its rounds so far and all that went wrong."""
    import msgspec
    from rich.console import Console

    from coordinator.console.following import progress_of
    from coordinator.console.job_tables import models_line, times_line
    from coordinator.console.watching import result_table, status_line
    from coordinator.console.what_failed import failure_lines

    now, console = progress_of(operator, job), Console()
    if as_json:
        print_json(msgspec.structs.replace(now.view, history=now.history))
        return
    console.print(status_line(now.view), markup=False, highlight=False)
    if times := times_line(now.view):
        console.print(times, markup=False, highlight=False)
    if now.history:
        console.print(result_table(now))
    for line in failure_lines(now):
        console.print(line, markup=False, highlight=False)
    if kept := models_line(now):
        console.print(kept, markup=False, highlight=False)


app.command()(asking(visits))


@app.command()
@asking
def watch(operator: Any, job: Job) -> None:
    """Watch a job until it ends. Ctrl-C ends the watching, not the job."""
    from coordinator.console.job_watch import watch_job

    watch_job(operator, job)


@app.command()
@asking
def stop(operator: Any, job: Job) -> None:
    """End a job; what was learnt so far is kept."""
    view: JobView = operator.stop(job)
    typer.echo(f"job {view.job} is {view.status}")


for command in (export, report, remove, sign, withdraw):
    app.command()(command)
app.command("continue")(continue_)


def job_text(file: Path, name: str | None = None, start_from: str | None = None) -> str:
    """The text of a job file as it is sent: checked, and with names of files that do not depend on the folder.

    It may get another name, and an earlier job to start from.
    """
    from coordinator.jobs.settings import FILE_KEYS, read_job
    from sojourn.settings import read_file
    from sojourn.toml import dumps

    table = read_file(file, dict[str, Any])
    if name is not None:
        table["name"] = name
    if start_from is not None:
        model = table.get("model", {})
        own = {"name": model} if isinstance(model, str) else model
        table["model"] = {**own, "start": f"job:{start_from.removeprefix('job:')}"}
    job = read_job(dumps(table), str(file), file.resolve().parent)
    for part, keys in FILE_KEYS.items():
        for key in keys:
            if (whole := getattr(getattr(job, part), key)) is not None:
                table[part][key] = whole
    text = dumps(table)
    if len(text) > LONGEST_JOB:
        raise ConfigError(f"{file}: a job file may have {LONGEST_JOB} characters, this one has {len(text)}")
    return text
