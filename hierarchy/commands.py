"""`sojourn edge`."""

from __future__ import annotations

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
    cloud: Annotated[str | None, typer.Option(help="Name of the coordinator.", show_default="cloud")] = None,
    cloud_broker: Annotated[
        str | None,
        typer.Option(metavar="HOST[:PORT]", help="Broker of the coordinator.", show_default="the site's broker"),
    ] = None,
    store: options.Store = None,
    metrics_port: options.MetricsPort = None,
    log_format: options.LogFormat = None,
    verbose: options.Verbose = False,
) -> None:
    """Lead models along the devices of a site until interrupted."""
    from hierarchy.edge.site_metrics import metrics_of
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
    bundle: Annotated[
        Path | None, typer.Option(metavar="FILE", help="Bundle from `sojourn fleet add-edge NAME`.")
    ] = None,
    name: options.Name = None,
    fleet: Annotated[str, typer.Option(help="Name of the fleet, without --bundle.")] = "sojourn",
    cloud_broker: Annotated[
        str | None, typer.Option(metavar="HOST[:PORT]", help="Broker of the coordinator, without --bundle.")
    ] = None,
    cloud_password_file: Annotated[
        str | None, typer.Option(metavar="FILE", help="Password for the coordinator's broker, without --bundle.")
    ] = None,
    cloud_ca_file: Annotated[
        str | None, typer.Option(metavar="FILE", help="CA of the coordinator's broker, without --bundle.")
    ] = None,
    shared_broker: Annotated[
        bool, typer.Option("--shared-broker", help="Devices use the coordinator's broker; the site has no broker.")
    ] = False,
    host: Annotated[
        list[str] | None, typer.Option(help="Name or address at which devices reach this machine. Can be repeated.")
    ] = None,
    certificate_port: options.CertificatePort = 8884,
    password_port: options.PasswordPort = 0,
    local_port: options.LocalPort = 1883,
    fleet_folder: Annotated[
        Path,
        typer.Option(
            metavar="FOLDER",
            help="Folder for the site's keys and members; edge.toml is written next to it.",
            envvar="SOJOURN_FLEET_FOLDER",
        ),
    ] = Path("/etc/sojourn/fleet"),
) -> None:
    """Write the settings of an edge server, and the broker configuration, keys and access rules of its site."""
    from hierarchy import setup
    from sojourn.brokers.configuration import CONF, Listeners

    if bundle:
        joined = setup.from_bundle(bundle)
    else:
        name = name or options.ask("Name of the edge server", "--bundle or --name")
        cloud_broker = cloud_broker or options.ask("Broker of the coordinator", "--cloud-broker")
        flags = broker_flags(cloud_broker, None, cloud_password_file)
        joined = setup.by_hand(name, fleet, flags, cloud_ca_file)
    if shared_broker:
        path = setup.write(fleet_folder.parent, joined.settings, joined.files)
    else:
        question = "Name or address at which devices reach this machine"
        hosts = host or [options.ask(question, "--host or --shared-broker")]
        listeners = Listeners(password=password_port, certificate=certificate_port, local=local_port)
        path = setup.with_site_broker(joined, fleet_folder, hosts, listeners)
        typer.echo(f"broker: start it with mosquitto -c {fleet_folder / 'broker' / CONF}")
        typer.echo(f"devices: sojourn fleet add-device NAME --fleet-folder {fleet_folder}")
    typer.echo(f"edge server: sojourn edge run {path}")


def assemble(settings: EdgeSettings, notifier: Notifier | None = None) -> Driver:
    """Return an edge server on its brokers and its store; `notifier` feeds the watchdog while the disk is full."""
    from hierarchy.edge.gate import perform
    from hierarchy.edge.server import EdgeServer
    from sojourn.links.mqtt import MqttLink
    from sojourn.node.driver import Driver
    from sojourn.node.node import Node
    from sojourn.node.workers import ThreadWorkers
    from sojourn.notify import Notifier
    from sojourn.rate_limiter import RateLimiter
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
        settings.fleet, machine, store, {"device": site, "cloud": cloud}, workers, pause=pause, rate=RateLimiter()
    )
    if home:
        node.reception.listen_to("device", home.extra_topics)
    return Driver(node)


def _home_mirror(settings: EdgeSettings) -> HomeMirror | None:
    if not settings.home_assistant.discovery:
        return None
    from hierarchy.edge.home_assistant.mirror import HomeMirror

    return HomeMirror(settings.fleet, settings.name, settings.home_assistant.prefix)
