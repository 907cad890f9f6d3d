"""The bounded reader: any input is either read or rejected."""

from __future__ import annotations

import tracemalloc
from itertools import islice

import pytest
from hypothesis import given
from hypothesis import strategies as st
from onnx import AttributeProto, TensorProto

from sojourn.errors import GraphRefused
from sojourn.model import onnx_rules as form
from sojourn.model.inspection import _Inspection
from sojourn.model.protobuf import MessageForm, WireReader
from tests.sojourn.model.fuzz_inspection import outcome, rounds
from tests.sojourn.model.onnx_made import model, weights


def read(data: bytes, kind: MessageForm = form.ATTRIBUTE):
    return WireReader(data).message(0, len(data), kind)


@given(st.lists(st.integers(-(1 << 63), (1 << 63) - 1), max_size=20), st.text("aé/_0", max_size=40))
def test_reader_parses_protobuf_output(numbers: list[int], name: str) -> None:
    written = AttributeProto(name=name, ints=numbers, type=AttributeProto.INTS).SerializeToString()
    found = read(written)
    assert found.text("name", 1000) == name.encode()
    assert found.number("type") == AttributeProto.INTS
    assert found.numbers("ints", 20) == numbers


@given(st.lists(st.integers(-(1 << 63), (1 << 63) - 1), min_size=1, max_size=200))
def test_reader_counts_packed_varints(numbers: list[int]) -> None:
    written = TensorProto(int64_data=numbers).SerializeToString()
    reader = WireReader(written)
    span = reader.message(0, len(written), form.TENSOR).span("int64_data")
    assert reader.count_varints(*span) == len(numbers)
    assert reader.varints(*span, limit=200) == numbers


def test_packed_and_unpacked_lists_are_equal_but_not_mixed() -> None:
    assert read(b"\x42\x03\x01\x02\x03").numbers("ints", 9) == [1, 2, 3]
    assert read(b"\x40\x01\x40\x02\x40\x03").numbers("ints", 9) == [1, 2, 3]
    with pytest.raises(GraphRefused, match="both packed and unpacked"):
        read(b"\x42\x01\x01\x40\x02").numbers("ints", 9)
    with pytest.raises(GraphRefused, match="more than 2"):
        read(b"\x40\x01\x40\x02\x40\x03").numbers("ints", 2)
    with pytest.raises(GraphRefused, match="more than 2 numbers"):
        read(b"\x42\x03\x01\x02\x03").numbers("ints", 2)


@pytest.mark.parametrize(
    ("data", "words"),
    [
        (b"\x0a\x05abc", "the name of a attribute ends after the end of the file"),
        (b"\x15\x00\x00", "the f of a attribute ends after the end of the file"),
        (b"\x0a", "it contains an unterminated number"),
        (b"\x18" + b"\x80" * 10 + b"\x01", "it contains an unterminated number"),
        (b"\x18" + b"\xff" * 9 + b"\x7f", "it contains an unterminated number"),
        (b"\x0b\x0c", "the name of a attribute has the wrong wire type"),
        (b"\x00\x00", "a attribute has the unknown field 0"),
    ],
)
def test_incomplete_messages_are_rejected(data: bytes, words: str) -> None:
    with pytest.raises(GraphRefused, match=words):
        read(data)


def test_field_count_is_bounded() -> None:
    data = b"\x40\x01" * 100
    assert len(WireReader(data, 100).message(0, len(data), form.ATTRIBUTE).numbers("ints", 100)) == 100
    with pytest.raises(GraphRefused, match="too many fields"):
        WireReader(data, 99).message(0, len(data), form.ATTRIBUTE)


@given(st.binary(max_size=400))
def test_arbitrary_bytes_are_rejected_without_a_crash(data: bytes) -> None:
    assert outcome(data) in ("refused", "allowed, and refused by protobuf")


def test_mutated_graphs_are_read_like_protobuf_or_rejected() -> None:
    """`python -m tests.sojourn.model.fuzz_inspection` runs this for longer."""
    found = {outcome(data) for data in islice(rounds(seed=1), 3000)}
    assert found >= {"refused", "allowed"}


def test_inspection_copies_no_tensor_data() -> None:
    data = model(fixed=[weights(), weights("much", (500_000,))]).SerializeToString()
    tracemalloc.start()
    _Inspection(data).signature()
    peak = tracemalloc.get_traced_memory()[1]
    tracemalloc.stop()
    assert peak < 0.1 * len(data)  # besides the file itself


def test_file_of_empty_nodes_is_rejected_before_using_memory() -> None:
    # A version, an opset, and a graph of a million bytes.
    many = b"\x08\x09" + b"\x42\x02\x10\x12" + b"\x3a\xc0\x84\x3d" + b"\x0a\x00" * 500_000
    with pytest.raises(GraphRefused, match="a graph has its node more than 65536 times"):
        _Inspection(many).signature()
