"""The page that Prometheus scrapes, and the machine's metrics; only this module imports the client library."""

from __future__ import annotations

import os
import threading
from collections.abc import Iterator, Mapping
from http import HTTPStatus
from pathlib import Path
from typing import Any

from prometheus_client import CONTENT_TYPE_LATEST, CollectorRegistry, ProcessCollector, generate_latest
from prometheus_client import Metric as Family
from prometheus_client.core import CounterMetricFamily, GaugeMetricFamily, HistogramMetricFamily
from prometheus_client.registry import Collector

from sojourn.errors import MachineError
from sojourn.links.settings import BrokerSettings, TlsSettings
from sojourn.local_http import LocalRequestHandler, LocalServer
from sojourn.metrics.catalogue import (
    BOUNDS,
    CERTIFICATE,
    DISK_FREE,
    DISK_SIZE,
    JOURNAL,
    RESPONDING,
    Distribution,
    Metric,
    Reading,
)
from sojourn.metrics.serving import Snapshots

# The metrics of the machine (disk, journal, certificates) are read on the scraper's thread, so that they are available
# even if the node waits for disk space.


class MachineMetrics:
    """Metrics of a node's store folder and of its links' certificates."""

    def __init__(self, store: Path, brokers: Mapping[str, BrokerSettings]) -> None:
        """`brokers`: the broker settings for each role of peers."""
        self._store = store
        self._certificates = [found for peer, broker in brokers.items() for found in _certificates(peer, broker)]

    def read(self, into: Reading) -> None:
        """Put the current values; omit those that cannot be read."""
        journal = self._store / "journal.db"
        into.put(JOURNAL, sum(map(_size, (journal, journal.with_name("journal.db-wal")))))
        try:
            disk = os.statvfs(self._store)
        except OSError:
            disk = None
        if disk is not None:
            into.put(DISK_FREE, disk.f_bavail * disk.f_frsize)
            into.put(DISK_SIZE, disk.f_blocks * disk.f_frsize)
        for each in self._certificates:
            if (ends := each.ends()) is not None:
                into.put(CERTIFICATE, ends, each.kind, each.peer)


class WatchedCertificate:
    """A certificate file, read again when it changes, because devices renew their certificates while running."""

    def __init__(self, kind: str, peer: str, file: str) -> None:
        self.kind, self.peer = kind, peer
        self._path = Path(file).expanduser()
        self._stamp = 0
        self._ends: float | None = None

    def ends(self) -> float | None:
        """Return the earliest expiry in seconds since 1970, or None if the file cannot be read."""
        try:
            stamp = self._path.stat().st_mtime_ns
            if stamp != self._stamp:
                self._ends, self._stamp = _first_end(self._path.read_bytes()), stamp
        except (OSError, ValueError):
            return None
        return self._ends


def _first_end(pem: bytes) -> float:
    from cryptography import x509  # noqa: PLC0415  # loads megabytes, so only if certificates are watched

    return min(each.not_valid_after_utc.timestamp() for each in x509.load_pem_x509_certificates(pem))


def _certificates(peer: str, broker: BrokerSettings) -> list[WatchedCertificate]:
    tls = broker.tls if isinstance(broker.tls, TlsSettings) else TlsSettings()
    files = {"own": tls.certificate_file, "authority": tls.ca_file}
    return [WatchedCertificate(kind, peer, file) for kind, file in files.items() if file]


def _size(path: Path) -> int:
    try:
        return path.stat().st_size
    except OSError:
        return 0


PATHS = ("/", "/metrics")


class NodeCollector(Collector):
    """A collector of a node's metrics for Prometheus' client library."""

    def __init__(self, snapshots: Snapshots, machine: MachineMetrics) -> None:
        self._snapshots = snapshots
        self._machine = machine

    def describe(self) -> list[Family]:
        """Return nothing, so that the registration does not query a node that is not running yet."""
        return []

    def collect(self) -> Iterator[Family]:
        """Yield the current values of all metrics."""
        reading, responding = self._snapshots.take()
        yield from _families(reading)
        yield from _families(self._machine_reading(responding))

    def _machine_reading(self, responding: bool) -> Reading:
        found = Reading()
        found.put(RESPONDING, float(responding))
        self._machine.read(found)
        return found


def _families(reading: Reading) -> Iterator[Family]:
    for metric, values in reading.values.items():
        yield _family(metric, values)


def _family(metric: Metric, values: dict[tuple[str, ...], float | Distribution]) -> Family:
    kinds: dict[str, type[Any]] = {"counter": CounterMetricFamily, "histogram": HistogramMetricFamily}
    family: Any = kinds.get(metric.kind, GaugeMetricFamily)(metric.name, metric.what, labels=metric.labels)
    for labels, value in values.items():
        if isinstance(value, Distribution):
            bounds = [*map(str, BOUNDS), "+Inf"]
            family.add_metric(labels, list(zip(bounds, value.counts, strict=True)), value.sum)
        else:
            family.add_metric(labels, value)
    return family  # type: ignore[no-any-return]  # all families are


class MetricsPage(LocalServer):
    """Serves the metrics on a separate thread until it is closed."""

    def __init__(self, port: int, collector: NodeCollector) -> None:
        self.registry = CollectorRegistry()
        self.registry.register(collector)
        ProcessCollector(registry=self.registry)
        try:
            super().__init__(port, Scrape)
        except OSError as error:
            raise MachineError(
                f"metrics_port: 127.0.0.1:{port} cannot be used ({error.strerror}): "
                "choose another port, or 0 for no metrics"
            ) from error
        threading.Thread(target=self.serve_forever, name="metrics", daemon=True).start()

    def close(self) -> None:
        """Stop serving."""
        self.shutdown()
        self.server_close()


class Scrape(LocalRequestHandler):
    """A scrape request."""

    server: MetricsPage

    def do_GET(self) -> None:  # noqa: N802  # the name that the library calls
        """Send all metrics in Prometheus' text format."""
        if why := self.rejection_reason():
            self._refuse(HTTPStatus.FORBIDDEN, why)
        elif self.path.partition("?")[0] not in PATHS:
            self._refuse(HTTPStatus.NOT_FOUND, "not found: use /metrics")
        else:
            self.send(HTTPStatus.OK, CONTENT_TYPE_LATEST, generate_latest(self.server.registry))

    def _refuse(self, status: HTTPStatus, why: str) -> None:
        self.send(status, "text/plain; charset=utf-8", f"{why}\n".encode())
