"""Prometheus metrics of an agent: visits, limits and releases; imported only if a metrics port is set."""

from __future__ import annotations

import math
import time
from collections.abc import Callable
from typing import get_args

from edge_agent.agent import Agent
from edge_agent.records import RESULTS_KEPT, VisitTaken, VisitTrained, key_of
from edge_agent.visits import Objection
from sojourn.metrics.catalogue import (
    AGENT_LIMIT,
    AGENT_LOSS,
    AGENT_RELEASE,
    AGENT_RESULTS,
    AGENT_STATE,
    AGENT_VERSION,
    AGENT_VISIT_SECONDS,
    AGENT_VISITS,
    Durations,
    Reading,
)
from sojourn.protocol.release import ReleaseState
from sojourn.protocol.visit_outcomes import DECLINED

STATES = ("idle", "fetching", "waiting", "training")
LIMITS = ("hot", "hours", "metered", "power", "memory", "disk")
"""The reasons for which the owner's limits decline a visit."""
OUTCOMES = (("accepted", ""), ("discarded", ""), ("dropped", ""), *(("declined", reason) for reason in DECLINED))


class AgentMetrics:
    """The metrics of an agent; `objection` returns the limit by which it would decline a visit now."""

    def __init__(self, agent: Agent, objection: Objection, clock: Callable[[], float] = time.monotonic) -> None:
        self._agent = agent
        self._objection = objection
        self._clock = clock
        self._taken: dict[str, float] = {}
        """When each visit that is not trained yet was taken."""
        self._durations = Durations()
        self._loss = math.nan

    def recorded(self, record: object) -> None:
        """Handle a written record: measure the time of a visit from its order to its result."""
        match record:
            case VisitTaken():
                self._taken[key_of(record.order.id)] = self._clock()
                while len(self._taken) > RESULTS_KEPT:  # no record follows for declined visits
                    del self._taken[next(iter(self._taken))]
            case VisitTrained():
                if (taken := self._taken.pop(record.key, None)) is not None:
                    self._durations.add(self._clock() - taken)
                self._loss = record.answer.metrics.get("loss", math.nan)

    def read(self, into: Reading, now: float) -> None:  # noqa: ARG002  # no metric needs the time
        """Write the current values into a reading."""
        visits, state = self._agent.visits, self._agent.state
        into.put_one_of(AGENT_STATE, STATES, visits.active.state if visits.active else "idle")
        for outcome, reason in OUTCOMES:
            into.put(AGENT_VISITS, visits.counts[outcome, reason], outcome, reason)
        into.put(AGENT_VISIT_SECONDS, self._durations.seen())
        if math.isfinite(self._loss):
            into.put(AGENT_LOSS, self._loss)
        into.put(AGENT_RESULTS, sum(held.answer is not None for held in state.held.values()))
        objection = self._objection()
        into.put_one_of(AGENT_LIMIT, LIMITS, objection[0] if objection else "")
        for name, line in state.lines.items():
            into.put_one_of(AGENT_RELEASE, get_args(ReleaseState), line.state, name)
            into.put(AGENT_VERSION, line.serving.version if line.serving else 0, name)
