"""Every kind of message survives a round trip, and any other bytes raise InvalidMessage."""

from __future__ import annotations

import tracemalloc
from contextlib import suppress
from typing import Any

import msgpack
import msgspec
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from sojourn.errors import InvalidMessage
from sojourn.protocol.envelope import (
    MAX_ITEMS,
    MAX_PACKET,
    MAX_STRING,
    MESSAGES,
    Packet,
    bounded,
    kind,
    pack,
    pack_blob,
    unpack,
    unpack_blob,
    unpack_presence,
)
from sojourn.protocol.messages import Accepted, Birth, Death, Declined, Fetch, Gone, Progress, Visit, Visited
from sojourn.protocol.topics import Address
from sojourn.protocol.wire import Epoch, Member, Offer, Ref, VisitId
from tests.sojourn.protocol.examples import EXAMPLES, TASK

EPOCH = Epoch(3, b"12345678")
EDGE, DEVICE, CLOUD = Address("edge", "e"), Address("device", "d"), Address("cloud", "c")
BY_ROLE = {"edge": EDGE, "device": DEVICE, "cloud": CLOUD}


def test_every_kind_has_an_example() -> None:
    assert {type(example) for example in EXAMPLES} == set(MESSAGES.values())


@pytest.mark.parametrize("message", EXAMPLES, ids=kind)
def test_every_kind_round_trips_only_between_allowed_roles(message) -> None:
    data = pack(Packet(7, EPOCH, message))
    for sender in BY_ROLE.values():
        for to in BY_ROLE.values():
            if (sender.role, to.role) in message.routes:
                assert unpack(data, sender, to) == Packet(7, EPOCH, message)
            else:
                with pytest.raises(InvalidMessage, match="may not send"):
                    unpack(data, sender, to)


def test_device_may_exchange_messages_only_with_edge_servers() -> None:
    for routes in (form.routes for form in MESSAGES.values()):
        assert ("device", "cloud") not in routes
        assert ("device", "device") not in routes
        assert ("cloud", "device") not in routes


@pytest.mark.parametrize("state", [Birth(), Birth(Offer("1", "m", "r", 4, 0, ("sgd",), "npz")), Death()])
def test_presence_round_trips(state) -> None:
    data = pack(Packet(1, EPOCH, state))
    assert unpack_presence(data) == Packet(1, EPOCH, state)
    with pytest.raises(InvalidMessage, match="unknown kind"):
        unpack(data, DEVICE, EDGE)


def test_message_is_rejected_as_presence() -> None:
    with pytest.raises(InvalidMessage, match="unknown kind"):
        unpack_presence(pack(Packet(1, EPOCH, Gone(bytes(32)))))


def fields(message=Gone(bytes(32)), **changes) -> Any:  # noqa: B008  # frozen
    plain = msgpack.unpackb(pack(Packet(7, EPOCH, message)))
    plain.update(changes)
    return msgpack.packb({key: value for key, value in plain.items() if value != "absent"})


@pytest.mark.parametrize(
    "data",
    [
        b"",
        b"\xc1",
        b"\x93\x01\x02",
        msgpack.packb([1, 2, 3]),
        msgpack.packb("gone"),
        msgpack.packb({1: 2}),
        msgpack.packb({}) + b"more",
        fields(kind="unknown"),
        fields(kind=3),
        fields(kind=["gone"]),
        fields(kind="absent"),
        fields(id="absent"),
        fields(id=-1),
        fields(id=1 << 53),
        fields(id="1"),
        fields(epoch="absent"),
        fields(epoch=[1]),
        fields(epoch=[1, b"short"]),
        fields(epoch=[-1, b"12345678"]),
        fields(digest=b"short"),
        fields(digest="x" * 32),
        fields(Fetch(bytes(32), 0, 1), count=0),
        fields(Fetch(bytes(32), 0, 1), count=1025),
        fields(Fetch(bytes(32), 0, 1), first=1.5),
        fields(Progress(VisitId("job", 1, 0, 0, (1, 1)), "training", 0, 0), visit=["Job", 1, 0, 0, [1, 1]]),
        fields(Progress(VisitId("job", 1, 0, 0, (1, 1)), "training", 0, 0), stage="resting"),
        fields(Declined(VisitId("job", 1, 0, 0, (1, 1)), "hot", "")) + b"\x00",
        fields(Declined(VisitId("job", 1, 0, 0, (1, 1)), "hot", ""), detail="x" * 2001),
        fields(Declined(VisitId("job", 1, 0, 0, (1, 1)), "hot", ""), detail="\ud800".encode("utf-8", "surrogatepass")),
        msgpack.packb({"kind": "gone", "x": msgpack.ExtType(5, b"")}),
        msgpack.packb({"kind": "gone", "x": msgpack.Timestamp(1)}),
        b"\x81\xa4kind\xdb\xff\xff\xff\xff",
        b"\x81\xa4kind\xdd\xff\xff\xff\xff",
        b"\x81\xa4kind" + b"\x91" * 2000,
        b"\x81\xa4kind" + b"\x91" * 100_000 + b"\x00",
        bytes(MAX_PACKET + 1),
    ],
)
def test_malformed_bytes_raise_invalid_message(data) -> None:
    for read in (lambda: unpack(data, DEVICE, EDGE), lambda: unpack_presence(data)):
        with pytest.raises(InvalidMessage):
            read()


