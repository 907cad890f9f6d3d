"""Which rows of a state machine's table a test passes through."""

from __future__ import annotations

from typing import TYPE_CHECKING

from sojourn.node.table import Table

if TYPE_CHECKING:
    import pytest


def rows_taken(monkeypatch: pytest.MonkeyPatch, wanted: Table) -> set[tuple[str, str]]:
    """The rows of this table that are taken from now on, as they are taken."""
    rows: set[tuple[str, str]] = set()
    step = Table.step

    def recording(table: Table, state: str, event: str) -> str:
        following = step(table, state, event)
        if table is wanted:
            rows.add((state, event))
        return following

    monkeypatch.setattr(Table, "step", recording)
    return rows
