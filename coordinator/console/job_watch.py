"""Watching a job on a terminal until it ends."""

from __future__ import annotations

from typing import TYPE_CHECKING

import typer
from rich.console import Console

from coordinator.console.following import failure_of, follow
from coordinator.console.watching import is_live, show, show_rounds, status_line
from sojourn.errors import JobError

if TYPE_CHECKING:
    from coordinator.console.following import JobProgress
    from coordinator.console.operator import Operator


def watch_job(operator: Operator, job: str) -> None:
    """Show a job until it ends; one that failed or was refused is an error. Ctrl-C ends only the watching."""
    console = Console()
    try:
        last: JobProgress = show(follow(operator, job), console)
    except KeyboardInterrupt:
        typer.echo(f"The job goes on. To see it again: {operator.command(f'job watch {job}')}")
        raise typer.Exit(0) from None
    show_rounds(last, console)
    if failed := failure_of(last.view):
        again = f". Fix this, then continue the job: {operator.command(f'job continue {job}')}"
        raise JobError(failed + (again if last.view.status == "failed" else ""))
    if is_live(console):  # elsewhere it is the last line already
        console.print(status_line(last.view), markup=False, highlight=False)
