"""The commands `sojourn agent init` and `sojourn agent preflight`, which prepare a device for its first run."""

from __future__ import annotations

import inspect
from collections.abc import Callable
from functools import partial
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Annotated, Any

import typer

from sojourn import options
from sojourn.errors import ConfigError
from sojourn.settings import broker_flags, broker_table, data_flags

_COLOURS = {"ok": "green", "warning": "yellow", "fails": "red"}


def agent_flags(
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
) -> dict[str, Any]:
    """Return the settings that these options set, as the tables of an agent's settings file."""
    return {
        "name": name,
        "fleet": fleet,
        "broker": broker_flags(broker, username, password_file),
        "data": data_flags(data, label, header, scale, target, ignore, time, series),
        "store": store,
    }


_AGENT_OPTIONS = tuple(inspect.signature(agent_flags, eval_str=True).parameters.values())


def takes_agent_flags(command: Callable[..., None]) -> Callable[..., None]:
    """Add the options that override an agent's settings file to a command; its first parameter is their table."""
    own = list(inspect.signature(command, eval_str=True).parameters.values())[1:]

    def run(**given: Any) -> None:
        command(agent_flags(**{each.name: given.pop(each.name) for each in _AGENT_OPTIONS}), **given)

    run.__name__, run.__doc__ = command.__name__, command.__doc__
    run.__signature__ = inspect.Signature([*_AGENT_OPTIONS, *own])  # type: ignore[attr-defined]
    return run


@takes_agent_flags
def init(
    flags: dict[str, Any],
    file: Annotated[Path, typer.Argument(metavar="FILE", help="The settings file to write.")] = Path("agent.toml"),
    ca_file: Annotated[
        str | None, typer.Option(metavar="FILE", help="The broker's CA certificate; enables TLS.")
    ] = None,
    threads: Annotated[
        int | None, typer.Option(help="Number of training threads.", show_default="one per core")
    ] = None,
    memory: Annotated[int | None, typer.Option(metavar="MB", help="Maximum memory of training in megabytes.")] = None,
    cpu_share: Annotated[
        float | None, typer.Option(metavar="0..1", help="Share of all cores that training may use.")
    ] = None,
    hours: Annotated[
        list[str] | None, typer.Option(metavar="22:00-06:00", help="Time of day to train at; repeatable.")
    ] = None,
    metered: Annotated[
        list[str] | None,
        typer.Option(metavar="INTERFACE", help="Metered interface: no training while in use; repeatable."),
    ] = None,
    battery: Annotated[
        int | None, typer.Option(metavar="PERCENT", help="Minimum charge for training on battery, in percent.")
    ] = None,
    release_key: Annotated[
        str | None, typer.Option(metavar="FILE", help="Public key; releases signed with its private key are served.")
    ] = None,
    yes: Annotated[bool, typer.Option("--yes", "-y", help="Ask no questions; use the defaults.")] = False,
    force: Annotated[bool, typer.Option("--force", help="Overwrite an existing file.")] = False,
    check: Annotated[bool, typer.Option(help="Test the broker and read the data before writing.")] = True,
) -> None:
    """Ask for the settings of an agent, check them, and write the settings file."""
    from edge_agent.setup import agent_file

    if file.exists() and not force:  # checked before any question
        raise ConfigError(f"{file} exists already: name another file, or give --force to replace it")

    ask, broker, data = partial(_ask, yes=yes), flags["broker"], flags["data"]
    flags["name"] = ask("This device's name (a-z, 0-9, -)", flags["name"], agent_file.own_name(), "--name")
    flags["fleet"] = ask("The fleet's name", flags["fleet"], "sojourn", "--fleet")
    if "host" not in broker:
        broker |= broker_table(ask("The broker, host or host:port", None, "localhost", "--broker"))
    ca_file = ask("The broker's CA file, for TLS (empty: no TLS)", ca_file, "", "--ca-file")
    broker["password_file"] = ask(
        "The file with the broker's password (empty: none)", broker["password_file"], "", "--password-file"
    )
    data["path"] = ask("The data: an NPZ, CSV or text file, or a folder of images", data["path"], None, "--data")
    limits = {
        "memory": memory,
        "cpu_share": cpu_share,
        "hours": hours,
        "metered_interfaces": metered,
        "battery": battery,
    }
    table = agent_file.table_of(flags, limits, threads=threads, ca_file=ca_file, release_key=release_key)
    settings, wrong = agent_file.settings_of(table), list[str]()
    if check:
        found = agent_file.found_in(settings)
        for line in [] if found.summary.fault else [*found.facts, *(f"warning: {text}" for text in found.warnings)]:
            typer.echo(f"data: {line}", err=True)
        wrong = agent_file.objections(settings, found)
    for objection in wrong:
        typer.echo(f"error: {objection}", err=True)
    if wrong and (yes or not typer.confirm("Write the file anyway?", default=False, err=True)):
        typer.echo("no file written; use --no-check to write it anyway", err=True)
        raise typer.Exit(1)
    agent_file.write(file, table, force=force)
    typer.echo(f"written: {file}\nnext: sojourn agent preflight {file}\nthen: sojourn agent run {file}")


def _ask(question: str, given: str | None, default: str | None, flag: str, *, yes: bool) -> str:
    """Return the value that was given, or the user's answer; with `yes`, the default."""
    if given is not None:
        return given
    if not yes:
        return str(typer.prompt(question, default=default, err=True))
    if default is None:
        raise ConfigError(f"{flag} is required with --yes")
    return default


@takes_agent_flags
def preflight(
    flags: dict[str, Any],
    file: options.File = None,
    job: Annotated[
        Path | None, typer.Option(metavar="FILE", help="The job file to check against; compiled if torch is installed.")
    ] = None,
    kit: Annotated[
        Path | None, typer.Option(metavar="FILE", help="The job's kit, as `sojourn job kit` wrote it.")
    ] = None,
    parameters: Annotated[int | None, typer.Option(min=1, help="Number of parameters of the job's model.")] = None,
) -> None:
    """Check whether this device can run a job: data, time, memory, disk, broker, clock, limits. Exit code 1: failed."""
    from rich.console import Console
    from rich.markup import escape

    from edge_agent.settings import AgentSettings
    from edge_agent.setup import preflight as checks
    from sojourn.settings import read_file, read_settings
    from sojourn.tables import plain_table

    settings = read_settings(file, flags, AgentSettings)
    job_table = read_file(job, dict) if job else {}
    with TemporaryDirectory(prefix="sojourn-preflight-") as folder:
        untried = []
        if job and not kit and not parameters:
            made = checks.compiled(job, Path(folder))
            kit, untried = (made, []) if isinstance(made, Path) else (None, [made])
        findings = [*checks.preflight(settings, checks.demands_of(job_table, parameters, str(job), kit)), *untried]
    table = plain_table("check", "", "result")
    for each in findings:
        text = escape(each.text) + (f"\n[dim]to do: {escape(each.remedy)}[/dim]" if each.remedy else "")
        table.add_row(each.what, f"[{_COLOURS[each.verdict]}]{each.verdict}[/]", text)
    Console().print(table, highlight=False)
    if any(each.verdict == "fails" for each in findings):
        raise typer.Exit(1)
