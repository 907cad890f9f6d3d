"""A node performs effects in order, survives invalid messages, and waits while the disk is full."""

from __future__ import annotations

import logging
import random
from collections.abc import Callable
from typing import Any

import msgpack
import pytest
from cryptography.hazmat.primitives.asymmetric.ed25519 import Ed25519PrivateKey

from coordinator.machine.coordinator import Coordinator
from edge_agent.agent import Agent
from edge_agent.training.messages import Train
from hierarchy.edge.server import EdgeServer
from sojourn.errors import DiskFull, LinkError
from sojourn.links.link import Link
from sojourn.node.machine import LinkUp, StartWork, WorkFailed
from sojourn.node.node import Node
from sojourn.node.peers import CLASH_SECONDS
from sojourn.protocol import topics
from sojourn.protocol.envelope import Packet, pack, unpack
from sojourn.protocol.messages import (
    Birth,
    Chunk,
    Death,
    Declined,
    Fetch,
    Gone,
    Prepare,
    Progress,
    Roster,
    RosterAsk,
    Visit,
    Visited,
)
from sojourn.protocol.release import Order, sign
from sojourn.protocol.release_messages import Release, Ship
from sojourn.protocol.signing import Signer
from sojourn.protocol.topics import Address
from sojourn.protocol.wire import Epoch, Offer, Ref, VisitId
from sojourn.store.blobs import digest_of, ref_of
from sojourn.store.journal import FolderStore, MemoryStore
from tests.sojourn.protocol.examples import EXAMPLES, TASK
from tests.there import there

FLEET = "f"
EPOCH = Epoch(5, b"12345678")
OFFER = Offer("1", "m", "r", 1, 0, ("sgd",), "npz")


class Wire:
    """A link that remembers the published messages."""

    payload_limit = 60_000

    def __init__(self) -> None:
        self.published: list[tuple[str, bytes, bool]] = []
        self.broken = False
        self.before_sending: Callable[[], None] = lambda: None

    def open(self, listener, filters, will) -> None: ...

    def close(self) -> None:
        self.published.append(("closed", b"", False))

    def publish(self, topic, payload, *, retain=False) -> None:
        self.before_sending()
        if self.broken:
            raise LinkError("too large")
        self.published.append((topic, payload, retain))

    def messages(self, me: Address) -> list[Any]:
        found = []
        for topic, payload, _ in self.published:
            route = topics.read(FLEET, topic)
            if route and route.sender:
                found.append(unpack(payload, me, route.node).message)
        return found


class IdleWorkers:
    """Workers that never finish."""

    def __init__(self) -> None:
        self.begun: list[Any] = []

    def start(self, key, work, report) -> None:
        self.begun.append(work)

    def stop(self, key) -> None: ...

    def close(self) -> None: ...


class Bed:
    """A node on recorded links."""

    def __init__(self, machine, store=None, pause=None) -> None:
        self.machine, self.wire, self.workers = machine, Wire(), IdleWorkers()
        self.kind = ""
        self.links: dict[topics.Role, Link] = dict.fromkeys(("device", "edge", "cloud"), self.wire)
        del self.links[machine.address.role if machine.address.role != "cloud" else "device"]
        kwargs = {"pause": pause} if pause else {}
        self.node = Node(FLEET, machine, store or MemoryStore(), self.links, self.workers, **kwargs)
        self.node.start(0.0, lambda event: None)

    def report(self, sender: str, message, epoch=EPOCH, now=1.0) -> None:
        self.raw(topics.inbox(FLEET, self.node.address, sender), pack(Packet(1, epoch, message)), now)

    def raw(self, topic: str, payload: bytes, now=1.0) -> None:
        self.node.arrived(self.wire, topic, payload, now)

    def presence(self, who: Address, state, epoch=EPOCH) -> None:
        self.raw(topics.state(FLEET, who), pack(Packet(1, epoch, state)))

    def sent(self) -> list[Any]:
        return self.wire.messages(self.node.address)


