"""Options of the command line that several commands share, so that they read the same everywhere."""

from __future__ import annotations

from typing import Annotated

import typer

File = Annotated[str | None, typer.Argument(metavar="FILE", help="A TOML file with settings; flags override it.")]
Name = Annotated[str | None, typer.Option(help="The node's own name: a-z, 0-9 and '-'.")]
Fleet = Annotated[str | None, typer.Option(help="The fleet's name.", show_default="sojourn")]
Broker = Annotated[
    str | None,
    typer.Option(
        metavar="HOST[:PORT]", help="The broker; mqtts:// before it: with TLS.", show_default="localhost:1883"
    ),
]
Username = Annotated[str | None, typer.Option(help="The broker's name for us.", show_default="the node's name")]
PasswordFile = Annotated[str | None, typer.Option(metavar="FILE", help="Holds the broker's password for us.")]
Store = Annotated[
    str | None,
    typer.Option(metavar="FOLDER", help="Kept across restarts.", show_default="~/.local/share/sojourn/FLEET/NAME"),
]
Data = Annotated[str | None, typer.Option(metavar="PATH", help="NPZ or CSV file, or folder of images.")]
Label = Annotated[
    str | None, typer.Option(metavar="COLUMN", help="The label column of a CSV: its name or number, first or last.")
]
Header = Annotated[bool | None, typer.Option("--header/--no-header", help="Whether a CSV's first row names columns.")]
Scale = Annotated[
    str | None, typer.Option(metavar="'A..B to C..D'", help="Bring values to another scale, like '0..255 to 0..1'.")
]
Target = Annotated[
    list[str] | None, typer.Option(metavar="COLUMN", help="A column of a CSV that jobs predict; repeatable, in order.")
]
Ignore = Annotated[list[str] | None, typer.Option(metavar="COLUMN", help="A column of a CSV to leave out; repeatable.")]
Time = Annotated[str | None, typer.Option(metavar="COLUMN", help="The column of a CSV that says when a row was.")]
Series = Annotated[str | None, typer.Option(metavar="COLUMN", help="The column of a CSV that tells series apart.")]
CertificatePort = Annotated[int, typer.Option(help="For nodes with certificates (TLS).", min=1, max=65_535)]
PasswordPort = Annotated[
    int,
    typer.Option(help="For nodes with passwords (TLS); 0: none.", min=0, max=65_535),
]
LocalPort = Annotated[int, typer.Option(help="On 127.0.0.1, with passwords; 0: none.", min=0, max=65_535)]
MetricsPort = Annotated[
    int | None,
    typer.Option(help="Figures for Prometheus on 127.0.0.1; 0: none.", min=0, max=65_535, show_default="0"),
]
Verbose = Annotated[bool, typer.Option("--verbose", "-v", help="Say more.")]
LogFormat = Annotated[
    str | None,
    typer.Option(metavar="plain|json", help="How the log is written: lines for people, or JSON.", show_default="plain"),
]
