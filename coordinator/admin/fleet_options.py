"""Options that several commands of `sojourn fleet` have."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer

DEFAULT = Path("/etc/sojourn/fleet")
Folder = Annotated[
    Path,
    typer.Option(
        "--fleet-folder", metavar="FOLDER", help="With the fleet's keys and members.", envvar="SOJOURN_FLEET_FOLDER"
    ),
]
Reload = Annotated[
    str,
    typer.Option(
        "--reload",
        metavar="COMMAND",
        help="What has the broker read its files again.",
        envvar="SOJOURN_BROKER_RELOAD",
        show_default="systemctl reload mosquitto, as root",
    ),
]


def say_reload() -> None:
    """Tell a person what has to be done where nobody could do it."""
    typer.echo("the broker takes it up with: systemctl reload mosquitto (or kill -HUP its process)", err=True)


def reload_or_say(folder: Path, command: str) -> None:
    """Ask the broker to read its files again, or tell a person to; it does so a moment after the command has ended."""
    from sojourn.brokers.reloading import reload_broker  # noqa: PLC0415  # cryptography comes with it

    if reload_broker(folder, command):
        typer.echo("the broker was asked to read its files again", err=True)
    else:
        say_reload()
