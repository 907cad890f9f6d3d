"""The `sojourn` command. Each group of commands is an entry point that is loaded when it is called, by its name."""

from __future__ import annotations

import sys
from importlib.metadata import entry_points
from typing import Annotated

import typer
from typer.core import TyperCommand, TyperGroup

from sojourn import WIRE, __version__
from sojourn.errors import MachineError, SojournError
from sojourn.extras import bringing, install
from sojourn.logs import complain

GROUP = "sojourn.commands"
INTERRUPTED = 130
TOLD = {
    "demo": "Train one model over a small fleet on this machine, over real MQTT.",
    "job": "Submit jobs to a coordinator and watch them.",
    "release": "Make releases of models, and bring them to the fleet.",
    "web": "See the fleet in a browser.",
    "simulate": "Simulate a whole fleet on this machine.",
    "compare": "Simulate several jobs on the same split, side by side.",
    "plan": "Tell how long a job would take on a fleet and how many bytes, without training.",
    "strategies": "List the strategies that a job can name.",
    "data": "Show how a data set is split over devices.",
    "agent": "Run the agent of a device.",
    "edge": "Run the edge server of a site.",
    "fleet": "Say who belongs to a fleet, and make credentials for them; see who is here.",
    "coordinator": "Run the coordinator of a fleet.",
    "broker": "Run an MQTT broker for development.",
}
"""What `sojourn --help` says of each, without loading any of them."""


class LazyCommands(TyperGroup):
    """Lists commands from a table and loads only the one that is called."""

    def list_commands(self, ctx: typer.Context) -> list[str]:  # type: ignore[override]  # noqa: ARG002
        """The names that are installed, the known ones first."""
        found = {each.name for each in entry_points(group=GROUP)}
        return [*(name for name in TOLD if name in found), *sorted(found - TOLD.keys())]

    def get_command(self, ctx: typer.Context, cmd_name: str) -> TyperCommand | TyperGroup | None:  # type: ignore[override]
        """The command if it was loaded, else what is told of it."""
        if cmd_name in self.commands:
            return self.commands[cmd_name]  # type: ignore[return-value]
        if cmd_name not in self.list_commands(ctx):
            return None
        return TyperCommand(cmd_name, help=TOLD.get(cmd_name, ""))

    def resolve_command(self, ctx: typer.Context, args: list[str]):  # type: ignore[no-untyped-def,override]  # noqa: ANN201  # typer's click has no public types
        """Load only the module of the command that was called."""
        for entry in entry_points(group=GROUP, name=args[0]):
            loaded = typer.main.get_command(entry.load())
            loaded.name = entry.name
            self.add_command(loaded, entry.name)
        return super().resolve_command(ctx, args)


app = typer.Typer(cls=LazyCommands, no_args_is_help=True, pretty_exceptions_enable=False)


def _version(wanted: bool) -> None:
    if wanted:
        typer.echo(f"sojourn {__version__}, wire {WIRE}")
        raise typer.Exit


@app.callback()
def sojourn(
    version: Annotated[  # its callback has answered
        bool,
        typer.Option(
            "--version",
            callback=_version,
            is_eager=True,
            help="Say which version this is, and which version of the wire it speaks.",
        ),
    ] = False,
) -> None:
    """Federated learning on edge devices over MQTT: the model travels; the data stays."""


def main() -> None:
    """Run the command line; what goes wrong on purpose is one line, never a traceback."""
    try:
        app()
    except SojournError as error:
        sys.exit(complain(error))
    except ModuleNotFoundError as error:
        extra = bringing(error.name or "")
        if extra is None:
            raise
        sys.exit(complain(MachineError(f"{error.name} is not installed: {install(extra)}")))
    except KeyboardInterrupt:
        sys.exit(INTERRUPTED)


if __name__ == "__main__":
    main()
