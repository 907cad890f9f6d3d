"""The commands of `sojourn release`: make releases, roll them out, and roll them back."""

from __future__ import annotations

import time
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any, Literal

import typer

from coordinator.console.job_commands import Best, Round, warn_if_failed, which_round
from coordinator.console.options import AsJson, print_json, with_operator
from sojourn import options
from sojourn.errors import ConfigError, JobError

if TYPE_CHECKING:
    from coordinator.console.operator import Operator
    from coordinator.releases.making import Wanted
    from sojourn.data.source import DataSettings
    from sojourn.protocol.release import LineView, RolloutStatus


app = typer.Typer(
    add_completion=False, no_args_is_help=True, help="Make releases of models, and bring them to the fleet."
)

Line = Annotated[str, typer.Argument(metavar="LINE", help="The model line.")]
KEY = Path("/etc/sojourn/fleet/release.key")
REFRESH_INTERVAL = 0.5
"""Seconds between two updates of a rollout that is watched."""
MAX_NOTES = 2000
ENDED: tuple[RolloutStatus, ...] = ("done", "rolled-back", "halted", "paused")


@app.command()
@with_operator
def create(
    operator: Any,
    job: Annotated[str | None, typer.Argument(metavar="JOB", help="The job with the model.")] = None,
    line: Annotated[str, typer.Option(metavar="NAME", help="The model line of the release.")] = "",
    version: Annotated[
        int | None, typer.Option(min=1, help="Version number.", show_default="one more than the fleet's last")
    ] = None,
    file: Annotated[
        Path | None, typer.Option(metavar="MODEL.ONNX", help="Use this file instead of a job; needs no coordinator.")
    ] = None,
    samples: Annotated[
        Path | None, typer.Option(metavar="PATH", help="With --file: labelled samples to test the model with.")
    ] = None,
    label: options.Label = None,
    scale: options.Scale = None,
    class_names: Annotated[str | None, typer.Option(metavar="A,B,...", help="With --file: the classes.")] = None,
    classes_file: Annotated[
        Path | None, typer.Option(metavar="FILE", help="With --file: the classes, one per line.")
    ] = None,
    targets: Annotated[
        str | None, typer.Option(metavar="A,B,...", help="With --file: the quantities that a regression predicts.")
    ] = None,
    int8: Annotated[bool, typer.Option("--int8", help="Quantise to a third of the size, with some loss.")] = False,
    max_loss: Annotated[
        float,
        typer.Option(metavar="SHARE", min=0, max=1, help="Maximum loss by int8: 0.05 is 5 points, or 5 % of a metric."),
    ] = 0.05,
    quantile: Annotated[
        float,
        typer.Option(
            metavar="SHARE", min=0.5, max=0.9999, help="For anomalies: share of a device's samples that are normal."
        ),
    ] = 0.99,
    number: Round = None,
    best: Best = False,
    notes: Annotated[str, typer.Option(help="Notes for the model card.")] = "",
    output: Annotated[
        Path | None,
        typer.Option("--output", "-o", metavar="FILE", help="The file to write.", show_default="LINE-VERSION.release"),
    ] = None,
) -> None:
    """Make a release from a job's model or an ONNX file: check it, measure it, and write its model card."""
    from rich.console import Console

    from coordinator.console.compile_progress import waiting
    from coordinator.console.release_tables import summary
    from coordinator.releases.file import write_release
    from coordinator.releases.making import Wanted
    from sojourn.data.source import read_as
    from sojourn.protocol.topics import check_name

    if (job is None) == (file is None):
        raise ConfigError("name either a job, or an ONNX file with --file")
    if file is None and (samples or class_names or classes_file or targets):
        raise ConfigError("--samples, --class-names, --classes-file and --targets require --file: a job defines them")
    if targets is not None and (class_names or classes_file):
        raise ConfigError("--targets names quantities, --class-names and --classes-file name classes: use one of them")
    if file is not None and (number or best):
        raise ConfigError("--round and --best require a job: a file has one model")
    check_name(line, "--line")
    if len(notes) > MAX_NOTES:
        raise ConfigError(f"--notes may have {MAX_NOTES} characters, but has {len(notes)}")
    which = which_round(number, best=best)
    wanted = Wanted(line, version or 0, "int8" if int8 else "float32", notes, max_loss, quantile)
    given, console = read_as(str(samples), label=label, scale=scale) if samples else None, Console()
    with waiting(console, f"making a release of {file or job}: checking and measuring it"):
        release = (
            _of_file(file, wanted, given, _names(class_names, classes_file), _names(targets, None))
            if file
            else _of_job(operator, job, wanted, which)
        )
    path = output or Path(f"{line}-{release.card.version}.release")
    write_release(path, release)
    console.print(f"{path}: {path.stat().st_size:,} bytes", markup=False, highlight=False)
    console.print(summary(release))


