"""`sojourn agent join`: from a blank device to one that is a member, with a token."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer

from sojourn import options

DATA = "/var/lib/sojourn-agent/data.npz"


def join(
    token: Annotated[
        str, typer.Argument(metavar="TOKEN", help="As `sojourn fleet invite` prints it; - reads it from the input.")
    ],
    file: Annotated[Path, typer.Option("--file", metavar="FILE", help="The settings to write.")] = Path("agent.toml"),
    name: Annotated[
        str | None, typer.Option(help="What to be called, if the token leaves that open.", show_default="the host's")
    ] = None,
    data: options.Data = None,
    label: options.Label = None,
    header: options.Header = None,
    scale: options.Scale = None,
    store: options.Store = None,
    identity: Annotated[
        Path | None,
        typer.Option(metavar="FOLDER", help="Where its keys are kept.", show_default="identity beside FILE"),
    ] = None,
    anew: Annotated[bool, typer.Option("--anew", help="Make new keys, if there are some: another device.")] = False,
    force: Annotated[bool, typer.Option("--force", help="Replace a settings file that is there.")] = False,
    wait: Annotated[float, typer.Option(metavar="HOURS", min=0, help="How long to wait for an operator.")] = 24.0,
) -> None:
    """Make this device's own keys, ask to join a fleet, and write the settings that `sojourn agent run` needs."""
    import sys

    from edge_agent.joining import join as join_fleet
    from edge_agent.setup.agent_file import own_name
    from sojourn.errors import ConfigError
    from sojourn.joining.identity import NodeIdentity
    from sojourn.joining.token import read_token

    known = read_token(sys.stdin.readline() if token == "-" else token)  # noqa: S105  # a dash is no secret
    if file.exists() and not force:  # before anything is asked for nothing
        raise ConfigError(f"{file} exists already: name another --file, or give --force to replace it")
    keys = NodeIdentity((identity or file.absolute().parent / "identity").absolute())
    if anew:
        join_fleet.begin_anew(keys)
    if keys.has_joined:
        raise ConfigError(
            f"{keys.folder} holds the keys of {keys.joined().name} already: on a copied card give --anew, which makes "
            "a device of its own"
        )
    welcome, joined = join_fleet.join(
        known, keys, name or own_name(), lambda text: typer.echo(text, err=True), wait * 3600
    )
    path = data or welcome.data or DATA
    table = {"path": str(Path(path).expanduser().absolute()), "label": label, "header": header, "scale": scale}
    given = {key: value for key, value in table.items() if value is not None}
    join_fleet.write_settings(file, keys, welcome, given, store)
    keys.remember(joined)
    keys.settle()
    typer.echo(f"joined {welcome.fleet} as {welcome.name}; it trains on {given['path']}")
    typer.echo(f"written: {file}\nnext: sojourn agent run {file}")
