"""Figures as plain numbers: durations counted by their length, labels that peers cannot spoil."""

from __future__ import annotations

import pytest

from sojourn.errors import Fault
from sojourn.metrics.catalogue import AGENT_STATE, DISK_FREE, SITE_UP
from sojourn.metrics.reading import BOUNDS, LABEL, Durations, Reading


def test_durations_are_counted_up_to_each_bound_and_all_of_them_at_last() -> None:
    durations = Durations()
    for seconds in (0.0, 0.1, 0.2, 60.0, 1e9):
        durations.add(seconds)
    counts, total = durations.seen()
    assert counts[:2] == (2, 3)  # a bound counts what is as long
    assert counts[BOUNDS.index(30.0)] == 3
    assert counts[BOUNDS.index(60.0)] == 4
    assert counts[-2:] == (4, 5)
    assert total == pytest.approx(60.3 + 1e9)


def test_labels_are_as_many_as_the_figure_has() -> None:
    with pytest.raises(Fault, match="sojourn_disk_free_bytes"):
        Reading().put(DISK_FREE, 1, "too many")


def test_text_of_others_becomes_one_short_line() -> None:
    reading = Reading()
    reading.put(SITE_UP, 1, "a\n\x1b[31m\u202eevil\x00\udc80" + "x" * 200)
    ((label,),) = reading.values[SITE_UP]
    assert label.startswith("a evilx")
    assert len(label) <= LABEL
    label.encode()


def test_one_of_a_closed_set_holds() -> None:
    reading = Reading()
    reading.put_one_of(AGENT_STATE, ("idle", "training"), "training")
    assert reading.values[AGENT_STATE] == {("idle",): 0, ("training",): 1}
