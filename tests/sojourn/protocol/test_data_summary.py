"""A device's data summary: its text, and the part that the owner shares."""

from __future__ import annotations

import msgspec
import pytest

from sojourn.protocol.data_summary import DataSummary, Quantity, SeriesSummary

WHOLE = DataSummary(
    samples=1360,
    shape=(1, 8, 8),
    dtype="float32",
    low=0.0,
    high=16.0,
    classes=("cat", "dog"),
    counts=(1000, 360),
    class_count=2,
    labels="column 'kind', set by data.label",
    warnings=("all samples are identical",),
)


def test_complete_summary_is_shown_in_lines() -> None:
    assert WHOLE.lines() == [
        "1,360 samples of shape 1 x 8 x 8, float32, values 0 to 16",
        "2 classes: cat (1,000), dog (360)",
        "labels: column 'kind', set by data.label",
        "warning: all samples are identical",
    ]


def test_unreadable_data_has_one_line() -> None:
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
def test_shared_summary_contains_only_shared_fields(shares: tuple[str, ...], lines: list[str]) -> None:
    shared = WHOLE.shared(shares)
    assert shared.lines() == [*lines, *WHOLE.lines()[2:]]
    kept = msgspec.to_builtins(shared)
    assert ("low" in kept, "classes" in kept, "counts" in kept) == (
        "range" in shares,
        bool(shares) and "range" not in shares,
        "class-counts" in shares,
    )


def test_many_long_class_names_are_truncated() -> None:
    many = DataSummary(
        samples=64, classes=tuple(f"{at:040}" for at in range(64)), counts=(1,) * 64, class_count=500, dtype="uint8"
    )
    shared = many.shared(("class-counts",))
    assert (len(shared.classes), len(shared.counts), shared.class_count) == (10, 10, 500)
    assert shared.lines()[0] == "64 samples of different shapes, uint8"
    assert shared.lines()[1].endswith(" and 490 more")
    assert len(msgspec.msgpack.encode(shared)) < 1024


def test_text_of_a_peer_is_safe_for_a_terminal() -> None:
    evil = DataSummary(samples=1, classes=("\x1b[2Jcat",), class_count=1, labels="a\nb")
    assert evil.lines() == ["1 samples", "1 class: cat", "labels: a b"]


def test_partial_summary_of_a_peer_is_shown() -> None:
    odd = DataSummary(samples=3, targets=(Quantity("a", low=1.0), Quantity("\x1b[2Jb", 1.0, 2.0)), target_count=9)
    assert odd.lines() == ["3 samples", "9 quantities: a, b 1 to 2 and 7 more"]
    assert DataSummary(samples=3, series=SeriesSummary()).lines() == [
        "3 steps of 1 channel; 0 gaps, the longest stretch without one has 0 steps"
    ]


def test_absent_fields_are_not_sent() -> None:
    old = {"samples": 5, "shape": (2,), "dtype": "float32", "labels": "the array y"}
    assert msgspec.to_builtins(DataSummary(samples=5, shape=(2,), dtype="float32", labels="the array y")) == old


def test_older_coordinator_reads_summary_of_a_newer_agent() -> None:
    class Older(msgspec.Struct):
        samples: int = 0
        labels: str = ""

    summary = DataSummary(
        samples=5, labels="x", targets=(Quantity("a", 0.0, 1.0),), target_count=1, series=SeriesSummary()
    )
    assert msgspec.msgpack.decode(msgspec.msgpack.encode(summary), type=Older) == Older(5, "x")


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
def test_oversized_summary_is_rejected(wrong: dict[str, object]) -> None:
    with pytest.raises(msgspec.ValidationError):
        msgspec.msgpack.decode(msgspec.msgpack.encode(wrong), type=DataSummary)
