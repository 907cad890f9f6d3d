"""The style of tables on a terminal."""

from __future__ import annotations

from rich.table import Table


def plain_table(*headings: str) -> Table:
    """Return a table without lines, whose texts wrap if they are too long for the terminal."""
    table = Table(box=None, pad_edge=False, padding=(0, 2, 0, 0), header_style="dim")
    for heading in headings:
        table.add_column(heading, overflow="fold")
    return table


def number_table(title: str, *headings: str) -> Table:
    """Return a plain table under a bold title; the first column has names, the others numbers, which are never cut."""
    table = plain_table(*headings)
    table.title, table.title_justify, table.title_style = f"\n{title}" if title else None, "left", "bold"
    table.caption_justify = "left"
    for column in table.columns[1:]:
        column.justify, column.no_wrap = "right", True
    return table
