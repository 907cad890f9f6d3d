"""Serves a node's figures while it runs, if a port is set; without one, nothing of it is loaded."""

from __future__ import annotations

import logging
from contextlib import closing, contextmanager
from typing import TYPE_CHECKING

from sojourn.extras import need

if TYPE_CHECKING:
    from collections.abc import Iterator, Mapping, Sequence
    from pathlib import Path

    from sojourn.links.settings import BrokerSettings
    from sojourn.metrics.reading import FigureSource
    from sojourn.node.driver import Driver

log = logging.getLogger("sojourn")


@contextmanager
def metrics_served(
    port: int, driver: Driver, sources: Sequence[FigureSource], store: Path, brokers: Mapping[str, BrokerSettings]
) -> Iterator[None]:
    """While in this context: Prometheus may scrape the node at this port."""
    need("metrics", f"metrics_port = {port}")
    from sojourn.metrics.page import MetricsPage, NodeCollector  # noqa: PLC0415  # the library only where it is wanted
    from sojourn.metrics.snapshots import Snapshots  # noqa: PLC0415
    from sojourn.metrics.surroundings import Surroundings  # noqa: PLC0415

    collector = NodeCollector(Snapshots(driver, sources), Surroundings(store, brokers))
    with closing(MetricsPage(port, collector)):
        log.info("figures for Prometheus: http://127.0.0.1:%d/metrics", port)
        yield
