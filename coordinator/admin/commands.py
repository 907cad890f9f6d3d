"""The commands of `sojourn coordinator`."""

from __future__ import annotations

import logging
import time
from collections.abc import Iterator
from contextlib import AbstractContextManager, contextmanager, nullcontext
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from sojourn import logs, options
from sojourn.errors import require_extra
from sojourn.settings import broker_flags, read_settings, store_folder

if TYPE_CHECKING:
    from coordinator.admin.settings import CoordinatorSettings
    from coordinator.machine.coordinator import Coordinator
    from sojourn.node.driver import Driver
    from sojourn.notify import Notifier


def metrics_of(settings: CoordinatorSettings, driver: Driver) -> AbstractContextManager[None]:
    """Serve this coordinator's Prometheus metrics while the context is open, if a port is set."""
    if not settings.metrics_port:
        return nullcontext()
    from sojourn.metrics.serving import NodeMetrics, metrics_served  # imported only if metrics are enabled

    machine: Coordinator = driver.node.machine  # type: ignore[assignment]  # assemble() made it
    fleet, runs, rollouts = machine.metrics()
    driver.node.on_record(lambda record: runs.recorded(record, time.time()))
    sources = NodeMetrics(driver, lambda: machine.unanswered), fleet, runs, rollouts
    store = store_folder(settings.store, settings.fleet, settings.name)
    return metrics_served(settings.metrics_port, driver, sources, store, {"edge": settings.broker})


TRACKING_STOP_TIMEOUT = 20.0
"""The seconds that tracking has to write its queue when the coordinator stops."""
Settings = Annotated[str | None, typer.Option(metavar="FILE", help="The coordinator's settings file.")]
log = logging.getLogger("sojourn")
app = typer.Typer(add_completion=False, no_args_is_help=True, help="Run the coordinator of a fleet.")


@app.callback()
def coordinator() -> None:
    """Run the coordinator of a fleet."""


@app.command()
def run(
    file: options.File = None,
    name: Annotated[str | None, typer.Option(help="The coordinator's name.", show_default="cloud")] = None,
    fleet: options.Fleet = None,
    broker: options.Broker = None,
    username: options.Username = None,
    password_file: options.PasswordFile = None,
    operator: Annotated[
        list[str] | None,
        typer.Option(help="An operator who may submit jobs; may be repeated.", show_default="operator"),
    ] = None,
    release_key: Annotated[
        str | None, typer.Option(metavar="FILE", help="The file with the public key that verifies releases.")
    ] = None,
    operators_file: Annotated[
        str | None,
        typer.Option(metavar="FILE", help="Operators' keys and roles: only requests that they signed are accepted."),
    ] = None,
    mandate_keys: Annotated[
        str | None, typer.Option(metavar="FILE", help="Keys of operators: a job waits until one of them has signed it.")
    ] = None,
    store: options.Store = None,
    metrics_port: options.MetricsPort = None,
    log_format: options.LogFormat = None,
    verbose: options.Verbose = False,
) -> None:
    """Run a coordinator, which accepts jobs and runs them on the sites of a fleet, until it is stopped."""
    from coordinator.admin.settings import CoordinatorSettings
    from sojourn.node.driver import run_until_signal
    from sojourn.notify import Notifier

    require_extra("cloud", "a coordinator")
    flags = {
        "name": name,
        "fleet": fleet,
        "broker": broker_flags(broker, username, password_file),
        "operators": operator or None,
        "release_key_file": release_key,
        "operators_file": operators_file,
        "mandate_keys_file": mandate_keys,
        "store": store,
        "metrics_port": metrics_port,
        "log_format": log_format,
    }
    logs.set_up(verbose=verbose, log_format=log_format, role="coordinator")
    settings = read_settings(file, flags, CoordinatorSettings)
    logs.set_up(verbose=verbose, log_format=settings.log_format, role="coordinator", node=settings.name)
    notifier = Notifier.from_environment()
    driver = assemble(settings, notifier)
    with metrics_of(settings, driver), tracked(driver, settings):
        run_until_signal(driver, notifier)


@app.command()
def backup(
    file: Annotated[Path, typer.Argument(metavar="FILE", help="The backup to write.")],
    settings: Settings = None,
    store: options.Store = None,
) -> None:
    """Copy the journal, and the models that it refers to, into one file; the coordinator may keep running."""
    from coordinator.admin.backup import back_up

    about = back_up(_store(settings, store), file)
    typer.echo(f"{file}: {file.stat().st_size} bytes, {about.blobs} blobs, as of {about.made}")


