"""The Prometheus metrics of an agent, and that their libraries are only imported with a port."""

from __future__ import annotations

import subprocess
import sys

from edge_agent.prometheus_metrics import AgentMetrics
from edge_agent.records import Record
from sojourn.metrics.catalogue import (
    AGENT_LIMIT,
    AGENT_LOSS,
    AGENT_RESULTS,
    AGENT_STATE,
    AGENT_VISIT_SECONDS,
    AGENT_VISITS,
    Reading,
)
from sojourn.node.machine import WorkFailed
from sojourn.protocol.limits import decoded
from sojourn.protocol.messages import Accepted, Discarded
from tests.edge_agent.agent_bench import Bench, visit, visit_id


class MetricsBench(Bench):
    """Updates its metrics with every record that it writes; `hot` sets the owner's limits."""

    def __init__(self) -> None:
        self.hot = False
        super().__init__(objection=lambda: ("hot", "81 °C") if self.hot else None)
        self.now = 0.0
        self.metrics = AgentMetrics(self.agent, self.agent.visits.objection, lambda: self.now)

    def note(self, effects) -> None:
        before = len(self.records)
        super().note(effects)
        for record in self.records[before:]:
            self.metrics.recorded(decoded(record, Record))

    def values(self):
        reading = Reading()
        self.metrics.read(reading, 0.0)
        return reading.values

    def counted(self) -> dict[tuple[str, ...], float]:
        return {key: count for key, count in self.values()[AGENT_VISITS].items() if count}


def state(bench: MetricsBench) -> str:
    ((one,),) = [key for key, value in bench.values()[AGENT_STATE].items() if value]
    return str(one)


def test_metrics_follow_a_visit_from_order_to_end() -> None:
    bench = MetricsBench()
    assert state(bench) == "idle"
    assert AGENT_LOSS not in bench.values()
    bench.ask(visit())
    assert state(bench) == "fetching"
    bench.now = 7.0
    bench.take(visit())
    assert state(bench) == "training"
    bench.finish()
    values = bench.values()
    assert values[AGENT_VISIT_SECONDS][()].sum == 7.0
    assert values[AGENT_LOSS] == {(): 0.5}
    assert values[AGENT_RESULTS] == {(): 1}
    bench.ask(Accepted(visit_id()))
    assert bench.counted() == {("accepted", ""): 1}
    assert bench.values()[AGENT_RESULTS] == {(): 0}


def test_failed_visits_are_counted_once_with_their_reason() -> None:
    bench = MetricsBench()
    bench.hot = True
    assert bench.values()[AGENT_LIMIT][("hot",)] == 1
    bench.ask(visit())
    assert bench.counted() == {("declined", "hot"): 1}
    bench.hot = False
    assert bench.values()[AGENT_LIMIT][("hot",)] == 0
    bench.take(visit((1, 2)))
    bench.ask(visit(tour=5))  # another visit is active
    bench.handle(WorkFailed(bench.work, "memory", "too much"))
    bench.take(visit((1, 3)))
    bench.finish()
    bench.ask(Discarded(visit_id((1, 3)), "not wanted"))
    assert bench.counted() == {
        ("declined", "hot"): 1,
        ("declined", "busy"): 1,
        ("declined", "memory"): 1,
        ("discarded", ""): 1,
    }


def test_agent_without_metrics_port_loads_no_metrics_modules() -> None:
    code = "import sys, edge_agent.run; print(*sys.modules)"
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    loaded = set(done.stdout.split())
    assert "edge_agent.run" in loaded
    assert not {name for name in loaded if name.startswith(("prometheus_client", "sojourn.metrics", "http.server"))}
    assert "edge_agent.prometheus_metrics" not in loaded
