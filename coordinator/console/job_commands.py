"""The commands of `sojourn job`."""

from __future__ import annotations

import io
import sys
from collections.abc import Sequence
from math import isnan
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any, Literal

import typer

from coordinator.console.options import AsJson, print_json, with_operator
from sojourn.errors import ConfigError, MachineError

if TYPE_CHECKING:
    from coordinator.console.operator import Operator
    from sojourn.protocol.wire import JobView

app = typer.Typer(add_completion=False, no_args_is_help=True, help="Submit jobs to a coordinator and watch them.")
LONGEST_JOB = 50_000
"""Maximum characters of a job file."""
SPAN = "30d"
"""Default validity of a mandate."""

Job = Annotated[str, typer.Argument(metavar="JOB", help="The job's name.")]
JobFile = Annotated[Path, typer.Argument(metavar="JOB.TOML", help="The job file.")]
Round = Annotated[int | None, typer.Option("--round", min=1, help="Use this round's model.", show_default="newest")]
Best = Annotated[bool, typer.Option("--best", help="Use the best model.")]
Watch = Annotated[bool, typer.Option("--watch", help="Watch the job until it ends.")]
Key = Annotated[
    Path | None,
    typer.Option(metavar="FILE", help="Sign with this private key, trusted by devices.", show_default="operator key"),
]
For = Annotated[str, typer.Option("--for", metavar="SPAN", help="How long the mandate is valid: 12h, 30d, 8w.")]
Site = Annotated[list[str] | None, typer.Option(help="Allow only this site; may be repeated.", show_default="all")]
Purpose = Annotated[str, typer.Option(help="Purpose of the job, shown to the owners of devices.")]
Visits = Annotated[
    int | None, typer.Option(min=1, help="Maximum results of one device.", show_default="3 times the rounds")
]
Trust = Annotated[
    bool, typer.Option("--trust-coordinator", help="Sign the coordinator's kit without compiling the job again.")
]
Yes = Annotated[bool, typer.Option("--yes", "-y", help="Do not ask for confirmation.")]


@app.command()
@with_operator
def submit(
    operator: Any,
    file: JobFile,
    name: Annotated[str | None, typer.Option(help="Another name for the job.", show_default="as in the file")] = None,
    start_from: Annotated[
        str | None,
        typer.Option(metavar="NAME[@ROUND]", help="Start from an earlier job's newest model, or that of @12 or @best."),
    ] = None,
    key: Key = None,
    span: For = SPAN,
    site: Site = None,
    purpose: Purpose = "",
    trust_coordinator: Trust = False,
    yes: Yes = False,
    watch: Watch = False,
) -> None:
    """Submit a job to the coordinator. Files that it names must be on the coordinator's machine.

    With --key, the job is signed as soon as it is compiled; the options after --key set the terms of that mandate.
    """
    text = job_text(file, name, start_from)
    view = operator.submit(text)
    typer.echo(f"job {view.job} is {view.status}")
    if key is not None:
        sign_job(operator, view.job, text, key, span, site or (), purpose, None, trusting=trust_coordinator, yes=yes)
    _watch_or_hint(operator, view.job, watch=watch)


@app.command()
def kit(
    file: JobFile,
    output: Annotated[
        Path | None,
        typer.Option("--output", "-o", metavar="FILE", help="The file to write.", show_default="JOB.kit"),
    ] = None,
) -> None:
    """Compile a job on this machine and write its kit, for `sojourn agent preflight --kit` on a device."""
    from coordinator.jobs.settings import read_job
    from coordinator.rounds.preparing import PrepareJob, prepare
    from sojourn.errors import require_extra
    from sojourn.store.memory_blobs import MemoryBlobs

    require_extra("cloud", "compiling a job")
    text = job_text(file)
    job, blobs = read_job(text, str(file)), MemoryBlobs()
    made = prepare(PrepareJob(job.name, text), blobs, notify=lambda step: typer.echo(step, err=True))
    path = output or Path(f"{job.name}.kit")
    _write(path, blobs.read(made.kit.digest))
    if made.size:
        batch = job.parts().training.batch
        memory = made.size.memory(batch, made.kit.size) / (1 << 20)
        typer.echo(
            f"{path}: {made.size.parameters:,} parameters, {made.kit.size:,} bytes; training with batch {batch} takes "
            f"about {memory:,.0f} MB on a device, plus its data"
        )


@app.command("list")
@with_operator
def list_(operator: Any, as_json: AsJson = False) -> None:
    """List all jobs."""
    from rich.console import Console

    from coordinator.console.job_status import job_table

    views, console = operator.jobs(), Console()
    if as_json:
        print_json(views)
    else:
        console.print(job_table(views, console.width))


