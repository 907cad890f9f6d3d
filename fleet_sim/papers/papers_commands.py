"""`sojourn papers`: tables of papers, run again."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated, Any

import typer

from fleet_sim.console.setting_options import ENGINE, takes_settings

app = typer.Typer(add_completion=False, help="Run a table of a paper again, from its folder, and write its page.")


@app.command()
@takes_settings(*ENGINE)
def papers(
    *,
    table: Annotated[
        str | None, typer.Argument(metavar="TABLE", help="A table's name or folder; none: tell which there are.")
    ] = None,
    method: Annotated[list[str] | None, typer.Option(help="Only this method; may be repeated.")] = None,
    seed: Annotated[list[int] | None, typer.Option(help="Other seeds than the table's; may be repeated.")] = None,
    changes: dict[str, Any],
    tables: Annotated[
        Path, typer.Option(metavar="FOLDER", help="Where the tables are.", show_default="benchmarks/papers")
    ] = Path("benchmarks/papers"),
    output: Annotated[
        Path | None,
        typer.Option(
            "--output", "-o", metavar="FOLDER", help="Where the runs go.", show_default="simulations/papers/TABLE"
        ),
    ] = None,
    page: Annotated[bool, typer.Option("--page", help="Only write the page anew, of what the folder keeps.")] = False,
) -> None:
    """Run a table of a paper again: what is done stays done, and its page is written after each run."""
    from rich.console import Console

    from coordinator.results.folder import HOME
    from fleet_sim.papers.paper_table import folder_of, read_table
    from sojourn import extras

    extras.need("cloud", "a simulation")
    extras.need("sim", "a simulation")
    console = Console(highlight=False)
    if table is None:
        from fleet_sim.papers.list_of_tables import show_tables

        show_tables(tables, console)
        return
    folder = folder_of(table, tables)
    from fleet_sim.papers.kept_results import read_kept
    from fleet_sim.papers.local_training import training_by_method
    from fleet_sim.papers.table_page import write_page
    from fleet_sim.papers.table_runs import TableRuns, reproduce

    settings, files = read_table(folder)
    if page:
        write_page(folder, settings, training_by_method(files), read_kept(folder))
        console.print(f"{folder}/README.md is written anew.", soft_wrap=True, markup=False)
        return
    runs = output or HOME / "papers" / folder.name
    reproduce(TableRuns(folder, settings, files, runs, changes, method or (), seed or ()), console)
