"""The running agent: `python -m edge_agent.run <flags as JSON> [file]`, without the command line's libraries.

`sojourn agent run` becomes this process: what is parsed with typer and rich must not stay in a small device's memory.
"""

from __future__ import annotations

import logging
import os
import platform
import sys
import threading
from contextlib import ExitStack, closing, contextmanager
from importlib.metadata import PackageNotFoundError, version
from pathlib import Path
from typing import TYPE_CHECKING

import msgspec

from edge_agent.agent import Agent
from edge_agent.inference.endpoint_process import EndpointProcess
from edge_agent.inference.reporters import ErrorToken
from edge_agent.inference.usage_listener import UsageListener
from edge_agent.joining.renewals import Renewals
from edge_agent.limits.rules import Limits
from edge_agent.mandates import Mandates, whose_word
from edge_agent.metrics import metrics_of
from edge_agent.releases.installing import Installer
from edge_agent.releases.machine import ReleaseMachine
from edge_agent.settings import AgentSettings
from edge_agent.training.cage import exposed
from edge_agent.training.data_watch import DataWatch
from edge_agent.training.objectives import NAMES
from edge_agent.training.own_objectives import check
from edge_agent.training.process import TrainingProcess
from edge_agent.workers import DeviceWorkers
from sojourn import __version__, logs
from sojourn.data.source import describe
from sojourn.errors import SojournError
from sojourn.links.mqtt import MqttLink
from sojourn.links.settings import TlsSettings
from sojourn.node.driver import Driver, run_until_signal
from sojourn.node.machine import Told
from sojourn.node.node import Node
from sojourn.node.quotas import SpeakingRate
from sojourn.notify import Notifier
from sojourn.protocol.abilities import ABILITIES, MANDATE
from sojourn.protocol.limits import LABEL, MOST_BYTES, TEXT
from sojourn.protocol.wire import Offer
from sojourn.settings import read_settings, store_folder
from sojourn.store.journal import FolderStore

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator

    from edge_agent.visits import Sign
    from sojourn.data.data_survey import DataSurvey

log = logging.getLogger("sojourn")


def offer(settings: AgentSettings, threads: int) -> Offer:
    """What this device says of itself."""
    memory = os.sysconf("SC_PAGE_SIZE") * os.sysconf("SC_PHYS_PAGES")
    objectives, data = (*NAMES, *settings.objectives), describe(settings.data)
    return Offer(
        __version__,
        platform.machine()[:LABEL],
        _runtime()[:LABEL],
        threads,
        min(memory, MOST_BYTES),
        objectives,
        data[:TEXT],
        shares=settings.shares,
        abilities=ABILITIES,
    )


def assemble(settings: AgentSettings, notifier: Notifier | None = None) -> tuple[Driver, Callable[[], DataWatch]]:
    """An agent on its broker, its folder and its training process, and how to begin to watch its data.

    While it waits for a full disk it keeps telling systemd's watchdog that it is alive.
    """
    modules = check(settings.objectives)
    threads = settings.threads or os.cpu_count() or 1
    about = offer(settings, threads)
    log.info("%s: data: %s", settings.name, settings.data.path)
    folder = store_folder(settings.store, settings.fleet, settings.name)
    limits = Limits(settings.limits, folder)
    releases = ReleaseMachine(settings.fleet, _release_key(settings))
    mandates = mandates_of(settings)
    if mandates.demanded:
        about = msgspec.structs.replace(about, abilities=(*ABILITIES, MANDATE))
    log.info("%s: mandates: %s", settings.name, whose_word(mandates.keys))
    link = MqttLink(settings.broker, settings.name)
    store = FolderStore(folder)
    training = TrainingProcess(
        folder / "blobs",
        settings.data,
        threads=threads,
        idle_seconds=settings.idle_seconds,
        limits=limits,
        readable=modules,
    )
    agent = Agent(
        settings.name,
        about,
        edges=frozenset(settings.edges),
        objection=limits.objection,
        releases=releases,
        mandates=mandates,
        sign=_signing(settings),
        room=lambda needed: limits.room(needed, training.pid),
    )
    for secret, root in exposed(secrets_of(settings), [Path(settings.data.path), *map(Path, settings.limits.readable)]):
        log.warning("training can read %s, since it may read %s: move one of them", secret, root)
    pause = (notifier or Notifier()).nap
    installer = Installer(folder, folder / "blobs", settings.data, readable=settings.limits.readable)
    workers = DeviceWorkers(training, installer)
    driver = Driver(Node(settings.fleet, agent, store, {"edge": link}, workers, pause=pause, rate=SpeakingRate()))

    def tell(found: DataSurvey) -> None:
        driver.report(Told(found))
        # What is an anomaly is measured on the data; the watch itself must not wait for it.
        threading.Thread(target=installer.refresh_thresholds, name="thresholds", daemon=True).start()

    def watch() -> DataWatch:
        return DataWatch(training, settings.data, tell, objection=limits.objection)

    return driver, watch


