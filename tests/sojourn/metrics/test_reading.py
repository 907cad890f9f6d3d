"""Metric values: histograms of durations, and labels with text of peers."""

from __future__ import annotations

import pytest

from sojourn.errors import Fault
from sojourn.metrics.catalogue import AGENT_STATE, BOUNDS, DISK_FREE, LABEL, SITE_UP, Durations, Reading


def test_durations_are_counted_in_cumulative_buckets() -> None:
    durations = Durations()
    for seconds in (0.0, 0.1, 0.2, 60.0, 1e9):
        durations.add(seconds)
    counts, total = durations.seen()
    assert counts[:2] == (2, 3)  # a bound counts what is as long
    assert counts[BOUNDS.index(30.0)] == 3
    assert counts[BOUNDS.index(60.0)] == 4
    assert counts[-2:] == (4, 5)
    assert total == pytest.approx(60.3 + 1e9)


def test_wrong_label_count_raises_a_fault() -> None:
    with pytest.raises(Fault, match="sojourn_disk_free_bytes"):
        Reading().put(DISK_FREE, 1, "too many")


def test_hostile_label_becomes_one_short_line() -> None:
    reading = Reading()
    reading.put(SITE_UP, 1, "a\n\x1b[31m\u202eevil\x00\udc80" + "x" * 200)
    ((label,),) = reading.values[SITE_UP]
    assert label.startswith("a evilx")
    assert len(label) <= LABEL
    label.encode()


def test_exactly_one_state_of_an_enum_is_set() -> None:
    reading = Reading()
    reading.put_one_of(AGENT_STATE, ("idle", "training"), "training")
    assert reading.values[AGENT_STATE] == {("idle",): 0, ("training",): 1}
