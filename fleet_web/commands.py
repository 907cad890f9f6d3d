"""`sojourn web`."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated, Any

import typer

from coordinator.console.asking import asking

web = typer.Typer(add_completion=False, help="See the fleet in a browser.")


@web.command()
@asking
def run(
    operator: Any,
    results: Annotated[
        list[Path] | None,
        typer.Option("--results", metavar="FOLDER", help="Show a simulation's or a job's folder; may be repeated."),
    ] = None,
    host: Annotated[str, typer.Option(help="Where to answer.")] = "127.0.0.1",
    port: Annotated[int, typer.Option(help="The port; 0: any that is free.", min=0, max=65535)] = 8080,
    operate: Annotated[bool, typer.Option("--operate", help="Let whoever opens the page act, too.")] = False,
) -> None:
    """See the fleet in a browser: devices, the model's tours, releases and what happened."""
    from sojourn import extras

    extras.need("web", "the page")
    from fleet_web.folder.opening import open_all
    from fleet_web.live.live_source import LiveSource
    from fleet_web.serving import serve
    from fleet_web.source import Source, Sources

    live = None if results else LiveSource(operator)
    sources: list[Source] = [*([live] if live else []), *open_all(results or [])]
    serve(Sources(sources), live, host, port)
