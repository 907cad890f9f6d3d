"""Handing releases on: goods are fetched once, and devices that are here get the order when all of it is."""

from __future__ import annotations

import pytest

from hierarchy.edge.shipping import BURST, ORDERS_KEPT
from sojourn.node.machine import Present, Pull, Pulled, PullFailed, Send
from sojourn.protocol.messages import Birth, Death
from sojourn.protocol.release import Health, SignedOrder
from sojourn.protocol.release_messages import DeviceReport, Release, ReleaseReport, Ship
from sojourn.store.blobs import ref_of
from tests.hierarchy.edge.site_bench import CLOUD, EPOCH, Bench, device
from tests.sojourn.store.replays import sends

GRAPH, CARD = ref_of(b"graph"), ref_of(b"card")
REPORT = ReleaseReport("l", 3, 1, "serving", "", Health(rows=5))


def signed(number: int = 0) -> SignedOrder:
    return SignedOrder(b"order %d" % number, bytes(64))


def ship(*devices: str, number: int = 0, graph=GRAPH, card=CARD) -> Ship:
    return Ship(signed(number), graph, card, devices)


def bench(*here: str) -> Bench:
    it = Bench()
    for name in here:
        it.tell(Present(device(name), EPOCH, Birth()))
    return it


def pulls(effects) -> list[bytes]:
    assert all(effect.source == CLOUD for effect in effects if isinstance(effect, Pull))
    return [effect.ref.digest for effect in effects if isinstance(effect, Pull)]


def handed(effects) -> list[str]:
    return [effect.to.name for effect in effects if isinstance(effect, Send) and isinstance(effect.message, Release)]


def test_goods_are_fetched_once_and_handed_to_whom_they_are_for() -> None:
    it = bench("a", "b", "c")
    effects = it.hear(CLOUD, ship("a", "b"))
    assert pulls(effects) == [GRAPH.digest, CARD.digest]
    assert handed(effects) == []
    assert pulls(it.hear(CLOUD, ship("c"))) == []
    assert handed(it.tell(Pulled(CARD.digest))) == []
    effects = it.tell(Pulled(GRAPH.digest))
    assert handed(effects) == ["a", "b", "c"]
    assert sends(effects) == [Release(signed(), GRAPH, CARD)] * 3
    assert it.edge.live() >= {GRAPH.digest, CARD.digest}
    assert it.records == []


def test_who_is_told_again_gets_it_again_at_once() -> None:
    it = bench("a", "b")
    it.hear(CLOUD, ship("a"))
    it.tell(Pulled(CARD.digest))
    it.tell(Pulled(GRAPH.digest))
    effects = it.hear(CLOUD, ship("a", "b"))
    assert (pulls(effects), handed(effects)) == ([], ["a", "b"])


def test_an_order_without_goods_is_handed_on_at_once() -> None:
    it = bench("a")
    effects = it.hear(CLOUD, ship("a", graph=None, card=None))
    assert (pulls(effects), handed(effects)) == ([], ["a"])


def test_goods_that_are_one_blob_are_fetched_once() -> None:
    it = bench("a")
    assert pulls(it.hear(CLOUD, ship("a", graph=GRAPH, card=GRAPH))) == [GRAPH.digest]
    assert handed(it.tell(Pulled(GRAPH.digest))) == ["a"]


def test_devices_that_are_not_here_get_nothing() -> None:
    it = bench("a", "b")
    it.tell(Present(device("b"), EPOCH, Death()))
    it.hear(CLOUD, ship("a", "b", "stranger"))
    it.tell(Pulled(CARD.digest))
    assert handed(it.tell(Pulled(GRAPH.digest))) == ["a"]


def test_a_device_is_handed_an_order_once_however_often_it_was_named_while_goods_came() -> None:
    it = bench("a")
    for _ in range(3):
        it.hear(CLOUD, ship("a"))
    it.tell(Pulled(CARD.digest))
    assert handed(it.tell(Pulled(GRAPH.digest))) == ["a"]


@pytest.mark.parametrize("reason", ["gone", "disk"])
def test_goods_that_cannot_be_had_are_fetched_anew_when_the_coordinator_repeats_itself(reason) -> None:
    it = bench("a")
    it.hear(CLOUD, ship("a"))
    (warning,) = it.tell(PullFailed(GRAPH.digest, reason))
    assert reason in warning.text
    assert it.tell(Pulled(CARD.digest)) == []
    assert not it.edge.live() & {GRAPH.digest, CARD.digest}
    assert pulls(it.hear(CLOUD, ship("a"))) == [GRAPH.digest, CARD.digest]
    it.tell(Pulled(CARD.digest))
    assert handed(it.tell(Pulled(GRAPH.digest))) == ["a"]


def test_two_orders_with_the_same_goods_are_two_orders() -> None:
    it = bench("a", "b")
    it.hear(CLOUD, ship("a", number=1))
    assert pulls(it.hear(CLOUD, ship("b", number=2))) == [GRAPH.digest, CARD.digest]
    it.tell(Pulled(CARD.digest))
    effects = it.tell(Pulled(GRAPH.digest))
    assert handed(effects) == ["a", "b"]
    assert [message.order for message in sends(effects)] == [signed(1), signed(2)]


def test_the_goods_of_orders_that_came_long_ago_are_let_go() -> None:
    it = bench("a")
    blobs = [ref_of(b"graph %d" % number) for number in range(ORDERS_KEPT + 1)]
    for number, graph in enumerate(blobs[:-1]):
        it.hear(CLOUD, ship("a", number=number, graph=graph))
    it.hear(CLOUD, ship("a", number=0, graph=blobs[0]))
    it.hear(CLOUD, ship("a", number=ORDERS_KEPT, graph=blobs[-1]))
    live = it.edge.live()
    assert [number for number, graph in enumerate(blobs) if graph.digest not in live] == [1]
    assert it.tell(Pulled(blobs[1].digest)) == []
    assert pulls(it.hear(CLOUD, ship("a", number=1, graph=blobs[1]))) == [blobs[1].digest, CARD.digest]


def test_what_a_device_reports_goes_up_under_its_name() -> None:
    it = bench("a")
    (effect,) = it.hear(device("a"), REPORT)
    assert effect == Send(CLOUD, DeviceReport("a", REPORT))


def test_only_devices_that_are_here_report() -> None:
    it = bench("a")
    assert it.hear(device("b"), REPORT) == []
    it.tell(Present(device("a"), EPOCH, Death()))
    assert it.hear(device("a"), REPORT) == []


def test_a_device_that_never_ends_to_report_is_passed_on_once_a_second_and_others_as_before() -> None:
    it = bench("a", "b")
    passed = [bool(it.hear(device("a"), REPORT, now=10.0)) for _ in range(1000)]
    assert passed == [True] * int(BURST) + [False] * (1000 - int(BURST))
    assert it.hear(device("b"), REPORT, now=10.0)
    assert sum(bool(it.hear(device("a"), REPORT, now=10.0 + tick / 4)) for tick in range(1, 41)) == 10
    it.edge = it.replayed()
    it.tell(Present(device("a"), EPOCH, Birth()))
    assert it.hear(device("a"), REPORT, now=11.0)


def test_a_restart_forgets_orders_and_the_next_one_begins_anew() -> None:
    it = bench("a")
    it.hear(CLOUD, ship("a"))
    it.tell(Pulled(CARD.digest))
    it.edge = it.replayed()
    it.tell(Present(device("a"), EPOCH, Birth()))
    assert pulls(it.hear(CLOUD, ship("a"))) == [GRAPH.digest, CARD.digest]
