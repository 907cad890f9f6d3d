"""The subjects of an edge server's log lines: a failed visit is found by its id, with the next attempt."""

from __future__ import annotations

from sojourn.node.machine import Log, Received
from sojourn.protocol.messages import Declined
from tests.hierarchy.edge.site_bench import EPOCH, Bench, device, tour, visit_id


def test_decline_and_next_visit_are_logged_with_their_ids() -> None:
    bench = Bench()
    bench.take(tour(hops=("a", "b"), on_lost_visit="skip"))
    effects = bench.edge.handle(Received(device("a"), EPOCH, Declined(visit_id(0), "hot", "81 degrees")), 1.0)
    lost, handed = [effect for effect in effects if isinstance(effect, Log)]
    assert lost.level == "warning"
    assert lost.text.endswith("a declined (hot: 81 degrees); skip")
    assert lost.about.fields == {
        "run": "job", "round": 1, "tour": "job/1/1", "visit": "job/1/1/1", "attempt": "1.1", "device": "a",
    }  # fmt: skip
    assert handed.level == "step"
    assert (handed.text, handed.about.fields["visit"], handed.about.device) == (
        "sending the model to b", "job/1/1/2", "b",
    )  # fmt: skip
