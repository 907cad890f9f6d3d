"""`sojourn agent init` and `sojourn agent preflight`: before an agent runs for the first time."""

from __future__ import annotations

from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Annotated

import typer

from sojourn import options

_COLOURS = {"ok": "green", "warning": "yellow", "fails": "red"}


def init(
    file: Annotated[Path, typer.Argument(metavar="FILE", help="The file to write.")] = Path("agent.toml"),
    name: options.Name = None,
    fleet: options.Fleet = None,
    broker: options.Broker = None,
    username: options.Username = None,
    password_file: options.PasswordFile = None,
    ca_file: Annotated[str | None, typer.Option(metavar="FILE", help="The broker's CA; switches TLS on.")] = None,
    data: options.Data = None,
    label: options.Label = None,
    header: options.Header = None,
    scale: options.Scale = None,
    target: options.Target = None,
    ignore: options.Ignore = None,
    time: options.Time = None,
    series: options.Series = None,
    store: options.Store = None,
    threads: Annotated[int | None, typer.Option(help="Threads to train with.", show_default="one per core")] = None,
    memory: Annotated[int | None, typer.Option(metavar="MB", help="Memory that training may take.")] = None,
    cpu_share: Annotated[float | None, typer.Option(metavar="0..1", help="Share of all cores for training.")] = None,
    hours: Annotated[list[str] | None, typer.Option(metavar="22:00-06:00", help="When to train; repeatable.")] = None,
    metered: Annotated[
        list[str] | None, typer.Option(metavar="INTERFACE", help="Not while reached over this one; repeatable.")
    ] = None,
    battery: Annotated[int | None, typer.Option(metavar="PERCENT", help="Least charge on battery.")] = None,
    release_key: Annotated[
        str | None, typer.Option(metavar="FILE", help="The public key of those whose releases are served here.")
    ] = None,
    yes: Annotated[bool, typer.Option("--yes", "-y", help="Ask nothing; take the defaults.")] = False,
    force: Annotated[bool, typer.Option("--force", help="Replace a file that is there.")] = False,
    check: Annotated[bool, typer.Option(help="Try the broker and read the data first.")] = True,
) -> None:
    """Ask for what an agent needs to know, check it, and write its settings."""
    from edge_agent.setup import agent_file
    from sojourn.errors import ConfigError

    if file.exists() and not force:  # before anything is asked for nothing
        raise ConfigError(f"{file} exists already: name another file, or give --force to replace it")

    def ask(question: str, given: str | None, default: str | None, flag: str) -> str:
        if given is not None:
            return given
        if not yes:
            return str(typer.prompt(question, default=default, err=True))
        if default is None:
            raise ConfigError(f"{flag} is needed: with --yes nothing is asked")
        return default

    answers = agent_file.InitAnswers(
        name=ask("This device's name (a-z, 0-9, -)", name, agent_file.own_name(), "--name"),
        fleet=ask("The fleet's name", fleet, "sojourn", "--fleet"),
        broker=ask("The broker, host or host:port", broker, "localhost", "--broker"),
        ca_file=ask("The broker's CA file, for TLS (empty: no TLS)", ca_file, "", "--ca-file") or None,
        password_file=ask("The file with the broker's password (empty: none)", password_file, "", "--password-file")
        or None,
        data=ask("The data: an NPZ, CSV or text file, or a folder of images", data, None, "--data"),
        label=label,
        header=header,
        scale=scale,
        targets=tuple(target or ()),
        ignore=tuple(ignore or ()),
        time=time,
        series=series,
        username=username,
        store=store,
        threads=threads,
        memory=memory,
        cpu_share=cpu_share,
        hours=tuple(hours or ()),
        metered=tuple(metered or ()),
        battery=battery,
        release_key=release_key,
    )
    table = agent_file.table_of(answers)
    settings, wrong = agent_file.settings_of(table), list[str]()
    if check:
        found = agent_file.found_in(settings)
        for line in [] if found.summary.fault else [*found.facts, *(f"odd: {text}" for text in found.warnings)]:
            typer.echo(f"data: {line}", err=True)
        wrong = agent_file.objections(settings, found)
    for objection in wrong:
        typer.echo(f"wrong: {objection}", err=True)
    if wrong and (yes or not typer.confirm("Write the file all the same?", default=False, err=True)):
        typer.echo("nothing is written; --no-check writes it all the same", err=True)
        raise typer.Exit(1)
    agent_file.write(file, table, force=force)
    typer.echo(f"written: {file}\nnext: sojourn agent preflight {file}\nthen: sojourn agent run {file}")


def preflight(
    file: options.File = None,
    name: options.Name = None,
    fleet: options.Fleet = None,
    broker: options.Broker = None,
    username: options.Username = None,
    password_file: options.PasswordFile = None,
    data: options.Data = None,
    label: options.Label = None,
    header: options.Header = None,
    scale: options.Scale = None,
    target: options.Target = None,
    ignore: options.Ignore = None,
    time: options.Time = None,
    series: options.Series = None,
    store: options.Store = None,
    job: Annotated[
        Path | None, typer.Option(metavar="FILE", help="The job to fit; compiled, if torch is here.")
    ] = None,
    kit: Annotated[
        Path | None, typer.Option(metavar="FILE", help="The job's model as `sojourn job kit` wrote it.")
    ] = None,
    parameters: Annotated[int | None, typer.Option(min=1, help="How many parameters the job's model has.")] = None,
) -> None:
    """Tell whether a job fits here: data, time, memory, disk, broker, clock, limits. Ends with 1 if something fails."""
    from rich.console import Console
    from rich.markup import escape
    from rich.table import Table

    from edge_agent.settings import AgentSettings
    from edge_agent.setup import preflight as checks
    from sojourn.settings import broker_flags, data_flags, read_file, read_settings

    flags = {
        "name": name,
        "fleet": fleet,
        "broker": broker_flags(broker, username, password_file),
        "data": data_flags(data, label, header, scale, target, ignore, time, series),
        "store": store,
    }
    settings = read_settings(file, flags, AgentSettings)
    asked = read_file(job, dict) if job else {}
    with TemporaryDirectory(prefix="sojourn-preflight-") as folder:
        untried = []
        if job and not kit and not parameters:
            made = checks.compiled(job, Path(folder))
            kit, untried = (made, []) if isinstance(made, Path) else (None, [made])
        findings = [*checks.preflight(settings, checks.demands_of(asked, parameters, str(job), kit)), *untried]
    table = Table(box=None, padding=(0, 2, 0, 0), pad_edge=False, header_style="dim")
    for column in ("what", "", "found"):
        table.add_column(column)
    for each in findings:
        text = escape(each.text) + (f"\n[dim]to do: {escape(each.remedy)}[/dim]" if each.remedy else "")
        table.add_row(each.what, f"[{_COLOURS[each.verdict]}]{each.verdict}[/]", text)
    Console().print(table, highlight=False)
    if any(each.verdict == "fails" for each in findings):
        raise typer.Exit(1)
