"""`sojourn edge`."""

from __future__ import annotations

import sys
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from sojourn import logs, options
from sojourn.settings import broker_flags, read_settings, store_folder

if TYPE_CHECKING:
    from hierarchy.edge.home_assistant.mirror import HomeMirror
    from hierarchy.settings import EdgeSettings
    from sojourn.node.driver import Driver
    from sojourn.notify import Notifier

app = typer.Typer(add_completion=False, no_args_is_help=True, help="Run the edge server of a site.")


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
    metrics_port: options.MetricsPort = None,
    log_format: options.LogFormat = None,
    verbose: options.Verbose = False,
) -> None:
    """Lead models along the devices of a site until told to stop."""
    from hierarchy.metrics import metrics_of
    from hierarchy.settings import EdgeSettings
    from sojourn.node.driver import run_until_signal
    from sojourn.notify import Notifier

    flags = {
        "name": name,
        "fleet": fleet,
        "broker": broker_flags(broker, username, password_file),
        "cloud": cloud,
        "cloud_broker": broker_flags(cloud_broker),
        "store": store,
        "metrics_port": metrics_port,
        "log_format": log_format,
    }
    logs.set_up(verbose=verbose, log_format=log_format, role="edge")
    settings = read_settings(file, flags, EdgeSettings)
    logs.set_up(verbose=verbose, log_format=settings.log_format, role="edge", node=settings.name)
    notifier = Notifier.from_environment()
    driver = assemble(settings, notifier)
    with metrics_of(settings, driver):
        run_until_signal(driver, notifier)


@app.command()
def init(
    bundle: Annotated[Path | None, typer.Option(metavar="FILE", help="From `sojourn fleet add-edge NAME`.")] = None,
    name: options.Name = None,
    fleet: Annotated[str, typer.Option(help="Without --bundle: the fleet's name.")] = "sojourn",
    cloud_broker: Annotated[
        str | None, typer.Option(metavar="HOST[:PORT]", help="Without --bundle: the coordinator's broker.")
    ] = None,
    cloud_password_file: Annotated[str | None, typer.Option(metavar="FILE", help="Without --bundle.")] = None,
    cloud_ca_file: Annotated[str | None, typer.Option(metavar="FILE", help="Without --bundle: its CA.")] = None,
    shared_broker: Annotated[
        bool, typer.Option("--shared-broker", help="Devices use the coordinator's broker; none of this site's own.")
    ] = False,
    host: Annotated[
        list[str] | None, typer.Option(help="Name or address at which devices reach this machine; may be repeated.")
    ] = None,
    certificate_port: options.CertificatePort = 8884,
    password_port: options.PasswordPort = 0,
    local_port: options.LocalPort = 1883,
    fleet_folder: Annotated[
        Path,
        typer.Option(
            metavar="FOLDER",
            help="For the site's keys and members; edge.toml is written next to it.",
            envvar="SOJOURN_FLEET_FOLDER",
        ),
    ] = Path("/etc/sojourn/fleet"),
) -> None:
    """Make the settings of an edge server, and the broker's configuration, keys and access rules for its site."""
    from hierarchy import setup
    from sojourn.brokers.configuration import CONF, Listeners

    if bundle:
        joined = setup.from_bundle(bundle)
    else:
        name = name or _asked("The edge server's name", "--bundle or --name")
        cloud_broker = cloud_broker or _asked("The coordinator's broker", "--cloud-broker")
        flags = broker_flags(cloud_broker, None, cloud_password_file)
        joined = setup.by_hand(name, fleet, flags, cloud_ca_file)
    if shared_broker:
        path = setup.write(fleet_folder.parent, joined.settings, joined.files)
    else:
        hosts = host or [_asked("Name or address at which devices reach this machine", "--host or --shared-broker")]
        listeners = Listeners(password=password_port, certificate=certificate_port, local=local_port)
        path = setup.with_own_broker(joined, fleet_folder, hosts, listeners)
        typer.echo(f"broker: start it with mosquitto -c {fleet_folder / 'broker' / CONF}")
        typer.echo(f"devices: sojourn fleet add-device NAME --fleet-folder {fleet_folder}")
    typer.echo(f"edge server: sojourn edge run {path}")


def _asked(question: str, flag: str) -> str:
    from sojourn.errors import ConfigError

    if not sys.stdin.isatty():
        raise ConfigError(f"{flag} is missing")
    return str(typer.prompt(question))


def assemble(settings: EdgeSettings, notifier: Notifier | None = None) -> Driver:
    """An edge server on its brokers and its folder; a full disk is no hang to the `notifier`."""
    from hierarchy.edge.gate import perform
    from hierarchy.edge.server import EdgeServer
    from sojourn.links.mqtt import MqttLink
    from sojourn.node.driver import Driver
    from sojourn.node.node import Node
    from sojourn.node.quotas import SpeakingRate
    from sojourn.node.workers import ThreadWorkers
    from sojourn.notify import Notifier
    from sojourn.store.journal import FolderStore

    home = _home_mirror(settings)
    machine = EdgeServer(settings.name, settings.cloud, home)
    site = cloud = MqttLink(settings.broker, settings.name)
    if settings.cloud_broker not in (None, settings.broker):
        cloud = MqttLink(settings.cloud_broker, settings.name)
    store = FolderStore(store_folder(settings.store, settings.fleet, settings.name))
    workers = ThreadWorkers(lambda work: perform(work, store.blobs))
    pause = (notifier or Notifier()).nap
    node = Node(
        settings.fleet, machine, store, {"device": site, "cloud": cloud}, workers, pause=pause, rate=SpeakingRate()
    )
    if home:
        node.overhear("device", home.overhears)
    return Driver(node)


def _home_mirror(settings: EdgeSettings) -> HomeMirror | None:
    if not settings.home_assistant.discovery:
        return None
    from hierarchy.edge.home_assistant.mirror import HomeMirror

    return HomeMirror(settings.fleet, settings.name, settings.home_assistant.prefix)
