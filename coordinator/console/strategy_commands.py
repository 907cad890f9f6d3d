"""`sojourn strategies`: what there is, and what each one does."""

from __future__ import annotations

from typing import TYPE_CHECKING, Annotated, Any

import typer

from coordinator.console.as_json import AsJson, print_json

if TYPE_CHECKING:
    from coordinator.strategies import Named

app = typer.Typer(add_completion=False, help="List the strategies that a job can name.")
KINDS = ("estimator", "arranger", "schedule", "objective", "aggregator", "finisher", "training")
"""The tables of a job file that make a strategy, in the order in which they act."""


@app.callback(invoke_without_command=True)
def list_(ctx: typer.Context, as_json: AsJson = False) -> None:
    """List the strategies that a job can name."""
    if ctx.invoked_subcommand is not None:
        return
    if as_json:
        from coordinator.strategies import STRATEGIES

        print_json([_plain(each) for each in STRATEGIES.values()])
    else:
        from rich.console import Console
        from rich.table import Table

        from coordinator.strategies import STRATEGIES

        table = Table(box=None, padding=(0, 2, 0, 0), pad_edge=False, header_style="dim")
        table.add_column("strategy", no_wrap=True)
        table.add_column("good for")
        for each in STRATEGIES.values():
            table.add_row(each.name, each.summary)
        console = Console()
        console.print(table, highlight=False)
        console.print("\nMore about one: sojourn strategies show NAME", style="dim", highlight=False)


@app.command()
def show(
    name: Annotated[str, typer.Argument(metavar="STRATEGY", help="The strategy's name.")], as_json: AsJson = False
) -> None:
    """Say what a strategy does, who proposed it, and what it asks of devices; its parts as a piece of a job file."""
    from rich.console import Console

    from coordinator.strategies import find
    from coordinator.strategies.requirements import requirements_of

    each, console = find(name, "the command line"), Console()
    if as_json:
        print_json(_plain(each))
        return

    def write(text: str, style: str = "") -> None:
        console.print(text, style=style, markup=False, highlight=False)

    write(each.title, "bold")
    for paragraph in f"{each.summary}\n\n{each.paper}\n\n{each.text}".split("\n\n"):
        write("\n" + " ".join(paragraph.split()))
    write("\nIt asks of devices", "bold")
    write("\n".join(f"- {line}" for line in requirements_of(each.strategy)) or "- nothing but training")
    write("\nIts parts, as a job file has them", "bold")
    write("\n" + snippet(each))


def _plain(named: Named) -> dict[str, Any]:
    """A strategy as data: what it is good for, who proposed it, and its parts with all their settings."""
    import msgspec

    parts = msgspec.to_builtins(named.strategy)
    words = {"strategy": named.name, "title": named.title, "summary": named.summary, "paper": named.paper}
    return {**words, **{kind: parts[kind] for kind in KINDS}}


def snippet(named: Named) -> str:
    """The strategy with all its settings, as the beginning of a job file; any line may be changed or left out."""
    import msgspec

    from sojourn.toml import dumps

    parts = msgspec.to_builtins(named.strategy)
    return dumps({"strategy": named.name, **{kind: parts[kind] for kind in KINDS}})
