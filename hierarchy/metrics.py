"""An edge server's figures for Prometheus, where a port is set for them."""

from __future__ import annotations

from contextlib import AbstractContextManager, nullcontext
from typing import TYPE_CHECKING

from sojourn.settings import store_folder

if TYPE_CHECKING:
    from hierarchy.edge.server import EdgeServer
    from hierarchy.settings import EdgeSettings
    from sojourn.node.driver import Driver


def metrics_of(settings: EdgeSettings, driver: Driver) -> AbstractContextManager[None]:
    """While in this context: Prometheus may scrape this edge server, if it has a port for that."""
    if not settings.metrics_port:
        return nullcontext()
    from hierarchy.edge.site_figures import SiteFigures  # noqa: PLC0415  # only where it is wanted
    from sojourn.metrics.node_figures import NodeFigures  # noqa: PLC0415
    from sojourn.metrics.serving import metrics_served  # noqa: PLC0415

    server: EdgeServer = driver.node.machine  # type: ignore[assignment]  # it was assembled a moment ago
    figures = SiteFigures(server)
    driver.node.on_record(figures.recorded)
    brokers = {"device": settings.broker, **({"cloud": settings.cloud_broker} if settings.cloud_broker else {})}
    store = store_folder(settings.store, settings.fleet, settings.name)
    sources = NodeFigures(driver, lambda: len(server.site.outbox)), figures
    return metrics_served(settings.metrics_port, driver, sources, store, brokers)
