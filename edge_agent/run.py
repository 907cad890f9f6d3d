"""The running agent: `python -m edge_agent.run FLAGS_AS_JSON [FILE]`, without the command line's libraries."""

from __future__ import annotations

import logging
import os
import platform
import sys
import threading
from collections.abc import Callable, Iterator
from contextlib import AbstractContextManager, ExitStack, closing, contextmanager, nullcontext
from importlib.metadata import PackageNotFoundError, version
from pathlib import Path

import msgspec

from edge_agent.agent import Agent
from edge_agent.certificate_renewal import Renewals
from edge_agent.inference.endpoint_process import EndpointProcess
from edge_agent.inference.usage import ErrorToken
from edge_agent.inference.usage_listener import UsageListener
from edge_agent.limits import Limits
from edge_agent.mandates import Mandates, describe_trusted_keys
from edge_agent.releases.installing import Installer
from edge_agent.releases.machine import ReleaseMachine
from edge_agent.releases.orders import Install, Withdraw
from edge_agent.settings import AgentSettings
from edge_agent.training.custom_objectives import check
from edge_agent.training.data_watch import DataWatch
from edge_agent.training.messages import Train, Warm
from edge_agent.training.objectives import NAMES
from edge_agent.training.process import TrainingProcess
from edge_agent.training.sandbox import exposed
from edge_agent.visits import Sign
from sojourn import __version__, logs
from sojourn.data.source import describe
from sojourn.errors import SojournError
from sojourn.links.mqtt import MqttLink
from sojourn.links.settings import TlsSettings
from sojourn.node.driver import Driver, run_until_signal
from sojourn.node.machine import LocalEvent, WorkEvent
from sojourn.node.node import Node
from sojourn.node.workers import ThreadWorkers
from sojourn.notify import Notifier
from sojourn.protocol.data_summary import DataSurvey
from sojourn.protocol.limits import LABEL, MAX_BYTES, TEXT
from sojourn.protocol.task import ABILITIES, MANDATE
from sojourn.protocol.wire import Offer
from sojourn.rate_limiter import RateLimiter
from sojourn.settings import read_settings, store_folder
from sojourn.store.journal import FolderStore


class DeviceWorkers:
    """Workers (`sojourn.node.workers`) that pass each work item to the training process or to the installer."""

    def __init__(self, training: TrainingProcess, installer: Installer) -> None:
        self._training, self._installer = training, installer
        self._installing = ThreadWorkers(installer)
        self._lines: dict[str, str] = {}

    def start(
        self,
        key: str,
        work: Warm | Train | Install | Withdraw,
        report: Callable[[WorkEvent], None],
    ) -> None:
        """Start the work; return immediately."""
        if isinstance(work, Install | Withdraw):
            self._lines[key] = work.line

            def ended(event: WorkEvent) -> None:
                self._lines.pop(key, None)
                report(event)

            self._installer.expect(work)
            self._installing.start(key, work, ended)
        else:
            self._training.start(key, work, report)

    def stop(self, key: str) -> None:
        """Cancel the work: a release that is being tried is not served."""
        if line := self._lines.pop(key, None):
            self._installing.stop(key)
            self._installer.drop(line)
        else:
            self._training.stop(key)

    def close(self) -> None:
        """Cancel all work and stop the workers."""
        for line in set(self._lines.values()):
            self._installer.drop(line)
        self._installing.close()
        self._training.close()


def metrics_of(settings: AgentSettings, driver: Driver) -> AbstractContextManager[None]:
    """Return a context that serves Prometheus metrics if a port is set."""
    if not settings.metrics_port:
        return nullcontext()
    from edge_agent.prometheus_metrics import AgentMetrics  # noqa: PLC0415  # only if a port is set
    from sojourn.metrics.serving import NodeMetrics, metrics_served  # noqa: PLC0415

    agent: Agent = driver.node.machine  # type: ignore[assignment]  # `assemble` created it
    metrics = AgentMetrics(agent, agent.visits.objection)
    driver.node.on_record(metrics.recorded)
    store = store_folder(settings.store, settings.fleet, settings.name)
    sources = NodeMetrics(driver, lambda: agent.visits.unanswered), metrics
    return metrics_served(settings.metrics_port, driver, sources, store, {"edge": settings.broker})


# `sojourn agent run` replaces itself with this process, so that typer and rich do not stay in a small device's memory.

log = logging.getLogger("sojourn")


def offer(settings: AgentSettings, threads: int) -> Offer:
    """Return the description of this device for edge servers and the coordinator."""
    memory = os.sysconf("SC_PAGE_SIZE") * os.sysconf("SC_PHYS_PAGES")
    objectives, data = (*NAMES, *settings.objectives), describe(settings.data)
    return Offer(
        __version__,
        platform.machine()[:LABEL],
        _runtime()[:LABEL],
        threads,
        min(memory, MAX_BYTES),
        objectives,
        data[:TEXT],
        shares=settings.shares,
        abilities=ABILITIES,
    )


