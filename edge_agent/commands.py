"""`sojourn agent`."""

from __future__ import annotations

import os
import sys
from typing import Annotated

import msgspec
import typer

from sojourn import options
from sojourn.overrides import broker_flags

app = typer.Typer(no_args_is_help=True, help="Run the agent of a device.")


@app.callback()
def agent() -> None:
    """Run the agent of a device."""


@app.command()
def run(
    file: options.File = None,
    name: options.Name = None,
    fleet: options.Fleet = None,
    broker: options.Broker = None,
    username: options.Username = None,
    password_file: options.PasswordFile = None,
    data: Annotated[str | None, typer.Option(metavar="PATH", help="NPZ or CSV file, or folder of images.")] = None,
    store: options.Store = None,
    threads: Annotated[int | None, typer.Option(help="Threads to train with.", show_default="one per core")] = None,
    edge: Annotated[list[str] | None, typer.Option(help="Listen only to this edge server; may be repeated.")] = None,
    objective: Annotated[
        list[str] | None,
        typer.Option(metavar="PACKAGE.MODULE:CLASS", help="Allow this installed objective; may be repeated."),
    ] = None,
    share: Annotated[
        list[str] | None, typer.Option(metavar="WHAT", help="Let jobs know this of the data: class-counts.")
    ] = None,
    verbose: options.Verbose = False,
) -> None:
    """Take visits from the edge servers of a fleet until told to stop."""
    flags = {
        "name": name,
        "fleet": fleet,
        "broker": broker_flags(broker, username, password_file),
        "data": {"path": data},
        "store": store,
        "threads": threads,
        "edges": edge or None,
        "objectives": objective or None,
        "shares": share or None,
        "verbose": verbose,
    }
    # This process becomes the agent: typer and rich leave the memory with the old program.
    lean = [sys.executable, "-P", "-m", "edge_agent.run", msgspec.json.encode(flags).decode()]
    sys.stdout.flush()
    os.execv(sys.executable, lean if file is None else [*lean, file])  # noqa: S606  # no shell is wanted
