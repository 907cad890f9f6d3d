"""`sojourn job sign | withdraw`: an operator lets devices do a job, or no longer."""

from __future__ import annotations

import time
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from coordinator.console.asking import asking
from sojourn.errors import ConfigError

if TYPE_CHECKING:
    from collections.abc import Sequence

    from coordinator.console.operator import Operator
    from sojourn.protocol.mandate import Mandate

Job = Annotated[str, typer.Argument(metavar="JOB", help="The job's name.")]
Key = Annotated[
    Path | None,
    typer.Option(metavar="FILE", help="Sign with this private key, which devices trust.", show_default="operator key"),
]
For = Annotated[str, typer.Option("--for", metavar="SPAN", help="How long devices may do it: 12h, 30d, 8w.")]
Site = Annotated[list[str] | None, typer.Option(help="Only at this site; may be repeated.", show_default="all")]
Purpose = Annotated[str, typer.Option(help="What it is for, in words for the owners of devices.")]
Visits = Annotated[
    int | None, typer.Option(min=1, help="Results that one device gives at most.", show_default="3 times the rounds")
]
Trust = Annotated[
    bool, typer.Option("--trust-coordinator", help="Do not compile the job again: sign whatever the coordinator made.")
]
Yes = Annotated[bool, typer.Option("--yes", "-y", help="Do not ask.")]
SPAN = "30d"


@asking
def sign(
    operator: Any,
    job: Job,
    file: Annotated[
        Path | None, typer.Option(metavar="JOB.TOML", help="The job file that you mean; else the coordinator's word.")
    ] = None,
    key: Key = None,
    span: For = SPAN,
    site: Site = None,
    purpose: Purpose = "",
    visits: Visits = None,
    trust_coordinator: Trust = False,
    yes: Yes = False,
) -> None:
    """Let devices do a job: its kit is compiled again here and compared, then what they may do is signed."""
    from coordinator.console.job_commands import job_text
    from coordinator.console.signing import same_job

    theirs, _ = operator.job_file(job)
    text = job_text(file, job) if file else theirs
    if not same_job(text, theirs):
        raise ConfigError(
            f"{file} is not the job {job!r} that the coordinator has: `sojourn job report` shows that one"
        )
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
    """Show what is to be signed, ask, sign and let the job go on."""
    from coordinator.console.signing import give, prepared
    from coordinator.rounds.mandate_terms import Terms, span_of
    from sojourn.protocol.topics import check_name

    signer = operator.signer(key)
    for each in sites:
        check_name(each, "--site")
    terms = Terms(operator.name, span_of(span), tuple(sites), purpose, visits)
    mandate = prepared(operator, job, text, terms, lambda step: typer.echo(step, err=True), trusting=trusting)
    for line in lines_of(mandate, checked=not trusting):
        typer.echo(line)
    if not yes and not typer.confirm("Sign this?"):
        typer.echo(f"{job} is not signed")
        raise typer.Exit(1)
    view = give(operator, mandate, signer)
    typer.echo(f"job {view.job} is signed and {view.status}; what devices may do ends {_date(mandate.ends)}")


@asking
def withdraw(operator: Any, job: Job, key: Key = None, yes: Yes = False) -> None:
    """End a job, and let no device go on with it: each that hears of it stops and deletes what it has of the job."""
    from coordinator.console.signing import withdraw as take_back

    signer = operator.signer(key)
    if not yes and not typer.confirm(f"End job {job}, and withdraw what was signed for it?"):
        typer.echo(f"{job} stays as it is")
        raise typer.Exit(1)
    for view in take_back(operator, job, operator.name, signer):
        typer.echo(f"job {view.job} is {view.status}: {view.detail}")
    typer.echo("devices that are here are told now, others when they come; a server could keep it from them")


def lines_of(mandate: Mandate, *, checked: bool) -> list[str]:
    """What a mandate says, for whoever is to sign it."""
    from sojourn.parts import name_of

    kit = "compiled here and the same" if checked else "as the coordinator made it, not compared"
    lines = [
        f"mandate {mandate.serial} for job {mandate.job} of the fleet {mandate.fleet}",
        f"  kit      {mandate.kit.hex()[:16]}, {kit}",
        f"  model    {mandate.model}, {mandate.class_count} classes: {', '.join(mandate.classes[:10])}",
    ]
    for task in mandate.tasks:
        it = task.training
        what = name_of(task.estimator) if task.estimator else f"objective {name_of(task.objective)}"
        how = f"{it.epochs} epochs in batches of {it.batch}, {it.optimiser}, rate {it.lr:g}"
        lines.append(f"  {task.kind:<9}{how}, {what}")
    returns = ", ".join(f"{name} (at most {size:,} bytes)" for name, size in mandate.returns.items())
    lines.append(f"  returns  {returns}" + (f", {mandate.figures} numbers of its data" if mandate.figures else ""))
    lines.append(f"  rounds   {mandate.rounds}, and {mandate.visits} results of each device at most")
    lines.append(f"  where    {', '.join(mandate.sites) or 'all sites'}")
    lines.append(f"  until    {_date(mandate.ends)}")
    return lines


def _date(moment: float) -> str:
    return time.strftime("%Y-%m-%d %H:%M UTC", time.gmtime(moment))
