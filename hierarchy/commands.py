"""`sojourn edge`."""

from __future__ import annotations

from typing import TYPE_CHECKING, Annotated

import typer

from sojourn import logs, options
from sojourn.overrides import broker_flags, read_settings, store_folder

if TYPE_CHECKING:
    from hierarchy.settings import EdgeSettings
    from sojourn.driver import Driver

app = typer.Typer(no_args_is_help=True, help="Run the edge server of a site.")


@app.callback()
def edge() -> None:
    """Run the edge server of a site."""


@app.command()
def run(
    file: options.File = None,
    name: options.Name = None,
    fleet: options.Fleet = None,
    broker: options.Broker = None,
    username: options.Username = None,
    password_file: options.PasswordFile = None,
    cloud: Annotated[str | None, typer.Option(help="The coordinator's name.", show_default="cloud")] = None,
    cloud_broker: Annotated[
        str | None,
        typer.Option(metavar="HOST[:PORT]", help="The coordinator's broker.", show_default="the site's own"),
    ] = None,
    store: options.Store = None,
    verbose: options.Verbose = False,
) -> None:
    """Lead models along the devices of a site until told to stop."""
    from hierarchy.settings import EdgeSettings
    from sojourn.driver import run_until_signal

    flags = {
        "name": name,
        "fleet": fleet,
        "broker": broker_flags(broker, username, password_file),
        "cloud": cloud,
        "cloud_broker": broker_flags(cloud_broker),
        "store": store,
    }
    settings = read_settings(file, flags, EdgeSettings)
    logs.set_up(verbose=verbose)
    run_until_signal(assemble(settings))


def assemble(settings: EdgeSettings) -> Driver:
    """An edge server on its brokers and its folder."""
    from hierarchy.edge_server import EdgeServer
    from hierarchy.gate import perform
    from sojourn.driver import Driver
    from sojourn.mqtt import MqttLink
    from sojourn.node import Node
    from sojourn.store import FolderStore
    from sojourn.workers import ThreadWorkers

    machine = EdgeServer(settings.name, settings.cloud)
    site = cloud = MqttLink(settings.broker, settings.name)
    if settings.cloud_broker not in (None, settings.broker):
        cloud = MqttLink(settings.cloud_broker, settings.name)
    store = FolderStore(store_folder(settings.store, settings.fleet, settings.name))
    workers = ThreadWorkers(lambda work: perform(work, store.blobs))
    return Driver(Node(settings.fleet, machine, store, {"device": site, "cloud": cloud}, workers))
