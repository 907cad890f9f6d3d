"""`sojourn agent mandates`: who may do what with the data here, and until when."""

from __future__ import annotations

from typing import TYPE_CHECKING, Annotated

import typer

from sojourn import options

if TYPE_CHECKING:
    from edge_agent.owner.mandate_view import MandateLine


def mandates(
    file: options.File = None,
    name: options.Name = None,
    fleet: options.Fleet = None,
    store: options.Store = None,
    as_json: Annotated[bool, typer.Option("--json", help="Print it as JSON, for programs.")] = False,
    reset_clock: Annotated[
        bool,
        typer.Option("--reset-clock", help="The clock was wrong and is right now; the agent must not run meanwhile."),
    ] = False,
) -> None:
    """Tell who may do what with the data of this device, and until when: what operators signed, and what ended."""
    import msgspec

    from edge_agent.owner.mandate_view import correct_clock, place_of, read_mandates, words_of

    place = place_of(file, {"name": name, "fleet": fleet, "store": store})
    if reset_clock:
        typer.echo(correct_clock(place.folder), err=True)
    found = read_mandates(place)
    if as_json:
        typer.echo(msgspec.json.format(msgspec.json.encode(found), indent=2).decode())
        return
    typer.echo(words_of(place))
    for line in found:
        _print(line)
    if not found:
        typer.echo("no mandate has come here yet")


def _print(line: MandateLine) -> None:
    from sojourn.text import clean

    rows = {
        "what": "\n".join(line.tasks),
        "model": f"{line.model}, kit {line.kit[:12]}; classes: {line.classes}" if line.kit else "",
        "leaves": line.leaves,
        "where": ", ".join(line.sites) or "all sites of the fleet" if line.kit else "",
        "for": line.purpose,
        "by": f"{line.by} ({line.operator})" if line.operator and line.operator != line.by else line.by,
        "until": line.until,
        "given": f"{line.given} results of at most {line.visits}, in {line.rounds} rounds" if line.kit else "",
    }
    typer.echo(f"\n{clean(line.job)}: {clean(line.state)} (mandate {line.serial})")
    for key, value in rows.items():
        for number, each in enumerate(value.splitlines()):
            typer.echo(f"  {key if number == 0 else '':<8}{clean(each)}")
