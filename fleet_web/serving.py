"""Answering browsers until the process is asked to end."""

from __future__ import annotations

from typing import TYPE_CHECKING

import typer
import uvicorn

from fleet_web.app import build

if TYPE_CHECKING:
    from fleet_web.live.live_source import LiveSource
    from fleet_web.source import Sources


def serve(sources: Sources, live: LiveSource | None, host: str, port: int) -> None:
    """Serve the pages; the connection to a coordinator is open as long."""
    config = uvicorn.Config(build(sources), host=host, port=port, log_level="warning", server_header=False)
    if live:
        live.start()
    typer.echo(f"The fleet is at http://{host}:{port} (Ctrl-C ends it; the fleet does not mind)")
    try:
        uvicorn.Server(config).run()
    finally:
        if live:
            live.stop()
