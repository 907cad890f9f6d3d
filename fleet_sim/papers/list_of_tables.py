"""Which tables there are, and how far each of them has come."""

from __future__ import annotations

from typing import TYPE_CHECKING

from fleet_sim.console.tables import plain_table
from fleet_sim.papers.kept_results import read_kept
from fleet_sim.papers.paper_table import folder_of, read_table, tables_in

if TYPE_CHECKING:
    from pathlib import Path

    from rich.console import Console


def show_tables(home: Path, console: Console) -> None:
    """One line for each table."""
    folders = tables_in(home)
    if not folders:
        folder_of("", home)
    table = plain_table("", "table", "methods", "runs", "done")
    # The name is what one types next: however narrow the screen is, only what the table is about is broken into lines.
    table.columns[0].no_wrap = True
    table.columns[0].min_width = max(len(folder.name) for folder in folders)
    table.add_column("what", overflow="fold")
    for folder in folders:
        settings, files = read_table(folder)
        runs = {(file.stem, seed) for file in files for seed in settings.seeds}
        done = runs & read_kept(folder).keys()
        table.add_row(folder.name, str(len(files)), str(len(runs)), str(len(done)), settings.title)
    console.print(table)
    console.print("To run one, or go on with it: sojourn papers TABLE", markup=False)