@app.command()
@with_operator
def status(operator: Any, job: Job, as_json: AsJson = False) -> None:
    """Show the status of a job, with its rounds so far and all failures."""
    import msgspec

    from coordinator.console.job_progress import progress_of
    from coordinator.console.job_status import print_job_status

    now = progress_of(operator, job)
    if as_json:
        print_json(msgspec.structs.replace(now.view, history=now.history))
    else:
        print_job_status(now)


@app.command()
@with_operator
def visits(
    operator: Any,
    job: Job,
    device: Annotated[str | None, typer.Option("--device", metavar="NAME", help="Show only this device.")] = None,
    failed: Annotated[bool, typer.Option("--failed", help="Show only failed visits.")] = False,
    csv: Annotated[
        str | None, typer.Option("--csv", metavar="FILE", help="Write a CSV file; - for standard output.")
    ] = None,
    as_json: AsJson = False,
) -> None:
    """Show the outcome of every visit of a job with reasons, for the last 90 days at most."""
    from rich.console import Console

    from coordinator.console.fleet_tables import reason_lines, visit_table, write_csv

    if csv is not None and as_json:
        raise ConfigError("give --csv or --json, not both")
    found = [it for it in operator.visits(device=device, job=job) if not failed or it.status != "done"]
    if as_json:
        print_json(found)
    elif csv == "-":
        write_csv(found, sys.stdout)
    elif csv is not None:
        table = io.StringIO(newline="")
        write_csv(found, table)
        _write(Path(csv), table.getvalue().encode())
        typer.echo(f"{csv}: {len(found)} visits")
    elif found:
        console = Console()
        console.print(visit_table(found), highlight=False)
        for line in reason_lines(found):
            console.print(f"\n{line}", markup=False, highlight=False)
    else:
        typer.echo(f"no visit of job {job} has ended yet: see sojourn job status {job}")


@app.command()
@with_operator
def watch(operator: Any, job: Job) -> None:
    """Watch a job until it ends. Ctrl-C stops watching; the job continues."""
    from coordinator.console.job_status import watch_job

    watch_job(operator, job)


@app.command()
@with_operator
def stop(operator: Any, job: Job) -> None:
    """Stop a job; its model is kept."""
    view: JobView = operator.stop(job)
    typer.echo(f"job {view.job} is {view.status}")


@app.command()
@with_operator
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
    """Export a model of a job to an ONNX file: the newest, the best, or that of a stored round."""
    from sojourn.text import percent

    made = operator.export(job, which_round(number, best=best))
    warn_if_failed(operator, job)
    path = output or Path(f"{job}-{made.round}.onnx")
    _write(path, made.model)
    good = "" if isnan(made.accuracy) else f", accuracy {percent(made.accuracy)}"
    typer.echo(f"{path}: round {made.round}, {len(made.model):,} bytes{good}")


@app.command()
@with_operator
def report(
    operator: Any,
    job: Job,
    output: Annotated[
        Path | None,
        typer.Option("--output", "-o", metavar="FOLDER", help="The folder to write.", show_default="reports/JOB"),
    ] = None,
) -> None:
    """Write a report of a job to a folder: tables, plots, the job file, the model, and a page that shows them."""
    from coordinator.console.job_report import write_report

    for line in write_report(operator, job, output or Path("reports") / job):
        typer.echo(line)


@app.command()
@with_operator
def remove(operator: Any, job: Job, yes: Yes = False) -> None:
    """Forget a job that is over, and delete its models."""
    from coordinator.console.job_status import main_metric_text

    view: JobView = operator.job(job)
    what = f"job {view.job} ({view.status}, {view.round} rounds, {main_metric_text(view)})"
    if not yes and not typer.confirm(f"Remove {what} with all its models? This cannot be undone"):
        typer.echo(f"{view.job} was not removed")
        raise typer.Exit(1)
    gone = operator.remove(job)
    freed = f"{gone.blobs} files ({gone.freed:,} bytes) are deleted within a minute"
    shared = "no file is deleted: other jobs use all of its files"
    typer.echo(f"{what} is removed: {freed if gone.blobs else shared}")


@app.command()
@with_operator
def sign(
    operator: Any,
    job: Job,
    file: Annotated[
        Path | None, typer.Option(metavar="JOB.TOML", help="The job file to compare; default: the coordinator's copy.")
    ] = None,
    key: Key = None,
    span: For = SPAN,
    site: Site = None,
    purpose: Purpose = "",
    visits: Visits = None,
    trust_coordinator: Trust = False,
    yes: Yes = False,
) -> None:
    """Sign a job so that devices accept it: compile its kit again, compare it, and sign a mandate."""
    from coordinator.console.signing import same_job

    theirs, _ = operator.job_file(job)
    text = job_text(file, job) if file else theirs
    if not same_job(text, theirs):
        raise ConfigError(f"{file} is not the job {job!r} of the coordinator: `sojourn job report` shows that one")
    sign_job(operator, job, text, key, span, site or (), purpose, visits, trusting=trust_coordinator, yes=yes)


