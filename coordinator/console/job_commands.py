"""`sojourn job`: what an operator asks of a coordinator."""

from __future__ import annotations

import inspect
import logging
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from coordinator.console.as_json import AsJson, print_json
from coordinator.console.visit_commands import visits
from sojourn.errors import ConfigError, JobError, MachineError
from sojourn.settings import broker_flags

if TYPE_CHECKING:
    from collections.abc import Callable

    from coordinator.console.following import JobProgress
    from coordinator.console.operator import Operator
    from sojourn.protocol.wire import JobView

app = typer.Typer(add_completion=False, no_args_is_help=True, help="Submit jobs to a coordinator and watch them.")
LONGEST_JOB = 50_000
Job = Annotated[str, typer.Argument(metavar="JOB", help="The job's name.")]


def _connection(
    broker: Annotated[
        str, typer.Option(metavar="HOST[:PORT]", help="The coordinator's broker.", envvar="SOJOURN_BROKER")
    ] = "localhost:1883",
    fleet: Annotated[str, typer.Option(help="The fleet's name.", envvar="SOJOURN_FLEET")] = "sojourn",
    cloud: Annotated[str, typer.Option(help="The coordinator's name.", envvar="SOJOURN_CLOUD")] = "cloud",
    operator: Annotated[str, typer.Option(help="Your name there.", envvar="SOJOURN_OPERATOR")] = "operator",
    username: Annotated[str | None, typer.Option(help="The broker's name for you.", show_default="--operator")] = None,
    password_file: Annotated[
        str | None, typer.Option(metavar="FILE", help="Holds the broker's password.", envvar="SOJOURN_PASSWORD_FILE")
    ] = None,
    ca_file: Annotated[
        str | None, typer.Option(metavar="FILE", help="The broker's CA: encrypt.", envvar="SOJOURN_CA_FILE")
    ] = None,
) -> Operator:
    from coordinator.console.operator import Operator
    from sojourn.links.settings import BrokerSettings
    from sojourn.settings import validated

    # What goes wrong with the broker is in the error that ends the command.
    logging.getLogger("sojourn").addHandler(logging.NullHandler())
    flags = broker_flags(broker, username, password_file) | {"tls": ca_file and {"ca_file": ca_file}}
    settings = validated({key: value for key, value in flags.items() if value is not None}, BrokerSettings, "--broker")
    return Operator(settings, fleet=fleet, cloud=cloud, name=operator)


def asking(command: Callable[..., None]) -> Callable[..., None]:
    """A command with the options that say which coordinator is asked; its first parameter is the connection."""
    own = list(inspect.signature(command, eval_str=True).parameters.values())[1:]
    shared = [*inspect.signature(_connection, eval_str=True, locals={"Operator": Any}).parameters.values()]

    def run(**given: Any) -> None:
        with _connection(**{each.name: given.pop(each.name) for each in shared}) as operator:
            command(operator, **given)

    run.__name__, run.__doc__ = command.__name__, command.__doc__
    run.__signature__ = inspect.Signature([*own, *shared])  # type: ignore[attr-defined]
    return run


@app.command()
@asking
def submit(
    operator: Any,
    file: Annotated[Path, typer.Argument(metavar="JOB.TOML", help="The job file.")],
    name: Annotated[str | None, typer.Option(help="Another name for the job.", show_default="as in the file")] = None,
    watch: Annotated[bool, typer.Option("--watch", help="Watch it until it ends.")] = False,
) -> None:
    """Give a job to the coordinator. Files that it names must be on the coordinator's machine."""
    view = operator.submit(job_text(file, name))
    typer.echo(f"job {view.job} is {view.status}")
    if watch:
        _watch(operator, view.job)


@app.command("list")
@asking
def list_(operator: Any, as_json: AsJson = False) -> None:
    """List the jobs."""
    from rich.console import Console

    from coordinator.console.watching import job_table

    views = operator.jobs()
    if as_json:
        print_json(views)
    else:
        Console().print(job_table(views))


@app.command()
@asking
def status(operator: Any, job: Job, as_json: AsJson = False) -> None:
    """Say how a job is doing, with its rounds so far and all that went wrong."""
    import msgspec
    from rich.console import Console

    from coordinator.console.following import progress_of
    from coordinator.console.watching import result_table, status_line
    from coordinator.console.what_failed import failure_lines

    now = progress_of(operator, job)
    if as_json:
        print_json(msgspec.structs.replace(now.view, history=now.history))
        return
    console = Console()
    console.print(status_line(now.view), markup=False, highlight=False)
    if now.history:
        console.print(result_table(now))
    for line in failure_lines(now):
        console.print(line, markup=False, highlight=False)


app.command()(asking(visits))


@app.command()
@asking
def watch(operator: Any, job: Job) -> None:
    """Watch a job until it ends. Ctrl-C ends the watching, not the job."""
    _watch(operator, job)


@app.command()
@asking
def stop(operator: Any, job: Job) -> None:
    """End a job; what was learnt so far is kept."""
    view: JobView = operator.stop(job)
    typer.echo(f"job {view.job} is {view.status}")


@app.command()
@asking
def export(
    operator: Any,
    job: Job,
    output: Annotated[Path, typer.Option("--output", "-o", metavar="FILE", help="The ONNX file to write.")],
) -> None:
    """Write a job's newest model to an ONNX file."""
    from coordinator.console.watching import percent

    model, accuracy = operator.export(job)
    try:
        output.write_bytes(model)
    except OSError as error:
        raise MachineError(f"{output} cannot be written: {error.strerror}") from error
    typer.echo(f"{output}: {len(model):,} bytes, accuracy {percent(accuracy)}")


def job_text(file: Path, name: str | None = None) -> str:
    """The text of a job file as it is sent: checked, and with names of data files that do not depend on the folder."""
    from coordinator.jobs.settings import read_job
    from sojourn.settings import read_file
    from sojourn.toml import dumps

    table = read_file(file, dict[str, Any])
    if name is not None:
        table["name"] = name
    job = read_job(dumps(table), str(file), file.resolve().parent)
    for key in ("test", "exemplars"):
        if getattr(job.data, key) is not None:
            table["data"][key] = getattr(job.data, key)
    text = dumps(table)
    if len(text) > LONGEST_JOB:
        raise ConfigError(f"{file}: a job file may have {LONGEST_JOB} characters, this one has {len(text)}")
    return text


def _watch(operator: Operator, job: str) -> None:
    from rich.console import Console

    from coordinator.console.following import follow
    from coordinator.console.watching import result_table, show, status_line
    from coordinator.console.what_failed import failure_lines

    console = Console()
    try:
        last: JobProgress = show(follow(operator, job), console)
    except KeyboardInterrupt:
        typer.echo(f"The job goes on. To see it again: sojourn job watch {job}")
        raise typer.Exit(0) from None
    console.print(result_table(last) if last.history else "", end="\n" if last.history else "")
    for line in failure_lines(last):
        console.print(line, markup=False, highlight=False)
    if last.view.status == "refused":
        raise JobError(f"job {job} was refused: {last.view.detail}")
    console.print(status_line(last.view), markup=False, highlight=False)
