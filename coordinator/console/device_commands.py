"""`sojourn fleet status | show | history | forget`: which devices there are, and how they have been."""

from __future__ import annotations

from typing import TYPE_CHECKING, Annotated, Any

import typer

from coordinator.console.as_json import AsJson, print_json
from coordinator.console.asking import asking

if TYPE_CHECKING:
    from coordinator.console.operator import Operator

Last = Annotated[int, typer.Option("--last", min=1, max=100_000, help="At most so many of each kind, the newest.")]
SHOWN = 10
"""Visits, comings and goings of one device, unless more are asked for."""
HISTORY = 50


@asking
def status(operator: Any, as_json: AsJson = False) -> None:
    """Show every device that was ever here: whether it is, or since when not, where, and its last visit."""
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


@asking
def show(
    operator: Any,
    name: Annotated[str, typer.Argument(metavar="NAME", help="The device's name.")],
    last: Last = SHOWN,
    as_json: AsJson = False,
) -> None:
    """Show one device: its machine, what it can do, its data, and how its last visits went."""
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
    console.print(f"\nthe last {last} visits, comings and goings", style="dim", highlight=False)
    console.print(history_table(changes, visits), highlight=False)


@asking
def forget(
    operator: Any,
    name: Annotated[str, typer.Argument(metavar="NAME", help="The device's name.")],
    yes: Annotated[bool, typer.Option("--yes", "-y", help="Do not ask.")] = False,
) -> None:
    """Forget a device that is gone: it leaves `fleet status` and the page. It is listed again if it connects again."""
    from coordinator.console.fleet_tables import age

    (device,), now = operator.devices(name)
    gone = f"gone for {age(now - device.since)}" if not device.here else "here"
    if not yes and not typer.confirm(f"Forget device {name} ({gone}, {device.visits} visits that count)?"):
        typer.echo(f"{name} stays")
        raise typer.Exit(1)
    operator.forget_device(name)
    typer.echo(f"{name} is forgotten; its visits stay in the tables of their jobs")


@asking
def history(
    operator: Any,
    device: Annotated[str | None, typer.Option("--device", metavar="NAME", help="Only of this one.")] = None,
    last: Last = HISTORY,
    as_json: AsJson = False,
) -> None:
    """Show who came and went, and all visits, in the order of time; the coordinator remembers 90 days at most."""
    from rich.console import Console

    from coordinator.console.fleet_tables import history_table

    visits, changes = _newest(operator, last, device)
    if as_json:
        print_json({"visits": visits, "changes": changes})
    elif visits or changes:
        Console().print(history_table(changes, visits), highlight=False)
    else:
        typer.echo("no device was ever here: see the log of the edge server, and `sojourn agent preflight` on a device")


def _newest(operator: Operator, last: int, device: str | None) -> tuple[list[Any], list[Any]]:
    """The last visits, and the last comings and goings, each with the oldest first."""
    return operator.visits(device=device, last=last), operator.changes(device=device, last=last)