@app.command()
def show(file: Annotated[Path, typer.Argument(metavar="FILE", help="The release.")]) -> None:
    """Show the card of a release."""
    from rich.console import Console

    from coordinator.console.release_tables import whole
    from coordinator.releases.file import read_release

    Console().print(whole(read_release(file)))


@app.command()
def key(
    file: Annotated[Path, typer.Argument(metavar="FILE", help="The private key to write.")] = Path("release.key"),
) -> None:
    """Make a key to sign releases (if `sojourn fleet init` made none), or an operator's own key."""
    from sojourn.protocol.signing import Signer

    public = file.with_suffix(".pub")
    if public.exists():
        raise ConfigError(f"{public} exists: name another file")
    signer = Signer.generate(file)
    public.write_text(f"{signer.public}\n")
    typer.echo(f"{file}: private key, keep it secret and back it up\n{public}: public key, verifies signatures")


@app.command()
@with_operator
def rollout(
    operator: Any,
    file: Annotated[Path, typer.Argument(metavar="FILE", help="The release, made by `sojourn release create`.")],
    stages: Annotated[str, typer.Option(help="Share of the fleet that each stage reaches.")] = "5%,25%,100%",
    key: Annotated[
        Path, typer.Option(metavar="FILE", help="The fleet's private release key.", envvar="SOJOURN_RELEASE_KEY")
    ] = KEY,
    soak: Annotated[float, typer.Option(metavar="SECONDS", min=0, help="Time that a stage must stay healthy.")] = 10.0,
    timeout: Annotated[float, typer.Option(metavar="SECONDS", min=0, help="Time to wait for devices.")] = 600.0,
    max_failures: Annotated[
        float, typer.Option(metavar="SHARE", min=0, max=1, help="Maximum share of unhealthy devices in a stage.")
    ] = 0.0,
    max_latency: Annotated[
        float, typer.Option(metavar="TIMES", min=0, help="Maximum p95 latency relative to the previous release.")
    ] = 2.0,
    max_accuracy_drop: Annotated[
        float, typer.Option(metavar="SHARE", min=0, max=1, help="Maximum drop in accuracy; 0.02 is two points.")
    ] = 0.02,
    max_worse: Annotated[
        str | None,
        typer.Option(metavar="SHARE", help="Maximum worsening of another main metric: 10% or 0.1.", show_default="10%"),
    ] = None,
    max_drift: Annotated[
        float, typer.Option(metavar="SHARE", min=0, max=1, help="Maximum change in the shares of predicted classes.")
    ] = 0.3,
    max_errors: Annotated[int, typer.Option(min=0, help="Maximum errors that programs report on one device.")] = 0,
    quorum: Annotated[
        int, typer.Option(metavar="DEVICES", min=1, max=1000, help="Number of complaints that roll the fleet back.")
    ] = 2,
    after: Annotated[
        int, typer.Option(metavar="SERIAL", min=0, help="Last serial number known to devices, after a restored backup.")
    ] = 0,
    halt: Annotated[bool, typer.Option("--halt", help="Halt instead of rolling back if a stage is unhealthy.")] = False,
    watch: Annotated[bool, typer.Option("--watch", help="Watch the rollout until it ends.")] = False,
) -> None:
    """Bring a release to the fleet in stages. It is rolled back automatically if a stage is unhealthy."""
    from coordinator.releases.file import read_release
    from coordinator.releases.orders import orders_for, shares_of, worse_of
    from sojourn.protocol.release import WORSE, HealthRules
    from sojourn.protocol.signing import Signer

    shares = shares_of(stages)
    release = read_release(file)
    if max_worse is not None and release.card.learns.kind == "classification":
        raise ConfigError("--max-worse is for tasks without an accuracy: use --max-accuracy-drop for a classification")
    signer = Signer.load(key)
    rules = HealthRules(
        failures=max_failures,
        latency=max_latency,
        accuracy=max_accuracy_drop,
        drift=max_drift,
        errors=max_errors,
        soak=soak,
        timeout=timeout,
        quorum=quorum,
        worse=WORSE if max_worse is None else worse_of(max_worse),
    )
    line = release.card.line
    known = next(iter(operator.releases(line)), None)
    forward, back = orders_for(release, known, operator.fleet, signer, after=after)
    view = operator.rollout(forward, back, release, shares, rules, undo=not halt)
    undone = f"{line} {view.before}" if view.before else "no release, since this line is new"
    typer.echo(f"{line} {view.version}: rollout started in {len(shares)} stages; a rollback returns to {undone}")
    if watch:
        _watch(operator, line)
    else:
        typer.echo(f"To see its status: {operator.command(f'release status {line}')}")


