"""Forwarding releases: goods are fetched once, and connected devices get the order when all are fetched."""

from __future__ import annotations

import pytest

from hierarchy.edge.forwarding import MAX_ORDERS
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
        it.handle(Present(device(name), EPOCH, Birth()))
    return it


def pulls(effects) -> list[bytes]:
    assert all(effect.source == CLOUD for effect in effects if isinstance(effect, Pull))
    return [effect.ref.digest for effect in effects if isinstance(effect, Pull)]


def handed(effects) -> list[str]:
    return [effect.to.name for effect in effects if isinstance(effect, Send) and isinstance(effect.message, Release)]


def test_payloads_are_fetched_once_and_sent_to_named_devices() -> None:
    it = bench("a", "b", "c")
    effects = it.receive(CLOUD, ship("a", "b"))
    assert pulls(effects) == [GRAPH.digest, CARD.digest]
    assert handed(effects) == []
    assert pulls(it.receive(CLOUD, ship("c"))) == []
    assert handed(it.handle(Pulled(CARD.digest))) == []
    effects = it.handle(Pulled(GRAPH.digest))
    assert handed(effects) == ["a", "b", "c"]
    assert sends(effects) == [Release(signed(), GRAPH, CARD)] * 3
    assert it.edge.live() >= {GRAPH.digest, CARD.digest}
    assert it.records == []


def test_repeated_order_is_sent_again_at_once() -> None:
    it = bench("a", "b")
    it.receive(CLOUD, ship("a"))
    it.handle(Pulled(CARD.digest))
    it.handle(Pulled(GRAPH.digest))
    effects = it.receive(CLOUD, ship("a", "b"))
    assert (pulls(effects), handed(effects)) == ([], ["a", "b"])


def test_order_without_payloads_is_sent_at_once() -> None:
    it = bench("a")
    effects = it.receive(CLOUD, ship("a", graph=None, card=None))
    assert (pulls(effects), handed(effects)) == ([], ["a"])


def test_identical_payloads_are_fetched_once() -> None:
    it = bench("a")
    assert pulls(it.receive(CLOUD, ship("a", graph=GRAPH, card=GRAPH))) == [GRAPH.digest]
    assert handed(it.handle(Pulled(GRAPH.digest))) == ["a"]


def test_offline_devices_get_nothing() -> None:
    it = bench("a", "b")
    it.handle(Present(device("b"), EPOCH, Death()))
    it.receive(CLOUD, ship("a", "b", "stranger"))
    it.handle(Pulled(CARD.digest))
    assert handed(it.handle(Pulled(GRAPH.digest))) == ["a"]


def test_device_gets_a_repeated_order_once_after_the_fetch() -> None:
    it = bench("a")
    for _ in range(3):
        it.receive(CLOUD, ship("a"))
    it.handle(Pulled(CARD.digest))
    assert handed(it.handle(Pulled(GRAPH.digest))) == ["a"]


@pytest.mark.parametrize("reason", ["gone", "disk"])
def test_failed_fetch_is_retried_when_the_order_is_repeated(reason) -> None:
    it = bench("a")
    it.receive(CLOUD, ship("a"))
    (warning,) = it.handle(PullFailed(GRAPH.digest, reason))
    assert reason in warning.text
    assert it.handle(Pulled(CARD.digest)) == []
    assert not it.edge.live() & {GRAPH.digest, CARD.digest}
    assert pulls(it.receive(CLOUD, ship("a"))) == [GRAPH.digest, CARD.digest]
    it.handle(Pulled(CARD.digest))
    assert handed(it.handle(Pulled(GRAPH.digest))) == ["a"]


def test_orders_with_the_same_payloads_stay_separate() -> None:
    it = bench("a", "b")
    it.receive(CLOUD, ship("a", number=1))
    assert pulls(it.receive(CLOUD, ship("b", number=2))) == [GRAPH.digest, CARD.digest]
    it.handle(Pulled(CARD.digest))
    effects = it.handle(Pulled(GRAPH.digest))
    assert handed(effects) == ["a", "b"]
    assert [message.order for message in sends(effects)] == [signed(1), signed(2)]


def test_payloads_of_old_orders_are_released() -> None:
    it = bench("a")
    blobs = [ref_of(b"graph %d" % number) for number in range(MAX_ORDERS + 1)]
    for number, graph in enumerate(blobs[:-1]):
        it.receive(CLOUD, ship("a", number=number, graph=graph))
    it.receive(CLOUD, ship("a", number=0, graph=blobs[0]))
    it.receive(CLOUD, ship("a", number=MAX_ORDERS, graph=blobs[-1]))
    live = it.edge.live()
    assert [number for number, graph in enumerate(blobs) if graph.digest not in live] == [1]
    assert it.handle(Pulled(blobs[1].digest)) == []
    assert pulls(it.receive(CLOUD, ship("a", number=1, graph=blobs[1]))) == [blobs[1].digest, CARD.digest]


def test_device_report_is_forwarded_under_its_name() -> None:
    it = bench("a")
    (effect,) = it.receive(device("a"), REPORT)
    assert effect == Send(CLOUD, DeviceReport("a", REPORT))


def test_reports_of_offline_devices_are_dropped() -> None:
    it = bench("a")
    assert it.receive(device("b"), REPORT) == []
    it.handle(Present(device("a"), EPOCH, Death()))
    assert it.receive(device("a"), REPORT) == []


def test_reports_are_rate_limited_per_device() -> None:
    it = bench("a", "b")
    passed = [bool(it.receive(device("a"), REPORT, now=10.0)) for _ in range(1000)]
    assert passed == [True] * 64 + [False] * (1000 - 64)
    assert it.receive(device("b"), REPORT, now=10.0)
    assert sum(bool(it.receive(device("a"), REPORT, now=10.0 + tick / 4)) for tick in range(1, 41)) == 10
    it.edge = it.replayed()
    it.handle(Present(device("a"), EPOCH, Birth()))
    assert it.receive(device("a"), REPORT, now=11.0)


def test_restart_forgets_orders() -> None:
    it = bench("a")
    it.receive(CLOUD, ship("a"))
    it.handle(Pulled(CARD.digest))
    it.edge = it.replayed()
    it.handle(Present(device("a"), EPOCH, Birth()))
    assert pulls(it.receive(CLOUD, ship("a"))) == [GRAPH.digest, CARD.digest]
