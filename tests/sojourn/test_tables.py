"""Tables on a terminal: texts wrap, numbers do not."""

from __future__ import annotations

from rich.console import Console

from sojourn.tables import number_table, plain_table


def shown(table) -> list[str]:
    console = Console(width=16)
    with console.capture() as capture:
        console.print(table)
    return [line.rstrip() for line in capture.get().splitlines()]


def test_plain_table_wraps_long_texts() -> None:
    table = plain_table("name", "what")
    table.add_row("device-1", "offline")
    assert shown(table) == ["name     what", "device-  offline", "1"]


def test_number_table_wraps_names_and_keeps_numbers_whole() -> None:
    table = number_table("sites", "name", "visits", "MB")
    table.add_row("site-1", "12", "3.45")
    assert shown(table) == ["", "sites", "na", "me  visits    MB", "si      12  3.45", "te", "-1"]
