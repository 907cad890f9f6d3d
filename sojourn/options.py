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
CertificatePort = Annotated[int, typer.Option(help="For nodes with certificates (TLS).", min=1, max=65_535)]
PasswordPort = Annotated[
    int,
    # Versions before 0.3 called it --port.
    typer.Option("--password-port", "--port", help="For nodes with passwords (TLS); 0: none.", min=0, max=65_535),
]
LocalPort = Annotated[int, typer.Option(help="On 127.0.0.1, with passwords; 0: none.", min=0, max=65_535)]
Verbose = Annotated[bool, typer.Option("--verbose", "-v", help="Say more.")]
