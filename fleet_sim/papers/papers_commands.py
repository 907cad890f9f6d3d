"""The command `sojourn papers`: reproduces tables of papers."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated, Any

import typer

from fleet_sim.console.setting_options import ENGINE, takes_settings
from fleet_sim.console.simulate_commands import simulation_console

app = typer.Typer(add_completion=False, help="Reproduce a table of a paper from its folder, and write its page.")


@app.command()
@takes_settings(*ENGINE)
def papers(
    *,
    table: Annotated[
        str | None, typer.Argument(metavar="TABLE", help="A table's name or folder. Without it, list all tables.")
    ] = None,
    method: Annotated[list[str] | None, typer.Option(help="Run only this method. May be repeated.")] = None,
    seed: Annotated[
        list[int] | None, typer.Option(help="Use these seeds instead of the table's. May be repeated.")
    ] = None,
    changes: dict[str, Any],
    tables: Annotated[
        Path, typer.Option(metavar="FOLDER", help="Folder of the tables.", show_default="benchmarks/papers")
    ] = Path("benchmarks/papers"),
    output: Annotated[
        Path | None,
        typer.Option(
            "--output", "-o", metavar="FOLDER", help="Folder for the runs.", show_default="simulations/papers/TABLE"
        ),
    ] = None,
    page: Annotated[bool, typer.Option("--page", help="Only rewrite the page from the results in the folder.")] = False,
) -> None:
    """Reproduce a table of a paper: finished runs are kept, and its page is written after each run."""
    console = simulation_console()
    from coordinator.results.folder import HOME
    from fleet_sim.papers.paper_table import folder_of, read_kept, read_table, show_tables

    if table is None:
        show_tables(tables, console)
        return
    folder = folder_of(table, tables)
    from fleet_sim.papers.table_page import training_by_method, write_page
    from fleet_sim.papers.table_runs import TableRuns, reproduce

    settings, files = read_table(folder)
    if page:
        write_page(folder, settings, training_by_method(files), read_kept(folder))
        console.print(f"Updated {folder}/README.md.", soft_wrap=True, markup=False)
        return
    runs = output or HOME / "papers" / folder.name
    reproduce(TableRuns(folder, settings, files, runs, changes, method or (), seed or ()), console)
