"""The steps of compiling on a terminal, where it happens in the terminal's own process."""

from __future__ import annotations

from contextlib import contextmanager
from typing import TYPE_CHECKING

from rich.progress import Progress, SpinnerColumn, TextColumn, TimeElapsedColumn

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator

    from rich.console import Console

FIRST = 2.0
"""Seconds that compiling takes at least before anything is said of it."""


@contextmanager
def compiling(console: Console) -> Iterator[Callable[[str], None]]:
    """What shows the steps: one line that changes in a terminal and is gone afterwards, lines elsewhere."""
    if not console.is_terminal:
        yield CompilingLines(console)
        return
    with console.status("preparing") as status:
        yield lambda text: status.update(f"compiling: {text}")


@contextmanager
def waiting(console: Console, what: str) -> Iterator[None]:
    """Show in a terminal what is waited for, and for how many seconds; gone afterwards, and nothing elsewhere."""
    columns = SpinnerColumn(), TextColumn("{task.description}", markup=False), TimeElapsedColumn()
    with Progress(*columns, console=console, transient=True, disable=not console.is_terminal) as progress:
        progress.add_task(what, total=None)
        yield


class CompilingLines:
    """Prints a line for each step, once it takes long enough that somebody may wonder; the same step only once."""

    def __init__(self, console: Console) -> None:
        self._console = console
        self._step = ""

    def __call__(self, text: str) -> None:
        """Such as "checking the gradient (3 of 6), 12 s"."""
        step, _, seconds = text.rpartition(", ")
        if step != self._step and float(seconds.removesuffix(" s")) >= FIRST:
            self._step = step
            self._console.print(f"compiling: {text}", style="dim", markup=False, highlight=False, soft_wrap=True)