def agent(store=None, pause=None) -> Bed:
    return Bed(Agent("d", OFFER, edges=frozenset({"e"})), store, pause)


def edge(store=None) -> Bed:
    return Bed(EdgeServer("e", "c"), store)


def cloud(store=None) -> Bed:
    return Bed(Coordinator("c"), store)


BEDS = {"agent": agent, "edge": edge, "cloud": cloud}
SENDERS = {"agent": ("e", "x"), "edge": ("c", "d", "x"), "cloud": ("e", "operator", "x")}


def visit(attempt=(1, 1), data=b"model", kit=b"kit", hop=0) -> Visit:
    kits, model = (ref_of(content) for content in (kit, data))
    inline = Ref(model.digest, model.size, "float32", inline=data)
    carried = Ref(kits.digest, kits.size, inline=kit)
    return Visit(VisitId("job", 1, 0, hop, attempt), carried, {"model": inline}, TASK, 7, 60.0)


@pytest.fixture(params=BEDS)
def bed(request):
    made = BEDS[request.param]()
    made.kind = request.param
    return made


def test_birth_is_published_on_every_connect(bed) -> None:
    for _ in range(2):
        bed.node.link_up(bed.wire, 0.0)
    births = [payload for topic, payload, retain in bed.wire.published if topic.endswith("/state") and retain]
    assert len(births) == 2
    assert b"birth" in births[0]
    will = bed.node.will()
    assert will.topic == topics.state(FLEET, bed.node.address)
    assert b"death" in will.payload


def test_close_publishes_death_before_the_link_closes(bed) -> None:
    bed.node.close()
    topic, payload, retain = bed.wire.published[-2]
    assert topic == topics.state(FLEET, bed.node.address)
    assert b"death" in payload
    assert retain
    assert bed.wire.published[-1][0] == "closed"


def check_untouched(bed, action) -> None:
    """Check that a message is counted and dropped: the state is unchanged, and nothing is sent."""
    state, sent, dropped = bed.machine.snapshot(), len(bed.wire.published), bed.node.reception.dropped.total()
    action()
    assert bed.machine.snapshot() == state
    assert len(bed.wire.published) == sent
    assert bed.node.reception.dropped.total() == dropped + 1


@pytest.mark.parametrize(
    "topic",
    [
        "",
        "sojourn",
        "sojourn/1/f/device/d",
        "sojourn/2/f/device/d/in/e",
        "sojourn/1/other/device/d/in/e",
        "sojourn/1/f/device/D/in/e",
        "sojourn/1/f/robot/d/in/e",
        "sojourn/1/f/device/d/out/e",
        "sojourn/1/f/device/d/in/E",
        "a/b/c/d/e/f/g",
    ],
)
def test_foreign_topics_are_ignored(bed, topic) -> None:
    check_untouched(bed, lambda: bed.raw(topic, pack(Packet(1, EPOCH, Gone(bytes(32))))))


def test_messages_for_other_nodes_are_dropped(bed) -> None:
    for to in (Address("device", "other"), Address("edge", "other"), Address("cloud", "other")):
        topic, data = topics.inbox(FLEET, to, "e"), pack(Packet(1, EPOCH, Gone(bytes(32))))
        check_untouched(bed, lambda topic=topic, data=data: bed.raw(topic, data))


@pytest.mark.parametrize("message", EXAMPLES, ids=lambda message: type(message).__name__)
def test_every_message_from_every_sender_is_survived(bed, message) -> None:
    for sender in SENDERS[bed.kind]:
        for _ in range(2):
            bed.report(sender, message)
    bed.node.tick(2.0)


