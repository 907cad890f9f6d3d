"""A coordinator's figures for Prometheus, where a port is set for them."""

from __future__ import annotations

import time
from contextlib import AbstractContextManager, nullcontext
from typing import TYPE_CHECKING

from sojourn.settings import store_folder

if TYPE_CHECKING:
    from coordinator.admin.settings import CoordinatorSettings
    from coordinator.machine.coordinator import Coordinator
    from sojourn.node.driver import Driver


def metrics_of(settings: CoordinatorSettings, driver: Driver) -> AbstractContextManager[None]:
    """While in this context: Prometheus may scrape this coordinator, if it has a port for that."""
    if not settings.metrics_port:
        return nullcontext()
    from sojourn.metrics.node_figures import NodeFigures  # noqa: PLC0415  # only where it is wanted
    from sojourn.metrics.serving import metrics_served  # noqa: PLC0415

    machine: Coordinator = driver.node.machine  # type: ignore[assignment]  # it was assembled a moment ago
    fleet, runs, rollouts = machine.figures()
    driver.node.on_record(lambda record: runs.recorded(record, time.time()))
    sources = NodeFigures(driver, lambda: machine.unanswered), fleet, runs, rollouts
    store = store_folder(settings.store, settings.fleet, settings.name)
    return metrics_served(settings.metrics_port, driver, sources, store, {"edge": settings.broker})
