"""Records which rows of a state machine's table a test takes."""

from __future__ import annotations

from typing import TYPE_CHECKING

from sojourn.node.table import Event, State, Table

if TYPE_CHECKING:
    import pytest


def rows_taken(monkeypatch: pytest.MonkeyPatch, wanted: Table[State, Event]) -> set[tuple[State, Event]]:
    """Return the rows of this table that are taken from now on; the set grows as they are taken."""
    rows: set[tuple[State, Event]] = set()
    step = Table.step

    def recording(table: Table[State, Event], state: State, event: Event) -> State:
        following = step(table, state, event)
        if table is wanted:
            rows.add((state, event))
        return following

    monkeypatch.setattr(Table, "step", recording)
    return rows