@app.command()
def restore(
    file: Annotated[Path, typer.Argument(metavar="FILE", help="A backup.")],
    settings: Settings = None,
    store: options.Store = None,
    force: Annotated[
        bool,
        typer.Option("--force", help="Replace a store that is not empty; its old files are kept in a folder inside."),
    ] = False,
) -> None:
    """Restore a backup into the store of a stopped coordinator, which continues from it when it starts."""
    from coordinator.admin.backup import restore as put_back

    folder = _store(settings, store)
    about = put_back(file, folder, force=force)
    typer.echo(f"{folder}: {about.blobs} blobs, as of {about.made}")


def _store(file: str | None, store: str | None) -> Path:
    from coordinator.admin.settings import CoordinatorSettings

    settings = read_settings(file, {"store": store}, CoordinatorSettings)
    return store_folder(settings.store, settings.fleet, settings.name)


def assemble(settings: CoordinatorSettings, notifier: Notifier | None = None) -> Driver:
    """Build a coordinator with its broker link, its store and its worker.

    While it waits for a full disk it keeps notifying systemd's watchdog.
    """
    from coordinator.admin.settings import OperatorRoles, guarded_by
    from coordinator.jobs.missing_inputs import missing_input
    from coordinator.machine.authorization import Trust
    from coordinator.machine.coordinator import Coordinator
    from coordinator.machine.work import CoordinatorWorker
    from coordinator.rounds.device_signatures import NodeKeys
    from sojourn.links.mqtt import MqttLink
    from sojourn.node.driver import Driver
    from sojourn.node.node import Node
    from sojourn.node.workers import ThreadWorkers
    from sojourn.notify import Notifier
    from sojourn.protocol.signing import read_public, read_publics
    from sojourn.rate_limiter import RateLimiter
    from sojourn.store.journal import FolderStore

    key = read_public(settings.release_key_file) if settings.release_key_file else ""
    mandate_keys = read_publics(settings.mandate_keys_file) if settings.mandate_keys_file else {}
    roles = OperatorRoles(settings.operators_file) if settings.operators_file else None
    for line in guarded_by(roles, mandate_keys):
        log.info("%s: %s", settings.name, line)
    keys = NodeKeys(Path(settings.node_keys_file) if settings.node_keys_file else None, settings.signed_hops)
    if not settings.node_keys_file or settings.signed_hops == "off":
        why = 'signed_hops = "off"' if settings.signed_hops == "off" else "no node_keys_file"
        log.info("%s: signatures of devices are not verified (%s in its settings)", settings.name, why)
    machine = Coordinator(
        settings.name,
        frozenset(settings.operators),
        fleet=settings.fleet,
        trust=Trust(key, mandate_keys, roles, keys.of),
        keep=settings.keep,
        wall=time.time() - time.monotonic(),
        check_job=missing_input,
    )
    link = MqttLink(settings.broker, settings.name)
    folder = store_folder(settings.store, settings.fleet, settings.name)
    store = FolderStore(folder)
    workers = ThreadWorkers(CoordinatorWorker(store.blobs, folder / "blobs", keys=keys), reports=True)
    pause = (notifier or Notifier()).nap
    node = Node(settings.fleet, machine, store, {"edge": link, "cloud": link}, workers, pause=pause, rate=RateLimiter())
    return Driver(node)


@contextmanager
def tracked(driver: Driver, settings: CoordinatorSettings) -> Iterator[None]:
    """Track rounds while the context is open, if tracking is enabled."""
    from coordinator.machine.coordinator import Coordinator
    from coordinator.tracking.tracker import LiveJobs, Tracker

    tracking, machine = settings.tracking.resolved("tracking"), driver.node.machine
    if not tracking.on or not isinstance(machine, Coordinator):
        yield
        return
    tracking.need()
    tracker = Tracker(tracking)
    folder = store_folder(settings.store, settings.fleet, settings.name)
    jobs = LiveJobs(settings.fleet, settings.name, str(folder), tracker.put)
    driver.node.on_record(lambda record: jobs.wrote(record, machine.state))
    driver.call(lambda _now: jobs.start(machine.state))
    try:
        yield
    finally:
        tracker.close(TRACKING_STOP_TIMEOUT)
