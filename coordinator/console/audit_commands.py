"""`sojourn fleet audit`: what operators did, and whether the log of it is whole."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated, Any

import typer

from coordinator.console.as_json import AsJson, print_json
from coordinator.console.asking import asking

LAST = 50


@asking
def audit(
    operator: Any,
    last: Annotated[int, typer.Option(min=1, max=100_000, help="Show so many, the newest.")] = LAST,
    verify: Annotated[
        bool, typer.Option("--verify", help="Only say whether the log is whole; ends with 1 if not.")
    ] = False,
    operators_file: Annotated[
        Path | None, typer.Option(metavar="FILE", help="operators.toml: check the signatures with its keys, too.")
    ] = None,
    expect: Annotated[
        str | None, typer.Option(metavar="HASH", help="The log must hold the entry of this hash, kept from before.")
    ] = None,
    as_json: AsJson = False,
) -> None:
    """Show every act of an operator: who, what, when, how it ended. The chain of its hashes is checked each time."""
    from rich.console import Console

    from coordinator.console.audit_tables import audit_table, plain
    from sojourn.protocol.audit import faults
    from sojourn.protocol.operators import OperatorsFile
    from sojourn.settings import read_file

    entries = operator.audit()
    wrong = faults(entries, read_file(operators_file, OperatorsFile).operators if operators_file else None)
    hashes = {entry.digest.hex() for entry in entries}
    if expect is not None and not any(each.startswith(expect.lower()) for each in hashes):
        wrong.append(f"no entry has the hash {expect}: what came after it, or all, was cut off or written anew")
    if as_json:
        print_json({"entries": [plain(entry) for entry in entries[-last:]], "faults": wrong})
    elif not verify:
        Console().print(audit_table(entries[-last:]), highlight=False)
    for each in wrong:
        typer.echo(f"WRONG: {each}", err=True)
    if not as_json:
        first = f" from {entries[0].number}" if entries and entries[0].number > 1 else ""
        head = f"; the newest has the hash {entries[-1].digest.hex()}" if entries else ""
        typer.echo(f"{len(entries)} entries{first}, {'NOT whole' if wrong else 'whole'}{head}", err=not verify)
    if verify and wrong:
        raise typer.Exit(1)