def secrets_of(settings: AgentSettings) -> list[Path]:
    """The files of the agent that are nobody else's business, training's included."""
    tls = settings.broker.tls
    files = [
        settings.broker.password_file,
        *([tls.key_file, tls.certificate_file] if isinstance(tls, TlsSettings) else []),
    ]
    store = store_folder(settings.store, settings.fleet, settings.name)
    own = settings.identity.folder
    return [store / "journal.db", *(Path(file).expanduser() for file in [*files, own] if file)]


@contextmanager
def serving(settings: AgentSettings, driver: Driver) -> Iterator[None]:
    """While in this context: collect usage reports of local programs, and run the HTTP endpoint if a port is set."""
    folder = store_folder(settings.store, settings.fleet, settings.name)
    with ExitStack() as parts:
        if settings.release.key_file is not None:
            listener = UsageListener(
                folder, lambda usage: driver.report(Told(usage)), pause=settings.release.report_seconds
            )
            parts.callback(listener.close)
        if settings.release.endpoint_port is not None:
            ErrorToken.read(settings.release.error_token_file)  # one that is unfit should be known now
            endpoint = EndpointProcess(folder, settings.release.endpoint_port, settings.release.error_token_file)
            endpoint.start()
            parts.callback(endpoint.close)
        yield


@contextmanager
def renewing(settings: AgentSettings) -> Iterator[None]:
    """While in this context: have the device's certificate renewed, if it joined with a token."""
    if settings.identity.folder is None:
        yield
        return
    with closing(Renewals(Path(settings.identity.folder))):
        yield


def main(flags: str, file: str | None = None) -> int:
    """Run until told to stop; returns the exit code."""
    given = msgspec.json.decode(flags, type=dict)
    verbose = given.pop("verbose", False)
    try:
        logs.set_up(verbose=verbose, log_format=given.get("log_format"), role="agent")
        notifier = Notifier.from_environment()
        settings = read_settings(file, given, AgentSettings)
        logs.set_up(verbose=verbose, log_format=settings.log_format, role="agent", node=settings.name)
        driver, watch = assemble(settings, notifier)
        with metrics_of(settings, driver), serving(settings, driver), renewing(settings), closing(watch()):
            run_until_signal(driver, notifier)
    except SojournError as error:
        return logs.complain(error)
    return 0


def _release_key(settings: AgentSettings) -> str:
    """The public key of those whose releases are served here; empty for nobody."""
    if settings.release.key_file is None:
        return ""
    from sojourn.protocol.signing import read_public  # noqa: PLC0415  # cryptography's megabytes only where releases are served

    return read_public(settings.release.key_file)


def mandates_of(settings: AgentSettings) -> Mandates:
    """The operators whose word counts here; without keys nothing is demanded."""
    if settings.mandate.keys_file is None:
        return Mandates()
    from sojourn.protocol.signing import read_publics  # noqa: PLC0415  # cryptography's megabytes only where keys are

    sites = frozenset({settings.mandate.site} if settings.mandate.site else settings.edges)
    return Mandates(settings.fleet, read_publics(settings.mandate.keys_file), sites)


def _signing(settings: AgentSettings) -> Sign | None:
    """How results are signed here; None where the device has no key of its own."""
    if settings.identity.folder is None:
        return None
    from edge_agent.joining.signing import visit_signer  # noqa: PLC0415  # cryptography's megabytes only where there are keys

    return visit_signer(settings.name, Path(settings.identity.folder))


def _runtime() -> str:
    """The version of onnxruntime, without loading it."""
    try:
        return f"onnxruntime {version('onnxruntime')}"
    except PackageNotFoundError:
        return "none"


if __name__ == "__main__":
    sys.exit(main(*sys.argv[1:]))
