"""The `sojourn` command, which loads each group of commands, an entry point, only when it is called."""

from __future__ import annotations

import sys
from importlib.metadata import entry_points
from typing import Annotated

import typer
from typer.core import TyperCommand, TyperGroup

from sojourn import WIRE, __version__
from sojourn.errors import MachineError, SojournError, extra_of, install
from sojourn.logs import report_error

GROUP = "sojourn.commands"
INTERRUPTED = 130
SUMMARIES = {
    "demo": "Train one model over a small fleet on this machine, over real MQTT.",
    "job": "Submit jobs to a coordinator and watch them.",
    "release": "Create signed releases of models and roll them out.",
    "web": "Show the fleet and its jobs in a browser.",
    "simulate": "Simulate a whole fleet on this machine.",
    "compare": "Simulate several jobs on the same split and compare them.",
    "plan": "Predict how long a job takes on a fleet and how many bytes it sends, without training.",
    "papers": "Reproduce a table of a paper and write its page.",
    "strategies": "List the strategies that a job can name.",
    "data": "Show how a dataset is split over devices.",
    "agent": "Run the agent of a device.",
    "edge": "Run the edge server of a site.",
    "fleet": "Manage the members of a fleet and their credentials; show the state of its devices.",
    "coordinator": "Run the coordinator of a fleet.",
    "broker": "Run an MQTT broker for development.",
}
"""The summary of each command in `sojourn --help`, which does not load the commands."""


class LazyCommands(TyperGroup):
    """Lists commands from a table and loads only the one that is called."""

    def list_commands(self, ctx: typer.Context) -> list[str]:  # type: ignore[override]  # noqa: ARG002
        """The installed commands, in the order of the table."""
        found = {each.name for each in entry_points(group=GROUP)}
        return [*(name for name in SUMMARIES if name in found), *sorted(found - SUMMARIES.keys())]

    def get_command(self, ctx: typer.Context, cmd_name: str) -> TyperCommand | TyperGroup | None:  # type: ignore[override]
        """The command if it was loaded, otherwise a placeholder with its summary."""
        if cmd_name in self.commands:
            return self.commands[cmd_name]  # type: ignore[return-value]
        if cmd_name not in self.list_commands(ctx):
            return None
        return TyperCommand(cmd_name, help=SUMMARIES.get(cmd_name, ""))

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
    version: Annotated[  # handled by its callback
        bool,
        typer.Option(
            "--version",
            callback=_version,
            is_eager=True,
            help="Print the version of Sojourn and of its wire protocol.",
        ),
    ] = False,
) -> None:
    """Federated learning on edge devices over MQTT: the model travels; the data stays."""


def main() -> None:
    """Run the command line; print Sojourn's errors as one line, without a traceback."""
    try:
        app()
    except SojournError as error:
        sys.exit(report_error(error))
    except ModuleNotFoundError as error:
        extra = extra_of(error.name or "")
        if extra is None:
            raise
        sys.exit(report_error(MachineError(f"{error.name} is not installed: {install(extra)}")))
    except KeyboardInterrupt:
        sys.exit(INTERRUPTED)


if __name__ == "__main__":
    main()
