"""`sojourn job visits`: how every visit of a job ended."""

from __future__ import annotations

import sys
from pathlib import Path
from typing import Annotated, Any

import typer

from coordinator.console.as_json import AsJson, print_json
from sojourn.errors import ConfigError, MachineError

Csv = Annotated[str | None, typer.Option("--csv", metavar="FILE", help="Write a CSV file; - for the terminal.")]


def visits(
    operator: Any,
    job: Annotated[str, typer.Argument(metavar="JOB", help="The job's name.")],
    device: Annotated[str | None, typer.Option("--device", metavar="NAME", help="Only of this one.")] = None,
    failed: Annotated[bool, typer.Option("--failed", help="Only those that came to nothing.")] = False,
    csv: Csv = None,
    as_json: AsJson = False,
) -> None:
    """Show how every visit of a job ended, with whole reasons; the coordinator remembers 90 days at most."""
    from rich.console import Console

    from coordinator.console.fleet_tables import reason_lines, visit_table, write_csv

    if csv is not None and as_json:
        raise ConfigError("give --csv or --json, not both")
    found = [it for it in operator.visits(device=device, job=job) if not failed or it.status != "done"]
    if as_json:
        print_json(found)
    elif csv == "-":
        write_csv(found, sys.stdout)
    elif csv is not None:
        try:
            with Path(csv).open("w", encoding="utf-8", newline="") as file:
                write_csv(found, file)
        except OSError as error:
            raise MachineError(f"{csv} cannot be written: {error.strerror}") from error
        typer.echo(f"{csv}: {len(found)} visits")
    elif found:
        console = Console()
        console.print(visit_table(found), highlight=False)
        for line in reason_lines(found):
            console.print(f"\n{line}", markup=False, highlight=False)
    else:
        typer.echo(f"no visit of job {job} has ended yet: sojourn job status {job} says what it does")
