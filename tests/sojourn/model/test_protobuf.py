"""The bounded reader: what it reads, and that no bytes make it do anything but read or refuse."""

from __future__ import annotations

import tracemalloc
from itertools import islice

import pytest
from hypothesis import given
from hypothesis import strategies as st
from onnx import AttributeProto, TensorProto

from sojourn.errors import GraphRefused
from sojourn.model import onnx_form as form
from sojourn.model.inspection import _Inspection
from sojourn.model.protobuf import MessageForm, WireReader
from tests.sojourn.model.fuzz_inspection import outcome, rounds
from tests.sojourn.model.onnx_made import model, weights


def read(data: bytes, kind: MessageForm = form.ATTRIBUTE):
    return WireReader(data).message(0, len(data), kind)


@given(st.lists(st.integers(-(1 << 63), (1 << 63) - 1), max_size=20), st.text("aé/_0", max_size=40))
def test_it_reads_what_protobuf_writes(numbers: list[int], name: str) -> None:
    written = AttributeProto(name=name, ints=numbers, type=AttributeProto.INTS).SerializeToString()
    found = read(written)
    assert found.text("name", 1000) == name.encode()
    assert found.number("type") == AttributeProto.INTS
    assert found.numbers("ints", 20) == numbers


@given(st.lists(st.integers(-(1 << 63), (1 << 63) - 1), min_size=1, max_size=200))
def test_it_counts_numbers_in_a_block(numbers: list[int]) -> None:
    written = TensorProto(int64_data=numbers).SerializeToString()
    reader = WireReader(written)
    span = reader.message(0, len(written), form.TENSOR).span("int64_data")
    assert reader.count_varints(*span) == len(numbers)
    assert reader.varints(*span, most=200) == numbers


def test_a_list_in_one_block_and_number_by_number_is_the_same_list_but_not_both() -> None:
    assert read(b"\x42\x03\x01\x02\x03").numbers("ints", 9) == [1, 2, 3]
    assert read(b"\x40\x01\x40\x02\x40\x03").numbers("ints", 9) == [1, 2, 3]
    with pytest.raises(GraphRefused, match="written in two ways at once"):
        read(b"\x42\x01\x01\x40\x02").numbers("ints", 9)
    with pytest.raises(GraphRefused, match="more than 2"):
        read(b"\x40\x01\x40\x02\x40\x03").numbers("ints", 2)
    with pytest.raises(GraphRefused, match="more than 2 numbers"):
        read(b"\x42\x03\x01\x02\x03").numbers("ints", 2)


@pytest.mark.parametrize(
    ("data", "words"),
    [
        (b"\x0a\x05abc", "the name of a attribute ends after the file"),
        (b"\x15\x00\x00", "the f of a attribute ends after the file"),
        (b"\x0a", "a number in it has no end"),
        (b"\x18" + b"\x80" * 10 + b"\x01", "a number in it has no end"),
        (b"\x18" + b"\xff" * 9 + b"\x7f", "a number in it has no end"),
        (b"\x0b\x0c", "the name of a attribute is written as something else"),
        (b"\x00\x00", "a attribute has a field 0 that is not known here"),
    ],
)
def test_what_is_not_whole_is_refused(data: bytes, words: str) -> None:
    with pytest.raises(GraphRefused, match=words):
        read(data)


def test_what_it_spends_is_bounded() -> None:
    data = b"\x40\x01" * 100
    assert len(WireReader(data, 100).message(0, len(data), form.ATTRIBUTE).numbers("ints", 100)) == 100
    with pytest.raises(GraphRefused, match="more fields than are read here"):
        WireReader(data, 99).message(0, len(data), form.ATTRIBUTE)


@given(st.binary(max_size=400))
def test_any_bytes_are_read_or_refused(data: bytes) -> None:
    assert outcome(data) in ("refused", "allowed, and refused by protobuf")


def test_damaged_graphs_are_read_or_refused_and_never_fool_it() -> None:
    """`python -m tests.sojourn.model.fuzz_inspection` does this for as long as one likes."""
    found = {outcome(data) for data in islice(rounds(seed=1), 3000)}
    assert found >= {"refused", "allowed"}


def test_memory_stays_below_three_times_the_file() -> None:
    data = model(fixed=[weights(), weights("much", (500_000,))]).SerializeToString()
    tracemalloc.start()
    _Inspection(data).signature()
    peak = tracemalloc.get_traced_memory()[1]
    tracemalloc.stop()
    assert peak < 0.1 * len(data)  # besides the file itself


def test_a_file_of_nothing_but_empty_nodes_is_refused_before_it_takes_memory() -> None:
    # A version, a set of operators, and a graph of a million bytes.
    many = b"\x08\x09" + b"\x42\x02\x10\x12" + b"\x3a\xc0\x84\x3d" + b"\x0a\x00" * 500_000
    with pytest.raises(GraphRefused, match="a graph may have its node 65536 times, and has it more often"):
        _Inspection(many).signature()
