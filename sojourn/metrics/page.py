"""The page that Prometheus scrapes: http://127.0.0.1:PORT/metrics. Only this file loads its client library."""

from __future__ import annotations

import threading
from http import HTTPStatus
from typing import TYPE_CHECKING, Any

from prometheus_client import CONTENT_TYPE_LATEST, CollectorRegistry, ProcessCollector, generate_latest
from prometheus_client.core import CounterMetricFamily, GaugeMetricFamily, HistogramMetricFamily
from prometheus_client.registry import Collector

from sojourn.errors import MachineError
from sojourn.local_http import LocalConversation, LocalServer
from sojourn.metrics.catalogue import RESPONDING
from sojourn.metrics.reading import BOUNDS, Distribution, Reading

if TYPE_CHECKING:
    from collections.abc import Iterator

    from prometheus_client import Metric as Family

    from sojourn.metrics.catalogue import Metric
    from sojourn.metrics.snapshots import Snapshots
    from sojourn.metrics.surroundings import Surroundings

PATHS = ("/", "/metrics")


class NodeCollector(Collector):
    """A node's figures as Prometheus' client library wants them."""

    def __init__(self, snapshots: Snapshots, surroundings: Surroundings) -> None:
        self._snapshots = snapshots
        self._surroundings = surroundings

    def describe(self) -> list[Family]:
        """Nothing beforehand: to be registered must not ask a node that does not run yet."""
        return []

    def collect(self) -> Iterator[Family]:
        """All figures as they are now."""
        reading, responding = self._snapshots.take()
        yield from _families(reading)
        yield from _families(self._surrounding(responding))

    def _surrounding(self, responding: bool) -> Reading:
        found = Reading()
        found.put(RESPONDING, float(responding))
        self._surroundings.read(found)
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
    return family  # type: ignore[no-any-return]  # all of them are


class MetricsPage(LocalServer):
    """Serves the figures on a thread of its own until it is closed."""

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
        """Answer nobody any more."""
        self.shutdown()
        self.server_close()


class Scrape(LocalConversation):
    """One scrape."""

    server: MetricsPage

    def do_GET(self) -> None:  # noqa: N802  # the library looks for this name
        """Tell all figures, in Prometheus' text format."""
        if why := self.why_refused():
            self._refuse(HTTPStatus.FORBIDDEN, why)
        elif self.path.partition("?")[0] not in PATHS:
            self._refuse(HTTPStatus.NOT_FOUND, "there is only /metrics")
        else:
            self.send(HTTPStatus.OK, CONTENT_TYPE_LATEST, generate_latest(self.server.registry))

    def _refuse(self, status: HTTPStatus, why: str) -> None:
        self.send(status, "text/plain; charset=utf-8", f"{why}\n".encode())
