"""`sojourn coordinator`."""

from __future__ import annotations

from typing import TYPE_CHECKING, Annotated

import typer

from sojourn import logs, options
from sojourn.extras import need
from sojourn.overrides import broker_flags, read_settings, store_folder

if TYPE_CHECKING:
    from coordinator.settings import CoordinatorSettings
    from sojourn.driver import Driver

app = typer.Typer(no_args_is_help=True, help="Run the coordinator of a fleet.")


@app.callback()
def coordinator() -> None:
    """Run the coordinator of a fleet."""


@app.command()
def run(
    file: options.File = None,
    name: Annotated[str | None, typer.Option(help="The coordinator's own name.", show_default="cloud")] = None,
    fleet: options.Fleet = None,
    broker: options.Broker = None,
    username: options.Username = None,
    password_file: options.PasswordFile = None,
    operator: Annotated[
        list[str] | None,
        typer.Option(help="Who may give jobs; may be repeated.", show_default="operator"),
    ] = None,
    store: options.Store = None,
    verbose: options.Verbose = False,
) -> None:
    """Take jobs and have the sites of a fleet do them, until told to stop."""
    from coordinator.settings import CoordinatorSettings
    from sojourn.driver import run_until_signal

    need("cloud", "a coordinator")
    flags = {
        "name": name,
        "fleet": fleet,
        "broker": broker_flags(broker, username, password_file),
        "operators": operator or None,
        "store": store,
    }
    settings = read_settings(file, flags, CoordinatorSettings)
    logs.set_up(verbose=verbose)
    run_until_signal(assemble(settings))


def assemble(settings: CoordinatorSettings) -> Driver:
    """A coordinator on its broker, its folder and its workbench."""
    from coordinator.bench import Bench
    from coordinator.coordinator import Coordinator
    from sojourn.driver import Driver
    from sojourn.mqtt import MqttLink
    from sojourn.node import Node
    from sojourn.store import FolderStore
    from sojourn.workers import ThreadWorkers

    machine = Coordinator(settings.name, frozenset(settings.operators))
    link = MqttLink(settings.broker, settings.name)
    folder = store_folder(settings.store, settings.fleet, settings.name)
    store = FolderStore(folder)
    workers = ThreadWorkers(Bench(store.blobs, folder / "blobs"))
    return Driver(Node(settings.fleet, machine, store, {"edge": link, "cloud": link}, workers))
