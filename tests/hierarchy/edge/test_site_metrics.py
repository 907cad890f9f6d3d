"""The Prometheus metrics of an edge server."""

from __future__ import annotations

from hierarchy.edge.site_metrics import SiteMetrics
from sojourn.metrics.catalogue import EDGE_DEVICES, EDGE_TOURS, EDGE_VISIT_SECONDS, EDGE_VISITS, Reading
from sojourn.node.machine import Present
from sojourn.protocol.messages import Birth, Declined
from tests.hierarchy.edge.site_bench import EPOCH, Bench, device, records, tour, visit_id


class MetricsBench(Bench):
    """A bench that counts every record in its metrics."""

    def __init__(self) -> None:
        super().__init__()
        self.metrics = SiteMetrics(self.edge)

    def handle(self, event, now=0.0):
        effects = super().handle(event, now)
        for record in records(effects):
            self.metrics.recorded(record)
        return effects

    def values(self):
        reading = Reading()
        self.metrics.read(reading, 0.0)
        return reading.values


def test_devices_tours_and_visits_are_counted() -> None:
    bench = MetricsBench()
    for name in ("a", "b", "c"):
        bench.handle(Present(device(name), EPOCH, Birth()))
    assert bench.values()[EDGE_DEVICES] == {("idle",): 3, ("visiting",): 0}
    bench.take(tour(("a", "b")))
    values = bench.values()
    assert values[EDGE_DEVICES] == {("idle",): 2, ("visiting",): 1}
    assert values[EDGE_TOURS] == {(): 1}
    bench.visited("a", visit_id(), 2.0)
    bench.passes("a", 3.0)
    bench.receive(device("b"), Declined(visit_id(1, (1, 2)), "hot", "81 °C"), 4.0)
    values = bench.values()
    assert {key: count for key, count in values[EDGE_VISITS].items() if count} == {
        ("done", ""): 1,
        ("declined", "hot"): 1,
    }
    counts, seconds = values[EDGE_VISIT_SECONDS][()]
    assert (counts[-1], seconds) == (1, 3.0)