@app.command()
@with_operator
def status(
    operator: Any,
    line: Annotated[str | None, typer.Argument(metavar="LINE", help="Show one model line with its devices.")] = None,
    watch: Annotated[bool, typer.Option("--watch", help="Watch a line until its rollout ends.")] = False,
    as_json: AsJson = False,
) -> None:
    """Show the fleet's model lines, or one with its devices."""
    from rich.console import Console

    from coordinator.console.release_tables import device_table, line_summary, line_table, plan_lines

    console = Console()
    if as_json:
        if watch:
            raise ConfigError("give --watch or --json, not both")
        print_json(operator.releases() if line is None else _line(operator, line))
        return
    if line is None:
        views = operator.releases()
        console.print(line_table(views) if views else "no release has been rolled out yet")
        return
    if watch:
        _watch(operator, line)
        return
    view = _line(operator, line)
    console.print(line_summary(view), markup=False, highlight=False)
    console.print(device_table(view))
    for text in plan_lines(view):
        console.print(text, style="dim", markup=False, highlight=False)


@app.command()
@with_operator
def pause(operator: Any, line: Line) -> None:
    """Pause a rollout: no more stages and devices get the release until `resume`."""
    _steer(operator, line, "pause")


@app.command()
@with_operator
def resume(operator: Any, line: Line) -> None:
    """Resume a paused rollout."""
    _steer(operator, line, "resume")


@app.command()
@with_operator
def rollback(
    operator: Any,
    line: Line,
    watch: Annotated[bool, typer.Option("--watch", help="Watch the rollback until it ends.")] = False,
) -> None:
    """Roll back a rollout, even one that is done: every device returns to the previous release."""
    _steer(operator, line, "rollback")
    if watch:
        _watch(operator, line, undone=True)


def _steer(operator: Operator, line: str, action: Literal["pause", "resume", "rollback"]) -> None:
    from coordinator.console.release_tables import line_summary

    typer.echo(line_summary(operator.steer(line, action)))


def _line(operator: Operator, line: str) -> LineView:
    views = operator.releases(line)
    if not views:
        known = ", ".join(view.line for view in operator.releases()) or "none"
        raise ConfigError(f"there is no model line {line!r}; the lines are: {known}")
    return views[0]


def _watch(operator: Operator, line: str, *, undone: bool = False) -> None:
    """Show a rollout until it ends; raises JobError if it is rolled back or halted, unless `undone` expects that."""
    from rich.console import Console, Group
    from rich.live import Live

    from coordinator.console.release_tables import device_table, line_summary

    console = Console()
    view = _line(operator, line)
    try:
        with Live(console=console, auto_refresh=False, transient=not console.is_terminal) as live:
            while view.status not in ENDED:
                live.update(Group(line_summary(view), device_table(view)), refresh=True)
                time.sleep(REFRESH_INTERVAL)
                view = _line(operator, line)
            live.update("", refresh=True)
    except KeyboardInterrupt:
        typer.echo(f"The rollout continues. To see its status: {operator.command(f'release status {line}')}")
        raise typer.Exit(0) from None
    console.print(device_table(view))
    console.print(line_summary(view), markup=False, highlight=False)
    if view.status in ("rolled-back", "halted") and not undone:
        raise JobError(f"{line} {view.version} was not adopted by the fleet: {view.detail}")


def _of_file(
    file: Path,
    wanted: Wanted,
    samples: DataSettings | None,
    names: tuple[str, ...] | None,
    targets: tuple[str, ...] | None,
) -> Any:
    from sojourn.errors import require_extra

    if not wanted.version:
        raise ConfigError("name the version with --version: the coordinator is not asked about a file")
    require_extra("cloud", "making a release of an ONNX file")
    from coordinator.releases.from_file import from_file

    return from_file(file, wanted, samples, names, targets)


def _of_job(operator: Operator, job: str | None, wanted: Wanted, which: int | Literal["best"] | None) -> Any:
    from dataclasses import replace

    if not wanted.version:
        had = [max(view.version, view.before, view.serves) for view in operator.releases() if view.line == wanted.line]
        wanted = replace(wanted, version=1 + max(had, default=0))
    made = operator.make_release(str(job), wanted, which)
    warn_if_failed(operator, str(job))
    return made


def _names(given: str | None, file: Path | None) -> tuple[str, ...] | None:
    """Return the given class names, in the order of the model's output."""
    if given is not None and file is not None:
        raise ConfigError("give --class-names or --classes-file, not both")
    if file is not None:
        try:
            lines = file.read_text("utf-8").splitlines()
        except (OSError, UnicodeDecodeError) as error:
            raise ConfigError(f"{file} cannot be read: {error}") from error
        return tuple(line.strip() for line in lines if line.strip())
    return tuple(name.strip() for name in given.split(",")) if given is not None else None
