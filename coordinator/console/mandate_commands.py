"""The commands `sojourn job sign` and `withdraw`, which let devices do a job or revoke that."""

from __future__ import annotations

import time
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from coordinator.console.options import asking
from sojourn.errors import ConfigError

if TYPE_CHECKING:
    from collections.abc import Sequence

    from coordinator.console.operator import Operator
    from sojourn.protocol.mandates import Mandate

Job = Annotated[str, typer.Argument(metavar="JOB", help="The job's name.")]
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
SPAN = "30d"


@asking
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
    from coordinator.console.job_commands import job_text
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
    from coordinator.console.signing import Terms, give, prepared, span_of
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
    typer.echo(f"job {view.job} is signed and {view.status}; its mandate ends {_date(mandate.ends)}")


@asking
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


def lines_of(mandate: Mandate, *, checked: bool) -> list[str]:
    """Describe a mandate for its signer."""
    from sojourn.parts import name_of

    kit = "identical to the one compiled here" if checked else "as the coordinator made it, not compared"
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
    lines.append(f"  returns  {returns}" + (f", {mandate.metrics} numbers of its data" if mandate.metrics else ""))
    lines.append(f"  rounds   {mandate.rounds}, with at most {mandate.visits} results of each device")
    lines.append(f"  where    {', '.join(mandate.sites) or 'all sites'}")
    lines.append(f"  until    {_date(mandate.ends)}")
    return lines


def _date(moment: float) -> str:
    return time.strftime("%Y-%m-%d %H:%M UTC", time.gmtime(moment))
