"""The commands `sojourn fleet status`, `show`, `history`, `forget` and `audit`."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from coordinator.console.options import AsJson, print_json, with_operator

if TYPE_CHECKING:
    from coordinator.console.operator import Operator


Last = Annotated[int, typer.Option("--last", min=1, max=100_000, help="Maximum entries of each kind, newest first.")]
Name = Annotated[str, typer.Argument(metavar="NAME", help="The device's name.")]
SHOWN = 10
"""Default number of visits and connections shown for one device."""
HISTORY = 50
"""Default number of entries of the history and of the audit log."""


@with_operator
def status(operator: Any, as_json: AsJson = False) -> None:
    """Show all known devices: whether each is online and since when, its site, and its last visit."""
    from rich.console import Console

    from coordinator.console.fleet_tables import device_table, notice_lines, summary

    devices, now = operator.devices()
    if as_json:
        print_json(devices)
        return
    console = Console()
    console.print(summary(devices), highlight=False)
    if devices:
        console.print(device_table(devices, now), highlight=False)
    for line in notice_lines(devices):
        console.print(f"\n{line}", style="red", markup=False, highlight=False)


@with_operator
def show(
    operator: Any,
    name: Name,
    last: Last = SHOWN,
    as_json: AsJson = False,
) -> None:
    """Show one device: its machine, its abilities, its data, and its last visits."""
    from rich.console import Console

    from coordinator.console.fleet_tables import device_lines, history_table, pairs

    (device,), now = operator.devices(name)
    visits, changes = _newest(operator, last, name)
    if as_json:
        print_json({"device": device, "visits": visits, "changes": changes})
        return
    console = Console()
    console.print(device.device, style="bold", markup=False, highlight=False)
    console.print(pairs(device_lines(device, now)), highlight=False)
    console.print(f"\nlast {last} visits and connections", style="dim", highlight=False)
    console.print(history_table(changes, visits), highlight=False)


@with_operator
def forget(
    operator: Any,
    name: Name,
    yes: Annotated[bool, typer.Option("--yes", "-y", help="Do not ask for confirmation.")] = False,
) -> None:
    """Forget an offline device: it is removed from the list and the web page until it connects again."""
    from coordinator.console.dates import age

    (device,), now = operator.devices(name)
    state = "online" if device.online else f"offline for {age(now - device.since)}"
    if not yes and not typer.confirm(f"Forget device {name} ({state}, {device.visits} successful visits)?"):
        typer.echo(f"{name} was not forgotten")
        raise typer.Exit(1)
    operator.forget_device(name)
    typer.echo(f"{name} is forgotten; its visits remain in the tables of their jobs")


@with_operator
def history(
    operator: Any,
    device: Annotated[str | None, typer.Option("--device", metavar="NAME", help="Show only this device.")] = None,
    last: Last = HISTORY,
    as_json: AsJson = False,
) -> None:
    """Show connections and visits of devices in order of time, for the last 90 days at most."""
    from rich.console import Console

    from coordinator.console.fleet_tables import history_table

    visits, changes = _newest(operator, last, device)
    if as_json:
        print_json({"visits": visits, "changes": changes})
    elif visits or changes:
        Console().print(history_table(changes, visits), highlight=False)
    else:
        typer.echo(
            "no device has been online yet: see the edge server's log, and run `sojourn agent preflight` on a device"
        )


def _newest(operator: Operator, last: int, device: str | None) -> tuple[list[Any], list[Any]]:
    """Return the last visits and the last connections, each with the oldest first."""
    return operator.visits(device=device, last=last), operator.changes(device=device, last=last)


@with_operator
def audit(
    operator: Any,
    last: Annotated[int, typer.Option(min=1, max=100_000, help="Number of newest entries to show.")] = HISTORY,
    verify: Annotated[
        bool, typer.Option("--verify", help="Only check that the log is complete; exit status 1 if not.")
    ] = False,
    operators_file: Annotated[
        Path | None, typer.Option(metavar="FILE", help="Also check signatures with the keys in this operators.toml.")
    ] = None,
    expect: Annotated[
        str | None, typer.Option(metavar="HASH", help="Check that the log contains this hash, noted earlier.")
    ] = None,
    as_json: AsJson = False,
) -> None:
    """Show all actions of operators with dates and results, and check the hash chain of the log."""
    from rich.console import Console

    from coordinator.console.fleet_tables import audit_table, plain
    from sojourn.protocol.operators import OperatorsFile, faults
    from sojourn.settings import read_file

    entries = operator.audit()
    wrong = faults(entries, read_file(operators_file, OperatorsFile).operators if operators_file else None)
    hashes = {entry.digest.hex() for entry in entries}
    if expect is not None and not any(each.startswith(expect.lower()) for each in hashes):
        wrong.append(f"no entry has the hash {expect}: the entries after it, or all, were removed or rewritten")
    if as_json:
        print_json({"entries": [plain(entry) for entry in entries[-last:]], "faults": wrong})
    elif not verify:
        Console().print(audit_table(entries[-last:]), highlight=False)
    for each in wrong:
        typer.echo(f"WRONG: {each}", err=True)
    if not as_json:
        first = f" from {entries[0].number}" if entries and entries[0].number > 1 else ""
        head = f"; the newest has the hash {entries[-1].digest.hex()}" if entries else ""
        typer.echo(f"{len(entries)} entries{first}, {'NOT complete' if wrong else 'complete'}{head}", err=not verify)
    if verify and wrong:
        raise typer.Exit(1)
