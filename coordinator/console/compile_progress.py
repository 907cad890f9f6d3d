"""Show the steps of compiling in this process on a terminal."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import contextmanager

from rich.console import Console
from rich.progress import Progress, SpinnerColumn, TextColumn, TimeElapsedColumn

QUIET_TIME = 2.0
"""Seconds before the steps of compiling are printed."""


@contextmanager
def compiling(console: Console) -> Iterator[Callable[[str], None]]:
    """Yield a function that shows the steps: a temporary status line in a terminal, otherwise printed lines."""
    if not console.is_terminal:
        yield CompilingLines(console)
        return
    with console.status("preparing") as status:
        yield lambda text: status.update(f"compiling: {text}")


@contextmanager
def waiting(console: Console, what: str) -> Iterator[None]:
    """Show in a terminal what is waited for, and for how many seconds; nothing elsewhere."""
    columns = SpinnerColumn(), TextColumn("{task.description}", markup=False), TimeElapsedColumn()
    with Progress(*columns, console=console, transient=True, disable=not console.is_terminal) as progress:
        progress.add_task(what, total=None)
        yield


class CompilingLines:
    """Prints each step once, after compiling has taken a few seconds."""

    def __init__(self, console: Console) -> None:
        self._console = console
        self._step = ""

    def __call__(self, text: str) -> None:
        """Print a step such as "checking the gradient (3 of 6), 12 s"."""
        step, _, seconds = text.rpartition(", ")
        if step != self._step and float(seconds.removesuffix(" s")) >= QUIET_TIME:
            self._step = step
            self._console.print(f"compiling: {text}", style="dim", markup=False, highlight=False, soft_wrap=True)