def test_random_bytes_in_any_inbox_are_survived(bed) -> None:
    draw = random.Random(1)
    packets = [pack(Packet(1, EPOCH, message)) for message in EXAMPLES]
    for turn in range(1500):
        data = bytearray(draw.choice(packets))
        for _ in range(draw.randint(1, 4)):
            match draw.randint(0, 3):
                case 0:
                    data[draw.randrange(len(data))] = draw.randrange(256)
                case 1:
                    del data[draw.randrange(len(data)) :]
                    data += b"\x00"
                case 2:
                    data.insert(draw.randrange(len(data)), draw.randrange(256))
                case 3:
                    data = bytearray(draw.randbytes(draw.randint(1, 200)))
        sender = draw.choice(SENDERS[bed.kind])
        bed.raw(topics.inbox(FLEET, bed.node.address, sender), bytes(data), float(turn))
        bed.raw(topics.state(FLEET, Address(draw.choice(("device", "edge", "cloud")), "x")), bytes(data), float(turn))
    assert bed.node.reception.dropped.total() > 1000
    bed.node.tick(5000.0)
    type(bed.machine.state)  # still there
    assert isinstance(bed.machine.snapshot(), bytes)


def test_wrong_field_types_in_any_inbox_are_survived(bed) -> None:
    odd: list[Any] = [
        None, True, -1, 2**63, 1.5, float("nan"), "", "x" * 3000, b"", [], [[]], {}, {"a": {}}, [1, 2, 3], bytes(32),
    ]  # fmt: skip
    for message in EXAMPLES:
        plain = msgpack.unpackb(pack(Packet(1, EPOCH, message)))
        for field in plain:
            for value in odd:
                data = msgpack.packb({**plain, field: value})
                for sender in SENDERS[bed.kind]:
                    bed.raw(topics.inbox(FLEET, bed.node.address, sender), data)
    assert bed.node.reception.dropped.total() > 1000


def test_deep_and_large_packets_are_dropped(bed) -> None:
    topic = topics.inbox(FLEET, bed.node.address, SENDERS[bed.kind][0])
    for data in (b"\x91" * 100_000, b"\x81\xa1a" * 50_000, bytes((8 << 20) + 1), b"\xdd\x7f\xff\xff\xff", b""):
        check_untouched(bed, lambda data=data: bed.raw(topic, data))


def test_dropped_messages_are_logged_once(bed, caplog) -> None:
    with caplog.at_level(logging.WARNING):
        for _ in range(50):
            bed.raw(topics.inbox(FLEET, bed.node.address, SENDERS[bed.kind][0]), b"rubbish")
    assert bed.node.reception.dropped.total() == 50
    assert sum("dropped a message" in record.message for record in caplog.records) == 1


def test_only_configured_edge_servers_may_write_to_a_device() -> None:
    bed = agent()
    check_untouched(bed, lambda: bed.report("x", visit()))
    bed.report("e", visit())
    assert bed.machine.state.held


def test_messages_not_allowed_for_the_sender_role_are_dropped() -> None:
    bed = edge()
    progress = Progress(VisitId("j", 1, 0, 0, (1, 1)), "training", 0, 0)
    for sender, message in (("d", RosterAsk()), ("d", EXAMPLES[16]), ("c", progress)):
        check_untouched(bed, lambda sender=sender, message=message: bed.report(sender, message))


def test_presence_is_accepted_only_from_watched_roles() -> None:
    bed = edge()
    bed.presence(Address("device", "d"), Birth(OFFER))
    assert set(bed.machine.roster.members) == {"d"}
    for who in (Address("edge", "e2"), Address("cloud", "c")):
        check_untouched(bed, lambda who=who: bed.presence(who, Birth()))


def test_removed_device_leaves_and_may_return_with_a_new_epoch() -> None:
    bed = edge()
    device = Address("device", "d")
    bed.presence(device, Birth(OFFER), Epoch(7, b"x" * 8))
    bed.raw(topics.state(FLEET, device), b"")
    assert bed.machine.roster.members == {}
    bed.raw(topics.state(FLEET, device), b"")  # repeated, it is ignored
    bed.presence(device, Birth(OFFER), Epoch(1, b"y" * 8))
    assert set(bed.machine.roster.members) == {"d"}
    progress = Progress(VisitId("j", 1, 0, 0, (1, 1)), "training", 0, 0)
    bed.report("d", progress, Epoch(1, b"y" * 8))
    assert not bed.node.reception.dropped