def test_too_many_vectors_or_items_are_rejected() -> None:
    ref = msgspec.to_builtins(Ref(bytes(32), 1), builtin_types=(bytes,))
    visited = Visited(VisitId("job", 1, 0, 0, (1, 1)), {}, 5, {})
    assert unpack(fields(visited, vectors={str(number): ref for number in range(16)}), DEVICE, EDGE)
    for changes in (
        {"vectors": {str(number): ref for number in range(17)}},
        {"vectors": {"": ref}},
        {"metrics": {str(number): 0.0 for number in range(33)}},
        {"signature": [0.0] * 4097},
        {"samples": -1},
    ):
        with pytest.raises(InvalidMessage):
            unpack(fields(visited, **changes), DEVICE, EDGE)


@settings(deadline=None)
@given(st.binary(max_size=300))
def test_any_bytes_are_decoded_or_raise_invalid_message(data) -> None:
    for read in (lambda: unpack(data, DEVICE, EDGE), lambda: unpack_presence(data)):
        try:
            found = read()
        except InvalidMessage:
            continue
        assert isinstance(found, Packet)
    with suppress(InvalidMessage):
        bounded(data)


words = st.text(max_size=5) | st.binary(max_size=5)
plain = st.recursive(
    st.none() | st.booleans() | st.integers(-(2**63), 2**64 - 1) | st.floats() | words,
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(words, inner, max_size=3),
    max_leaves=8,
)


@settings(deadline=None)
@given(st.sampled_from(EXAMPLES), st.data())
def test_any_field_value_is_decoded_or_raises_invalid_message(message, data) -> None:
    whole = msgpack.unpackb(pack(Packet(7, EPOCH, message)))
    field = data.draw(st.sampled_from(sorted(whole)))
    whole[field] = data.draw(plain)
    packed = msgpack.packb(whole)
    for sender_role, to_role in message.routes:
        try:
            found = unpack(packed, BY_ROLE[sender_role], BY_ROLE[to_role])
        except InvalidMessage:
            continue
        assert isinstance(found, Packet)


def test_blob_structures_round_trip_and_invalid_ones_fail() -> None:
    members = [Member("d", EPOCH, None), Member("e", EPOCH, Offer("1", "m", "r", 4, 0, ("sgd",), "npz"))]
    assert unpack_blob(pack_blob(members), list[Member]) == members
    for data in (b"", b"\xc1", pack_blob([1]), pack_blob({"a": 1}), b"\x91" * 5000, msgpack.packb([["d"]])):
        with pytest.raises(InvalidMessage, match="not a valid"):
            unpack_blob(data, list[Member])


def test_kind_names_match_the_wire_format() -> None:
    assert kind(Accepted) == "accepted"
    assert kind(Visit(VisitId("j", 1, 0, 0, (1, 1)), Ref(bytes(32), 1), {}, TASK, 0, 1.0)) == "visit"


@pytest.mark.parametrize("message", [*EXAMPLES, Birth(), Death()], ids=kind)
def test_packet_is_one_msgpack_map_with_id_and_epoch_first(message) -> None:
    plain = msgspec.to_builtins(message, builtin_types=(bytes,))
    assert pack(Packet(7, EPOCH, message)) == msgpack.packb({"id": 7, "epoch": [3, b"12345678"], **plain})


def test_noncanonical_bytes_decode_equally_under_strict_checks() -> None:
    gone = Packet(7, EPOCH, Gone(bytes(32)))
    turned = dict(reversed(msgpack.unpackb(pack(gone)).items()))
    assert unpack(msgpack.packb(turned), DEVICE, EDGE) == gone
    for more in ({"x": 1}, {"x": {"y": [None]}}):
        assert unpack(msgpack.packb({**turned, **more}), DEVICE, EDGE) == gone
    for bad in ({"x": msgpack.ExtType(5, b"1")}, {"x": {1: 2}}, {"x": ["\ud800"]}):
        data = msgpack.packb({**turned, **bad}, unicode_errors="surrogatepass")
        with pytest.raises(InvalidMessage, match="not valid msgpack"):
            unpack(data, DEVICE, EDGE)


def test_overlong_list_in_unknown_field_is_rejected() -> None:
    assert unpack(fields(x=[0] * MAX_ITEMS), DEVICE, EDGE)
    with pytest.raises(InvalidMessage, match="not valid msgpack"):
        unpack(fields(x=[0] * (MAX_ITEMS + 1)), DEVICE, EDGE)


def test_overlong_text_in_unknown_field_is_rejected() -> None:
    assert unpack(fields(x="x" * MAX_STRING), DEVICE, EDGE)
    with pytest.raises(InvalidMessage, match="not valid msgpack"):
        unpack(fields(x="x" * (MAX_STRING + 1)), DEVICE, EDGE)


@pytest.mark.parametrize("rubbish", [b"\x90", b"\x80", b"\x91\x90", b"\xc0", b"\xa0"], ids=bytes.hex)
def test_decoding_a_blob_uses_bounded_memory(rubbish) -> None:
    count = 4_000_000 // len(rubbish)
    for data in (
        b"\xdd" + count.to_bytes(4) + rubbish * count,  # a list of them
        b"\x91\x93\xa1d\x92\x00\xc4\x0812345678\x81\xa1x\xdd"
        + count.to_bytes(4)
        + rubbish * count,  # in an unknown field
    ):
        tracemalloc.start()
        with pytest.raises(InvalidMessage):
            unpack_blob(data, list[Member])
        _, peak = tracemalloc.get_traced_memory()
        tracemalloc.stop()
        assert peak < 2 * len(data)


def test_oversized_blob_is_not_decoded() -> None:
    with pytest.raises(InvalidMessage, match="more than the limit of 5"):
        unpack_blob(bytes(6), list[Member], 5)
