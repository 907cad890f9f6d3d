"""The command `sojourn web`."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated, Any

import typer

from coordinator.console.options import with_operator

web = typer.Typer(add_completion=False, help="Show the fleet and its jobs in a browser.")
LOGINS = Path("web-logins")
"""The default login file."""


@web.command()
@with_operator
def run(
    operator: Any,
    context: typer.Context,
    results: Annotated[
        list[Path] | None,
        typer.Option(
            "--results",
            metavar="FOLDER",
            help="Also show the folder of a simulation or a job. May be repeated. The coordinator is queried "
            "only if --broker is given, too.",
        ),
    ] = None,
    host: Annotated[
        str, typer.Option(help="Address to listen on. Any other than the default needs logins and TLS, or a proxy.")
    ] = "127.0.0.1",
    port: Annotated[int, typer.Option(help="Port to listen on. 0 selects a free port.", min=0, max=65535)] = 8080,
    operate: Annotated[bool, typer.Option("--operate", help="Allow users to stop jobs and control rollouts.")] = False,
    login_file: Annotated[
        Path | None,
        typer.Option(
            metavar="FILE", help="Only allow users who are listed in this file to log in.", envvar="SOJOURN_WEB_LOGINS"
        ),
    ] = None,
    add_login: Annotated[
        str | None, typer.Option(metavar="NAME", help="Add a user to --login-file, ask for the password, and exit.")
    ] = None,
    certificate: Annotated[Path | None, typer.Option(metavar="FILE", help="TLS certificate (PEM).")] = None,
    certificate_key: Annotated[
        Path | None, typer.Option(metavar="FILE", help="Private key of the TLS certificate (PEM).")
    ] = None,
    origin: Annotated[
        str, typer.Option(metavar="URL", help="Address that browsers use, such as https://fleet.example.org.")
    ] = "",
    behind_proxy: Annotated[
        bool,
        typer.Option("--behind-proxy", help="A proxy in front of this server handles TLS and authentication."),
    ] = False,
    verbose: Annotated[bool, typer.Option("--verbose", "-v", help="Log debug messages.")] = False,
) -> None:
    """Show the fleet in a browser: devices, tours, releases and the event log."""
    from sojourn import errors, logs

    if add_login is not None:
        _add_login(login_file or LOGINS, add_login)
        return
    errors.require_extra("web", "the web page")
    from fleet_web.security.exposure import Exposure
    from fleet_web.serving import serve
    from fleet_web.sources.folder_source import open_all
    from fleet_web.sources.live_source import LiveSource
    from fleet_web.sources.source import Source, Sources

    logs.set_up(verbose=verbose)
    exposure = Exposure(
        host=host,
        port=port,
        origin=origin.rstrip("/").lower(),
        certificate=certificate,
        certificate_key=certificate_key,
        login_file=login_file,
        behind_proxy=behind_proxy,
        operate=operate,
    )
    named = getattr(context.get_parameter_source("broker"), "name", "") in ("COMMANDLINE", "ENVIRONMENT")
    live = LiveSource(operator) if named or not results else None
    sources: list[Source] = [*([live] if live else []), *open_all(results or [])]
    serve(Sources(sources), live, exposure)


def _add_login(file: Path, name: str) -> None:
    from fleet_web.security.logins import add_login

    add_login(file, name, typer.prompt("Password", hide_input=True, confirmation_prompt=True))
    typer.echo(f"Added {name} to {file}; start the server with --login-file {file}")