def test_removed_edge_server_is_no_longer_listed() -> None:
    bed = cloud()
    bed.presence(Address("edge", "e"), Birth())
    assert bed.machine.sites.unread(0.0) == ["e"]
    bed.raw(topics.state(FLEET, Address("edge", "e")), b"")
    assert bed.machine.sites.unread(0.0) == []


def test_death_counts_only_for_the_boot_it_names() -> None:
    bed = edge()
    device = Address("device", "d")
    bed.presence(device, Birth(OFFER), Epoch(2, b"second##"))
    bed.presence(device, Death(), Epoch(1, b"first###"))
    assert set(bed.machine.roster.members) == {"d"}
    bed.presence(device, Death(), Epoch(2, b"other###"))
    assert set(bed.machine.roster.members) == {"d"}
    bed.presence(device, Death(), Epoch(2, b"second##"))
    assert not bed.machine.roster.members


def test_messages_of_an_earlier_boot_are_dropped() -> None:
    bed = edge()
    bed.presence(Address("device", "d"), Birth(OFFER), Epoch(7, b"12345678"))
    declined = Declined(VisitId("job", 1, 0, 0, (1, 1)), "hot", "")
    check_untouched(bed, lambda: bed.report("d", declined, Epoch(6, b"12345678")))
    bed.report("d", declined, Epoch(7, b"12345678"))
    bed.report("d", declined, Epoch(8, b"12345678"))
    assert bed.node.reception.dropped.total() == 1


def test_lost_store_may_restart_its_boot_count() -> None:
    bed = edge()
    device = Address("device", "d")
    bed.presence(device, Birth(OFFER), Epoch(7, b"12345678"))
    bed.presence(device, Birth(OFFER), Epoch(1, b"abcdefgh"))
    bed.report("d", Declined(VisitId("job", 1, 0, 0, (1, 1)), "hot", ""), Epoch(1, b"abcdefgh"))
    assert not bed.node.reception.dropped


def test_inline_blobs_are_stored_and_verified() -> None:
    bed = agent()
    bed.report("e", visit())
    assert bed.workers.begun
    assert bed.node.store.blobs.read(digest_of(b"model")) == b"model"
    wrong = visit((1, 2))
    wrong.vectors["model"] = Ref(digest_of(b"model"), 5, "float32", inline=b"Model")
    check_untouched(bed, lambda: bed.report("e", wrong))


def test_blob_is_inlined_once_per_node_and_fetched_if_lost() -> None:
    bed = edge()
    for name in ("d1", "d2"):
        bed.presence(Address("device", name), Birth(OFFER))
    graph, card = (Ref(ref.digest, ref.size, inline=data) for data in (b"graph", b"card") for ref in [ref_of(data)])
    order = sign(Order("f", "digits", 1, 1, None), Signer(Ed25519PrivateKey.generate()))
    for devices in (("d1",), ("d1", "d2")):
        bed.report("c", Ship(order, graph, card, devices))
    rode = [(there(each.graph).inline, there(each.card).inline) for each in bed.sent() if isinstance(each, Release)]
    assert rode == [(b"graph", b"card"), (None, None), (b"graph", b"card")]
    bed.wire.published.clear()
    bed.report("d1", Fetch(graph.digest, 0, 1))
    assert [message.data for message in bed.sent()] == [b"graph"]


def test_large_blobs_are_fetched() -> None:
    bed = agent()
    data = bytes(100_000)
    ref = ref_of(data, "float32")
    asked = visit()
    asked.vectors["model"] = ref
    bed.report("e", asked)
    bed.node.tick(1.0)
    assert not bed.workers.begun
    assert [type(message).__name__ for message in bed.sent()] == ["FetchHashes", "Progress"]


