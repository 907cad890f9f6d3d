"""An agent's figures for Prometheus, where its owner sets a port for them; elsewhere nothing of it is loaded."""

from __future__ import annotations

from contextlib import AbstractContextManager, nullcontext
from typing import TYPE_CHECKING

from sojourn.settings import store_folder

if TYPE_CHECKING:
    from edge_agent.agent import Agent
    from edge_agent.settings import AgentSettings
    from sojourn.node.driver import Driver


def metrics_of(settings: AgentSettings, driver: Driver) -> AbstractContextManager[None]:
    """While in this context: Prometheus may scrape this agent, if it has a port for that."""
    if not settings.metrics_port:
        return nullcontext()
    from edge_agent.agent_figures import AgentFigures  # noqa: PLC0415  # only where it is wanted
    from sojourn.metrics.node_figures import NodeFigures  # noqa: PLC0415
    from sojourn.metrics.serving import metrics_served  # noqa: PLC0415

    agent: Agent = driver.node.machine  # type: ignore[assignment]  # it was assembled a moment ago
    figures = AgentFigures(agent, agent.visits.objection)
    driver.node.on_record(figures.recorded)
    store = store_folder(settings.store, settings.fleet, settings.name)
    sources = NodeFigures(driver, lambda: agent.visits.unanswered), figures
    return metrics_served(settings.metrics_port, driver, sources, store, {"edge": settings.broker})
