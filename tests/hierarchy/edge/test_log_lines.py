"""What an edge server's lines are about: a visit that came to nothing is found by its id, with what was tried then."""

from __future__ import annotations

from sojourn.node.machine import Received, Say
from sojourn.protocol.messages import Declined
from tests.hierarchy.edge.site_bench import EPOCH, Bench, device, tour, visit_id


def test_a_visit_that_is_declined_and_the_one_that_takes_its_place() -> None:
    bench = Bench()
    bench.take(tour(hops=("a", "b"), on_lost_visit="skip"))
    effects = bench.edge.handle(Received(device("a"), EPOCH, Declined(visit_id(0), "hot", "81 degrees")), 1.0)
    lost, handed = [effect for effect in effects if isinstance(effect, Say)]
    assert lost.level == "warning"
    assert lost.text.endswith("a declined (hot: 81 degrees); skip")
    assert lost.about.fields == {
        "run": "job", "round": 1, "tour": "job/1/1", "visit": "job/1/1/1", "attempt": "1.1", "device": "a",
    }  # fmt: skip
    assert handed.level == "step"
    assert (handed.text, handed.about.fields["visit"], handed.about.device) == (
        "the model goes to b", "job/1/1/2", "b",
    )  # fmt: skip