def assemble(settings: AgentSettings, notifier: Notifier | None = None) -> tuple[Driver, Callable[[], DataWatch]]:
    """Build the agent's driver with its link, store and workers, and a function that starts watching the data.

    While the agent waits for space on a full disk, it keeps notifying systemd's watchdog.
    """
    modules = check(settings.objectives)
    threads = settings.threads or os.cpu_count() or 1
    about = offer(settings, threads)
    log.info("%s: data path: %s", settings.name, settings.data.path)
    folder = store_folder(settings.store, settings.fleet, settings.name)
    limits = Limits(settings.limits, folder)
    releases = ReleaseMachine(settings.fleet, _release_key(settings))
    mandates = mandates_of(settings)
    if mandates.demanded:
        about = msgspec.structs.replace(about, abilities=(*ABILITIES, MANDATE))
    log.info("%s: mandates: %s", settings.name, describe_trusted_keys(mandates.keys))
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
        log.warning(
            "training can read the secret %s, which is in the readable folder %s: move one of them", secret, root
        )
    pause = (notifier or Notifier()).nap
    installer = Installer(folder, folder / "blobs", settings.data, readable=settings.limits.readable)
    workers = DeviceWorkers(training, installer)
    driver = Driver(Node(settings.fleet, agent, store, {"edge": link}, workers, pause=pause, rate=RateLimiter()))

    def notify(found: DataSurvey) -> None:
        driver.report(LocalEvent(found))
        # Anomaly thresholds are measured on the data; a thread does it so that the watch does not wait.
        threading.Thread(target=installer.refresh_thresholds, name="thresholds", daemon=True).start()

    def watch() -> DataWatch:
        return DataWatch(training, settings.data, notify, objection=limits.objection)

    return driver, watch


def secrets_of(settings: AgentSettings) -> list[Path]:
    """Return the agent's secret files, which training must not read."""
    tls = settings.broker.tls
    files = [
        settings.broker.password_file,
        *([tls.key_file, tls.certificate_file] if isinstance(tls, TlsSettings) else []),
    ]
    store = store_folder(settings.store, settings.fleet, settings.name)
    identity = settings.identity.folder
    return [store / "journal.db", *(Path(file).expanduser() for file in [*files, identity] if file)]


@contextmanager
def serving(settings: AgentSettings, driver: Driver) -> Iterator[None]:
    """While in this context: collect usage reports of local programs, and run the HTTP endpoint if a port is set."""
    folder = store_folder(settings.store, settings.fleet, settings.name)
    with ExitStack() as parts:
        if settings.release.key_file is not None:
            listener = UsageListener(
                folder, lambda usage: driver.report(LocalEvent(usage)), pause=settings.release.report_seconds
            )
            parts.callback(listener.close)
        if settings.release.endpoint_port is not None:
            ErrorToken.read(settings.release.error_token_file)  # fails now if the token is invalid
            endpoint = EndpointProcess(folder, settings.release.endpoint_port, settings.release.error_token_file)
            endpoint.start()
            parts.callback(endpoint.close)
        yield


@contextmanager
def renewing(settings: AgentSettings) -> Iterator[None]:
    """While in this context: renew the device's certificate if it joined with a token."""
    if settings.identity.folder is None:
        yield
        return
    with closing(Renewals(Path(settings.identity.folder))):
        yield


def main(flags: str, file: str | None = None) -> int:
    """Run until a signal stops the agent; return the exit code."""
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
        return logs.report_error(error)
    return 0


def _release_key(settings: AgentSettings) -> str:
    """Return the public key that release orders must be signed with; empty if no releases are served."""
    if settings.release.key_file is None:
        return ""
    from sojourn.protocol.signing import read_public  # noqa: PLC0415  # saves cryptography's memory if no releases are served

    return read_public(settings.release.key_file)


def mandates_of(settings: AgentSettings) -> Mandates:
    """Return the trusted operators from the settings; without keys, no mandate is required."""
    if settings.mandate.keys_file is None:
        return Mandates()
    from sojourn.protocol.signing import read_publics  # noqa: PLC0415  # saves cryptography's memory without keys

    sites = frozenset({settings.mandate.site} if settings.mandate.site else settings.edges)
    return Mandates(settings.fleet, read_publics(settings.mandate.keys_file), sites)


def _signing(settings: AgentSettings) -> Sign | None:
    """Return the function that signs results; None if the device has no key."""
    if settings.identity.folder is None:
        return None
    from edge_agent.result_signing import visit_signer  # noqa: PLC0415  # saves cryptography's memory without keys

    return visit_signer(settings.name, Path(settings.identity.folder))


def _runtime() -> str:
    """Return the version of onnxruntime without importing it."""
    try:
        return f"onnxruntime {version('onnxruntime')}"
    except PackageNotFoundError:
        return "none"


if __name__ == "__main__":
    sys.exit(main(*sys.argv[1:]))
