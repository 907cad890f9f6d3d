"""`sojourn web`."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated, Any

import typer

from coordinator.console.asking import asking

web = typer.Typer(add_completion=False, help="See the fleet in a browser.")
LOGINS = Path("web-logins")
"""The file of logins, unless another one is named."""


@web.command()
@asking
def run(
    operator: Any,
    context: typer.Context,
    results: Annotated[
        list[Path] | None,
        typer.Option(
            "--results",
            metavar="FOLDER",
            help="Show a simulation's or a job's folder, too; may be repeated. The coordinator is asked only if "
            "--broker is given.",
        ),
    ] = None,
    host: Annotated[
        str, typer.Option(help="Where to answer; elsewhere than on this machine only safely.")
    ] = "127.0.0.1",
    port: Annotated[int, typer.Option(help="The port; 0: any that is free.", min=0, max=65535)] = 8080,
    operate: Annotated[
        bool, typer.Option("--operate", help="Let whoever is let in act, too: stop jobs, steer rollouts.")
    ] = False,
    login_file: Annotated[
        Path | None,
        typer.Option(metavar="FILE", help="Let in only those who are in it.", envvar="SOJOURN_WEB_LOGINS"),
    ] = None,
    add_login: Annotated[
        str | None, typer.Option(metavar="NAME", help="Add somebody to --login-file, ask for their password, and end.")
    ] = None,
    certificate: Annotated[Path | None, typer.Option(metavar="FILE", help="Encrypt: the certificate, as PEM.")] = None,
    certificate_key: Annotated[Path | None, typer.Option(metavar="FILE", help="Its private key, as PEM.")] = None,
    origin: Annotated[
        str, typer.Option(metavar="URL", help="The address that browsers see, such as https://fleet.example.org.")
    ] = "",
    behind_proxy: Annotated[
        bool, typer.Option("--behind-proxy", help="A proxy before this server encrypts, and lets only the right in.")
    ] = False,
    verbose: Annotated[bool, typer.Option("--verbose", "-v", help="Log more.")] = False,
) -> None:
    """See the fleet in a browser: devices, the model's tours, releases and what happened."""
    from sojourn import extras, logs

    if add_login is not None:
        _add_login(login_file or LOGINS, add_login)
        return
    extras.need("web", "the page")
    from fleet_web.folder.opening import open_all
    from fleet_web.live.live_source import LiveSource
    from fleet_web.security.exposure import Exposure
    from fleet_web.serving import serve
    from fleet_web.source import Source, Sources

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
    typer.echo(f"{name} is in {file}; name it with --login-file {file}")