def test_device_without_disk_space_declines_the_visit(monkeypatch) -> None:
    def full(*_args) -> bytes:
        raise DiskFull("no space")

    store = MemoryStore()
    monkeypatch.setattr(store.blobs, "put", full)
    bed = agent(store)
    kit = ref_of(b"kit")
    asked = visit()
    monkeypatch.setattr(store.blobs, "complete", full)
    bed.report("e", asked)
    bed.node.tick(1.0)
    assert isinstance(bed.sent()[-1], Progress)
    assert any(isinstance(message, Fetch) for message in bed.sent())
    bed.report("e", Chunk(kit.digest, 0, b"kit"))
    declined = bed.sent()[-1]
    assert isinstance(declined, Declined)
    assert declined.reason == "disk"
    assert bed.machine.state.held == {}


def test_journal_write_waits_for_a_full_disk(tmp_path, caplog) -> None:
    store = FolderStore(tmp_path)
    pauses: list[float] = []

    def pause(seconds: float) -> None:
        pauses.append(seconds)
        if len(pauses) == 3:
            store._db.execute("pragma max_page_count = 100000")

    bed = agent(store, pause)
    store._db.execute("pragma max_page_count = 1")
    store._db.execute("pragma wal_checkpoint(truncate)")
    (pages,) = store._db.execute("pragma page_count").fetchone()
    store._db.execute(f"pragma max_page_count = {pages}")
    published: list[int] = []
    bed.wire.before_sending = lambda: published.append(len(pauses))
    with caplog.at_level(logging.ERROR):
        for number in range(40):
            bed.report("e", Visit(VisitId("job", 1, number, 0, (1, 1)), *_rest(visit())))
            bed.report("e", EXAMPLES[7].__class__(VisitId("job", 1, number, 0, (1, 1))))
    assert pauses == [2.0] * 3
    assert sum("free some space" in record.message for record in caplog.records) == 1
    state = bed.machine.snapshot()
    store.close()
    again = agent(FolderStore(tmp_path))
    assert again.machine.snapshot() == state


def _rest(asked: Visit) -> tuple[Any, ...]:
    return asked.kit, asked.vectors, asked.task, asked.seed, asked.lease


def test_failed_snapshot_keeps_the_journal(tmp_path, monkeypatch, caplog) -> None:
    monkeypatch.setattr("sojourn.node.node.RECORDS_PER_SNAPSHOT", 2)
    store = MemoryStore()

    def full(_state: bytes) -> None:
        raise DiskFull("no space")

    monkeypatch.setattr(store, "snapshot", full)
    bed = agent(store)
    bed.report("e", visit())
    bed.report("e", visit((1, 2)))
    bed.report("e", visit((1, 3)))
    assert "no snapshot is written" in caplog.text
    again = agent(store)
    assert again.machine.snapshot() == bed.machine.snapshot()


def test_unsendable_message_is_logged_and_not_fatal(caplog) -> None:
    bed = agent()
    bed.wire.broken = True
    bed.report("e", visit())
    bed.node.tick(1.0)
    assert "cannot send" in caplog.text


def test_messages_are_sent_after_their_record_is_written() -> None:
    order: list[str] = []

    class Noting(MemoryStore):
        def append(self, record: bytes, *, sync: bool) -> None:
            order.append("record")
            super().append(record, sync=sync)

    bed = agent(Noting())
    bed.wire.before_sending = lambda: order.append("send")
    bed.report("e", visit())
    bed.node.tick(1.0)
    assert order == ["record", "send"]


def test_result_of_cancelled_work_is_ignored() -> None:
    from sojourn.node.machine import WorkDone

    bed = agent()
    bed.report("e", visit())
    bed.node.inject(WorkDone("unknown", None), 2.0)
    assert bed.machine.state.held
    assert isinstance(bed.workers.begun[0], Train)


@pytest.mark.parametrize("keeps", [True, False])
def test_blob_sweep_keeps_blobs_of_running_work(keeps, monkeypatch) -> None:
    bed = cloud()
    digest = bed.node.store.blobs.put(b"unreferenced")
    monkeypatch.setattr(bed.machine, "handle", lambda _event, _now: [StartWork("measure job", None, keeps)])
    bed.node.inject(LinkUp(), 1.0)
    monkeypatch.undo()
    bed.node.tick(1e6)
    assert bed.node.store.blobs.has(digest) is keeps
    bed.node.inject(WorkFailed("measure job", "failed", "?"), 1e6)
    bed.node.tick(2e6)
    assert not bed.node.store.blobs.has(digest)


