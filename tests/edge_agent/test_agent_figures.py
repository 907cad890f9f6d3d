"""What an agent tells Prometheus, and that without a port it loads nothing for it."""

from __future__ import annotations

import subprocess
import sys

from edge_agent.agent_figures import AgentFigures
from edge_agent.records import Record
from sojourn.metrics.catalogue import (
    AGENT_LIMIT,
    AGENT_LOSS,
    AGENT_RESULTS,
    AGENT_STATE,
    AGENT_VISIT_SECONDS,
    AGENT_VISITS,
)
from sojourn.metrics.reading import Reading
from sojourn.node.machine import DidNot
from sojourn.protocol.mending import read_record
from sojourn.protocol.messages import Accepted, Discarded
from tests.edge_agent.agent_bench import Bench, visit, visit_id


class Told(Bench):
    """Tells its figures of every record that it writes; `hot` is what its owner's limits say."""

    def __init__(self) -> None:
        self.hot = False
        super().__init__(objection=lambda: ("hot", "81 °C") if self.hot else None)
        self.now = 0.0
        self.figures = AgentFigures(self.agent, self.agent.visits.objection, lambda: self.now)

    def note(self, effects) -> None:
        before = len(self.records)
        super().note(effects)
        for record in self.records[before:]:
            self.figures.recorded(read_record(record, Record))

    def values(self):
        reading = Reading()
        self.figures.read(reading, 0.0)
        return reading.values

    def counted(self) -> dict[tuple[str, ...], float]:
        return {key: count for key, count in self.values()[AGENT_VISITS].items() if count}


def state(bench: Told) -> str:
    ((one,),) = [key for key, value in bench.values()[AGENT_STATE].items() if value]
    return str(one)


def test_a_visit_is_followed_from_its_order_to_its_end() -> None:
    bench = Told()
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


def test_visits_that_came_to_nothing_are_counted_once_with_their_reason() -> None:
    bench = Told()
    bench.hot = True
    assert bench.values()[AGENT_LIMIT][("hot",)] == 1
    bench.ask(visit())
    assert bench.counted() == {("declined", "hot"): 1}
    bench.hot = False
    assert bench.values()[AGENT_LIMIT][("hot",)] == 0
    bench.take(visit((1, 2)))
    bench.ask(visit(tour=5))  # another one is under way
    bench.tell(DidNot(bench.work, "memory", "too much"))
    bench.take(visit((1, 3)))
    bench.finish()
    bench.ask(Discarded(visit_id((1, 3)), "not wanted"))
    assert bench.counted() == {
        ("declined", "hot"): 1,
        ("declined", "busy"): 1,
        ("declined", "memory"): 1,
        ("discarded", ""): 1,
    }


def test_an_agent_without_a_port_loads_nothing_of_it() -> None:
    code = "import sys, edge_agent.run; print(*sys.modules)"
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    loaded = set(done.stdout.split())
    assert "edge_agent.metrics" in loaded
    assert not {name for name in loaded if name.startswith(("prometheus_client", "sojourn.metrics", "http.server"))}
    assert "edge_agent.agent_figures" not in loaded
