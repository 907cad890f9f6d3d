"""How tables of simulations look on a terminal."""

from __future__ import annotations

from rich.table import Table


def plain_table(title: str, *headings: str) -> Table:
    """A table without lines under a bold title; the first column holds names, the others numbers."""
    table = Table(
        title=f"\n{title}" if title else None,
        title_justify="left",
        title_style="bold",
        caption_justify="left",
        box=None,
        pad_edge=False,
        padding=(0, 2, 0, 0),
        header_style="dim",
    )
    for at, heading in enumerate(headings):
        # A name that is too long for the terminal goes on in the next line; a number that is cut would be another one.
        table.add_column(heading, justify="right" if at else "left", no_wrap=bool(at), overflow="fold")
    return table