def test_prepare_fetches_the_kit() -> None:
    bed = agent()
    kit = ref_of(bytes(90_000))
    bed.report("e", Prepare("job", kit, TASK))
    assert [type(message).__name__ for message in bed.sent()] == ["FetchHashes"]


def test_roster_fetch_is_retried_after_gone() -> None:
    bed = cloud()
    members = ref_of(b"\x90")
    bed.presence(Address("edge", "e"), Birth())
    bed.report("e", Roster(1, members))
    bed.report("e", Gone(members.digest))
    assert not any(type(message).__name__ == "RosterSeen" for message in bed.sent())
    bed.report("e", Roster(1, Ref(members.digest, 1, inline=b"\x90")))
    assert len(bed.workers.begun) == 1


def test_result_of_unknown_visit_is_discarded() -> None:
    bed = edge()
    bed.report("d", Visited(VisitId("job", 1, 0, 0, (1, 1)), {}, 5, {}))
    assert [type(message).__name__ for message in bed.sent()] == ["Discarded"]


FIRST, SECOND = Epoch(3, b"agent  1"), Epoch(9, b"agent  2")


def clashes(bed: Bed, epochs, caplog) -> tuple[bool, int]:
    """Return whether a device counts as two after these births, and how many warnings were logged."""
    caplog.clear()
    for epoch in epochs:
        bed.presence(Address("device", "d"), Birth(OFFER), epoch)
    warnings = [it for it in caplog.records if it.getMessage().startswith("two agents use the name 'd'")]
    return bed.machine.roster.members["d"].clash, len(warnings)


def test_alternating_starts_are_a_name_clash(caplog) -> None:
    assert clashes(edge(), [FIRST, SECOND, FIRST, SECOND], caplog) == (True, 1)
    assert clashes(edge(), [FIRST, SECOND] * 5, caplog) == (True, 1)


def test_name_clash_is_detected_despite_wills(caplog) -> None:
    bed, device = edge(), Address("device", "d")
    for epoch in [FIRST, SECOND] * 3:
        bed.presence(device, Birth(OFFER), epoch)
        bed.presence(device, Death(), epoch)
    assert clashes(bed, [FIRST], caplog)[0]


def test_restarts_and_reconnects_are_no_name_clash(caplog) -> None:
    restarts = [Epoch(number, b"%8d" % number) for number in range(1, 20)]
    assert clashes(edge(), restarts, caplog) == (False, 0)
    bed, device = edge(), Address("device", "d")
    for _ in range(9):  # its line is cut again and again
        bed.presence(device, Birth(OFFER), FIRST)
        bed.presence(device, Death(), FIRST)
    assert clashes(bed, [FIRST, SECOND], caplog) == (False, 0)


def test_replayed_presence_is_no_name_clash(caplog) -> None:
    bed = edge()
    for _ in range(9):
        bed.node.link_up(bed.wire, 1.0)
        assert clashes(bed, [FIRST, SECOND], caplog) == (False, 0)


def test_name_clash_ends_when_alternation_stops() -> None:
    bed, device = edge(), Address("device", "d")
    for epoch in [FIRST, SECOND] * 2:
        bed.presence(device, Birth(OFFER), epoch)
    assert bed.node.wake_at() is not None
    bed.node.tick(1.0 + CLASH_SECONDS)
    assert not bed.machine.roster.members["d"].clash
    bed.raw(topics.state(FLEET, device), pack(Packet(1, FIRST, Birth(OFFER))), 2 * CLASH_SECONDS)
    assert not bed.machine.roster.members["d"].clash


def test_two_edge_servers_of_one_name_are_reported(caplog) -> None:
    bed = cloud()
    for epoch in [FIRST, SECOND] * 2:
        bed.presence(Address("edge", "e"), Birth(), epoch)
    assert "two edge servers use the name 'e'" in caplog.text
