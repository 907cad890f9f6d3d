"""`sojourn release`: models become releases here, and go to the fleet."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any, Literal

import typer

from coordinator.console.asking import asking
from coordinator.console.job_life_commands import Best, Round, warn_if_failed, which_round
from coordinator.console.rollout_commands import pause, resume, rollback, rollout, status
from sojourn import options
from sojourn.errors import ConfigError

if TYPE_CHECKING:
    from coordinator.console.operator import Operator
    from coordinator.releases.making import Wanted
    from sojourn.data.source import DataSettings

app = typer.Typer(
    add_completion=False, no_args_is_help=True, help="Make releases of models, and bring them to the fleet."
)


@app.command()
@asking
def create(
    operator: Any,
    job: Annotated[str | None, typer.Argument(metavar="JOB", help="The job whose model it is.")] = None,
    line: Annotated[str, typer.Option(metavar="NAME", help="The model line that it is a version of.")] = "",
    version: Annotated[
        int | None, typer.Option(min=1, help="Its number.", show_default="one more than the fleet has had")
    ] = None,
    file: Annotated[
        Path | None, typer.Option(metavar="MODEL.ONNX", help="Make it of this file instead; no coordinator is asked.")
    ] = None,
    samples: Annotated[
        Path | None, typer.Option(metavar="PATH", help="With --file: labelled samples that it is tested with.")
    ] = None,
    label: options.Label = None,
    scale: options.Scale = None,
    class_names: Annotated[str | None, typer.Option(metavar="A,B,...", help="With --file: the classes.")] = None,
    classes_file: Annotated[
        Path | None, typer.Option(metavar="FILE", help="With --file: the classes, one in a line.")
    ] = None,
    targets: Annotated[
        str | None, typer.Option(metavar="A,B,...", help="With --file: the quantities that a regression gives.")
    ] = None,
    int8: Annotated[bool, typer.Option("--int8", help="Quantise it: a third of the size, at some accuracy.")] = False,
    max_loss: Annotated[
        float,
        typer.Option(metavar="SHARE", min=0, max=1, help="What int8 may cost: 0.05 is 5 points, or 5 % of a figure."),
    ] = 0.05,
    quantile: Annotated[
        float,
        typer.Option(
            metavar="SHARE", min=0.5, max=0.9999, help="Of anomalies: how many of a device's samples are normal."
        ),
    ] = 0.99,
    number: Round = None,
    best: Best = False,
    notes: Annotated[str, typer.Option(help="What people should know of it.")] = "",
    output: Annotated[
        Path | None,
        typer.Option("--output", "-o", metavar="FILE", help="Its file.", show_default="LINE-VERSION.release"),
    ] = None,
) -> None:
    """Make a release of a job's model, or of an ONNX file: checked, measured, with a model card."""
    from rich.console import Console

    from coordinator.console.compiling_lines import waiting
    from coordinator.console.release_card import summary
    from coordinator.releases.file import write_release
    from coordinator.releases.making import Wanted
    from sojourn.data.source import read_as
    from sojourn.protocol.topics import check_name

    if (job is None) == (file is None):
        raise ConfigError("name a job, or an ONNX file with --file: one of the two")
    if file is None and (samples or class_names or classes_file or targets):
        raise ConfigError("--samples, --class-names, --classes-file and --targets go with --file: a job knows its own")
    if targets is not None and (class_names or classes_file):
        raise ConfigError("--targets are quantities, --class-names and --classes-file classes: a file has one of them")
    if file is not None and (number or best):
        raise ConfigError("--round and --best go with a job: a file has one model")
    check_name(line, "--line")
    _check_notes(notes)
    which = which_round(number, best=best)
    wanted = Wanted(line, version or 0, "int8" if int8 else "float32", notes, max_loss, quantile)
    given, console = read_as(str(samples), label=label, scale=scale) if samples else None, Console()
    with waiting(console, f"making a release of {file or job}: checked, measured, with its card"):
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

    from coordinator.console.release_card import whole
    from coordinator.releases.file import read_release

    Console().print(whole(read_release(file)))


@app.command()
def key(
    file: Annotated[Path, typer.Argument(metavar="FILE", help="The private key to write.")] = Path("release.key"),
) -> None:
    """Make a key: one that signs releases, where `sojourn fleet init` made none, or an operator's own."""
    from sojourn.protocol.signing import Signer

    public = file.with_suffix(".pub")
    if public.exists():
        raise ConfigError(f"{public} exists: name another file")
    signer = Signer.generate(file)
    public.write_text(f"{signer.public}\n")
    typer.echo(f"{file}: signs; keep it to yourself, with a copy elsewhere\n{public}: for those who trust it")


for command in (rollout, status, pause, resume, rollback):
    app.command()(command)


def _of_file(
    file: Path,
    wanted: Wanted,
    samples: DataSettings | None,
    names: tuple[str, ...] | None,
    targets: tuple[str, ...] | None,
) -> Any:
    from sojourn.extras import need

    if not wanted.version:
        raise ConfigError("say which --version this is: no coordinator is asked about a file")
    need("cloud", "making a release of an ONNX file")
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
    """The class names that were given, in the order of the model's output."""
    if given is not None and file is not None:
        raise ConfigError("give --class-names or --classes-file, not both")
    if file is not None:
        try:
            lines = file.read_text("utf-8").splitlines()
        except (OSError, UnicodeDecodeError) as error:
            raise ConfigError(f"{file} cannot be read: {error}") from error
        return tuple(line.strip() for line in lines if line.strip())
    return tuple(name.strip() for name in given.split(",")) if given is not None else None


def _check_notes(notes: str) -> None:
    if len(notes) > 2000:
        raise ConfigError(f"--notes may have 2000 characters, not {len(notes)}")
