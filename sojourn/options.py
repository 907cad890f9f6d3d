"""Command-line options that several commands share."""

from __future__ import annotations

import sys
from typing import Annotated

import typer

from sojourn.errors import ConfigError

File = Annotated[str | None, typer.Argument(metavar="FILE", help="A TOML file with settings; flags override it.")]
Name = Annotated[str | None, typer.Option(help="Name of the node: a-z, 0-9 and '-'.")]
Fleet = Annotated[str | None, typer.Option(help="Name of the fleet.", show_default="sojourn")]
Broker = Annotated[
    str | None,
    typer.Option(
        metavar="HOST[:PORT]",
        help="Address of the broker; the prefix mqtts:// enables TLS.",
        show_default="localhost:1883",
    ),
]
Username = Annotated[str | None, typer.Option(help="MQTT user name.", show_default="the node's name")]
PasswordFile = Annotated[str | None, typer.Option(metavar="FILE", help="File with the MQTT password.")]
Store = Annotated[
    str | None,
    typer.Option(
        metavar="FOLDER", help="Folder for persistent data.", show_default="~/.local/share/sojourn/FLEET/NAME"
    ),
]
Data = Annotated[str | None, typer.Option(metavar="PATH", help="NPZ, CSV or text file, or folder of images.")]
Label = Annotated[
    str | None, typer.Option(metavar="COLUMN", help="Label column of a CSV file: name, number, first or last.")
]
Header = Annotated[
    bool | None, typer.Option("--header/--no-header", help="Whether the first row of a CSV file is a header.")
]
Scale = Annotated[
    str | None,
    typer.Option(metavar="'A..B to C..D'", help="Convert values to another scale, such as '0..255 to 0..1'."),
]
Target = Annotated[
    list[str] | None, typer.Option(metavar="COLUMN", help="CSV column that jobs predict; repeatable, in order.")
]
Ignore = Annotated[list[str] | None, typer.Option(metavar="COLUMN", help="CSV column to ignore; repeatable.")]
Time = Annotated[str | None, typer.Option(metavar="COLUMN", help="CSV column with the time of each row.")]
Series = Annotated[str | None, typer.Option(metavar="COLUMN", help="CSV column that identifies the series.")]
CertificatePort = Annotated[int, typer.Option(help="TLS port for nodes with certificates.", min=1, max=65_535)]
PasswordPort = Annotated[
    int,
    typer.Option(help="TLS port for nodes with passwords; 0 disables it.", min=0, max=65_535),
]
LocalPort = Annotated[
    int, typer.Option(help="Port on 127.0.0.1 for nodes with passwords; 0 disables it.", min=0, max=65_535)
]
MetricsPort = Annotated[
    int | None,
    typer.Option(
        help="Port of the Prometheus metrics on 127.0.0.1; 0 disables them.", min=0, max=65_535, show_default="0"
    ),
]
Verbose = Annotated[bool, typer.Option("--verbose", "-v", help="Log more.")]
LogFormat = Annotated[
    str | None,
    typer.Option(metavar="plain|json", help="Log format: plain lines or JSON.", show_default="plain"),
]


def ask(question: str, flag: str) -> str:
    """Prompt for a value; raise ConfigError that names the flag if there is no terminal."""
    if not sys.stdin.isatty():
        raise ConfigError(f"{flag} is missing")
    return str(typer.prompt(question))