def sign_job(
    operator: Operator,
    job: str,
    text: str,
    key: Path | None,
    span: str,
    sites: Sequence[str],
    purpose: str,
    visits: int | None,
    *,
    trusting: bool,
    yes: bool,
) -> None:
    """Show the mandate, ask for confirmation, sign it and let the job continue."""
    from coordinator.console.signing import Terms, give, mandate_lines, prepared, span_of, utc_date
    from sojourn.protocol.topics import check_name

    signer = operator.signer(key)
    for each in sites:
        check_name(each, "--site")
    terms = Terms(operator.name, span_of(span), tuple(sites), purpose, visits)
    mandate = prepared(operator, job, text, terms, lambda step: typer.echo(step, err=True), trusting=trusting)
    for line in mandate_lines(mandate, checked=not trusting):
        typer.echo(line)
    if not yes and not typer.confirm("Sign this?"):
        typer.echo(f"{job} is not signed")
        raise typer.Exit(1)
    view = give(operator, mandate, signer)
    typer.echo(f"job {view.job} is signed and {view.status}; its mandate ends {utc_date(mandate.ends)}")


@app.command()
@with_operator
def withdraw(operator: Any, job: Job, key: Key = None, yes: Yes = False) -> None:
    """End a job and revoke its mandates: devices stop it and delete its data when they are notified."""
    from coordinator.console.signing import withdraw as take_back

    signer = operator.signer(key)
    if not yes and not typer.confirm(f"End job {job} and revoke its mandates?"):
        typer.echo(f"{job} was not changed")
        raise typer.Exit(1)
    for view in take_back(operator, job, operator.name, signer):
        typer.echo(f"job {view.job} is {view.status}: {view.detail}")
    typer.echo("online devices are notified now, others when they connect; a dishonest server could withhold it")


@app.command("continue")
@with_operator
def continue_(
    operator: Any,
    job: Job,
    rounds: Annotated[
        int | None, typer.Option(min=1, help="Total number of rounds, including those done.", show_default="unchanged")
    ] = None,
    target: Annotated[
        str | None,
        typer.Option(
            metavar="METRIC", help="End at this accuracy, or at 'rmse <= 0.5'; 0: no target.", show_default="unchanged"
        ),
    ] = None,
    devices: Annotated[
        int | None,
        typer.Option(min=1, help="Devices required before the first round.", show_default="unchanged"),
    ] = None,
    watch: Watch = False,
) -> None:
    """Continue a job that is over, change its rounds or target, or let a waiting job start with fewer devices."""
    from coordinator.jobs.goal import target_of

    view: JobView = operator.continue_job(job, rounds, _target(target_of(target)), devices)
    doing = "is queued" if view.status == "queued" else "continues"
    typer.echo(f"job {view.job} {doing}: {view.round} of {view.rounds} rounds are done")
    _watch_or_hint(operator, view.job, watch=watch)


def job_text(file: Path, name: str | None = None, start_from: str | None = None) -> str:
    """Return the checked text of a job file, with paths that do not depend on the folder.

    It may get another name, and an earlier job to start from.
    """
    from coordinator.jobs.settings import FILE_KEYS, read_job
    from sojourn.settings import dumps, read_file

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
        raise ConfigError(f"{file}: a job file may have {LONGEST_JOB} characters, but this one has {len(text)}")
    return text


def _write(path: Path, data: bytes) -> None:
    try:
        path.write_bytes(data)
    except OSError as error:
        raise MachineError(f"{path} cannot be written: {error.strerror}") from error


def _watch_or_hint(operator: Operator, job: str, *, watch: bool) -> None:
    """Watch a job until it ends, or print the command that does."""
    if watch:
        from coordinator.console.job_status import watch_job

        watch_job(operator, job)
    else:
        typer.echo(f"To watch it: {operator.command(f'job watch {job}')}")


def which_round(number: int | None, *, best: bool) -> int | Literal["best"] | None:
    """Return the round that two options select: its number, the best, or the newest (None)."""
    if number is not None and best:
        raise ConfigError("--round and --best exclude each other")
    return "best" if best else number


def warn_if_failed(operator: Operator, job: str) -> None:
    """Print a warning if the job whose model is used has failed."""
    from coordinator.console.job_progress import failure_of

    if failed := failure_of(operator.job(job)):
        typer.echo(f"Warning: {failed}", err=True)


def _target(given: float | str | None) -> float | str | None:
    """Return a target as sent to the coordinator: a number is an accuracy, other metrics are named."""
    if isinstance(given, float) and not 0 <= given <= 1:
        raise ConfigError(f"--target {given:g}: an accuracy is from 0 to 1; otherwise write 'rmse <= {given:g}'")
    return given
