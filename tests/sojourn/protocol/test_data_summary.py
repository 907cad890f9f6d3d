"""What a device understood of its data: what people read, and what an owner lets others know."""

from __future__ import annotations

import msgspec
import pytest

from sojourn.protocol.data_summary import DataSummary, Quantity, SeriesSummary
from sojourn.protocol.wire import Offer

WHOLE = DataSummary(
    samples=1360,
    shape=(1, 8, 8),
    dtype="float32",
    low=0.0,
    high=16.0,
    classes=("cat", "dog"),
    counts=(1000, 360),
    class_count=2,
    labels="column 'kind', as data.label says",
    warnings=("all samples are alike",),
)


def test_all_of_it_in_lines() -> None:
    assert WHOLE.lines() == [
        "1,360 samples of shape 1 x 8 x 8, float32, values 0 to 16",
        "2 classes: cat (1,000), dog (360)",
        "labels: column 'kind', as data.label says",
        "warning: all samples are alike",
    ]


def test_data_that_cannot_be_read_has_one_line() -> None:
    assert DataSummary(fault="x.npz does not exist").lines() == ["no data: x.npz does not exist"]


@pytest.mark.parametrize(
    ("shares", "lines"),
    [
        ((), ["1,360 samples of shape 1 x 8 x 8, float32"]),
        (("range",), ["1,360 samples of shape 1 x 8 x 8, float32, values 0 to 16"]),
        (("classes",), ["1,360 samples of shape 1 x 8 x 8, float32", "2 classes: cat, dog"]),
        (("class-counts",), ["1,360 samples of shape 1 x 8 x 8, float32", "2 classes: cat (1,000), dog (360)"]),
    ],
)
def test_others_know_what_is_shared(shares: tuple[str, ...], lines: list[str]) -> None:
    told = WHOLE.shared(shares)
    assert told.lines() == [*lines, *WHOLE.lines()[2:]]
    kept = msgspec.to_builtins(told)
    assert ("low" in kept, "classes" in kept, "counts" in kept) == (
        "range" in shares,
        bool(shares) and "range" not in shares,
        "class-counts" in shares,
    )


def test_many_long_names_are_counted_and_some_told() -> None:
    many = DataSummary(
        samples=64, classes=tuple(f"{at:040}" for at in range(64)), counts=(1,) * 64, class_count=500, dtype="uint8"
    )
    told = many.shared(("class-counts",))
    assert (len(told.classes), len(told.counts), told.class_count) == (10, 10, 500)
    assert told.lines()[0] == "64 samples of different shapes, uint8"
    assert told.lines()[1].endswith(" and 490 more")
    assert len(msgspec.msgpack.encode(told)) < 1024


def test_text_of_a_peer_is_safe_for_a_terminal() -> None:
    evil = DataSummary(samples=1, classes=("\x1b[2Jcat",), class_count=1, labels="a\nb")
    assert evil.lines() == ["1 samples", "1 class: cat", "labels: a b"]


def test_what_a_peer_says_only_in_part_is_shown_all_the_same() -> None:
    odd = DataSummary(samples=3, targets=(Quantity("a", low=1.0), Quantity("\x1b[2Jb", 1.0, 2.0)), target_count=9)
    assert odd.lines() == ["3 samples", "9 quantities: a, b 1 to 2 and 7 more"]
    assert DataSummary(samples=3, series=SeriesSummary()).lines() == [
        "3 steps of 1 channel; 0 gaps, the longest stretch without one has 0 steps"
    ]
    assert len(msgspec.structs.fields(DataSummary)) < 16


def test_what_is_not_there_is_not_sent() -> None:
    old = {"samples": 5, "shape": (2,), "dtype": "float32", "labels": "the array y"}
    assert msgspec.to_builtins(DataSummary(samples=5, shape=(2,), dtype="float32", labels="the array y")) == old


def test_an_older_coordinator_reads_what_a_newer_agent_tells() -> None:
    class Older(msgspec.Struct):
        samples: int = 0
        labels: str = ""

    told = DataSummary(
        samples=5, labels="x", targets=(Quantity("a", 0.0, 1.0),), target_count=1, series=SeriesSummary()
    )
    assert msgspec.msgpack.decode(msgspec.msgpack.encode(told), type=Older) == Older(5, "x")


@pytest.mark.parametrize(
    "wrong",
    [
        {"samples": -1},
        {"classes": ["a"] * 65},
        {"classes": ["a" * 81]},
        {"counts": [1 << 41]},
        {"warnings": ["a"] * 9},
        {"fault": "a" * 301},
        {"low": 1e39},
        {"shape": [1] * 9},
        {"targets": [{}] * 17},
        {"targets": [{"name": "a" * 81}]},
        {"targets": [{"low": 1e39}]},
        {"target_count": -1},
        {"series": {"kind": "a" * 81}},
        {"series": {"gaps": 1 << 60}},
    ],
)
def test_a_peer_cannot_say_too_much(wrong: dict[str, object]) -> None:
    with pytest.raises(msgspec.ValidationError):
        msgspec.msgpack.decode(msgspec.msgpack.encode(wrong), type=DataSummary)


def test_an_older_offer_has_none() -> None:
    older = {"version": "0.3.0", "machine": "", "runtime": "", "threads": 1, "memory": 0, "objectives": [], "data": ""}
    assert msgspec.convert(older, Offer).summary is msgspec.UNSET
