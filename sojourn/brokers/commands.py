"""`sojourn broker`: a broker in the foreground, for development."""

from __future__ import annotations

import logging
import signal
import time
from contextlib import suppress
from pathlib import Path
from typing import Annotated

import typer

from sojourn import logs, options

log = logging.getLogger(__name__)
_OPEN = (
    "this broker lets in everybody who reaches it, without a password and without encryption: use it in a "
    "network that you trust, for a try. `sojourn fleet init` makes the configuration of one that knows its members."
)
app = typer.Typer(add_completion=False, help="Run an MQTT broker for development.")


@app.command()
def broker(
    host: Annotated[
        str, typer.Option(help="The address to listen on; 0.0.0.0: for other machines, too.")
    ] = "127.0.0.1",
    port: Annotated[int, typer.Option(help="The port; 0 for any that is free.", min=0, max=65_535)] = 1883,
    kind: Annotated[str, typer.Option(metavar="auto|mosquitto|amqtt", help="Which broker.")] = "auto",
    max_packet: Annotated[int, typer.Option(help="The largest packet it takes, in bytes.", min=1_024)] = 1_000_000,
    folder: Annotated[Path, typer.Option(help="For its config and its log.")] = Path(".sojourn/broker"),
    fleet: Annotated[str | None, typer.Option(help="Allow only what this fleet's roles may say.")] = None,
    edge: Annotated[list[str] | None, typer.Option(help="With --fleet: an edge server; may be repeated.")] = None,
    device: Annotated[list[str] | None, typer.Option(help="With --fleet: a device; may be repeated.")] = None,
    cloud: Annotated[list[str] | None, typer.Option(help="With --fleet: a coordinator.", show_default="cloud")] = None,
    operator: Annotated[
        list[str] | None, typer.Option(help="With --fleet: an operator.", show_default="operator")
    ] = None,
    home_assistant: Annotated[
        list[str] | None, typer.Option(help="With --fleet: Home Assistant's username there.")
    ] = None,
    log_format: options.LogFormat = None,
    verbose: options.Verbose = False,
) -> None:
    """Run mosquitto, or amqtt where it is not installed, until Ctrl-C. For development, not for the field."""
    from sojourn.brokers.acl import Members, acl_lines
    from sojourn.brokers.run import start_broker
    from sojourn.errors import ConfigError
    from sojourn.links.settings import LocalBroker, is_loopback
    from sojourn.settings import validated

    logs.set_up(verbose=verbose, log_format=log_format, role="broker")
    in_log = logs.chosen_format(log_format) == "json"
    if fleet is None and (edge or device or cloud or operator or home_assistant):
        raise ConfigError(
            "--edge, --device, --cloud, --operator and --home-assistant say who is in a fleet: name it with --fleet"
        )
    members = Members(
        devices=tuple(device or ()),
        edges=tuple(edge or ()),
        clouds=tuple(cloud or ["cloud"]),
        operators=tuple(operator or ["operator"]),
        homes=tuple(home_assistant or ()),
    )
    acl = None if fleet is None else acl_lines(fleet, members)
    values = {"host": host, "port": port, "kind": kind, "max_packet": max_packet, "acl": acl}
    with (
        start_broker(validated(values, LocalBroker, "the command line"), folder) as running,
        suppress(KeyboardInterrupt),
    ):
        # Before it says that it runs: whoever reads that may end it at once.
        signal.signal(signal.SIGTERM, signal.default_int_handler)
        _tell(f"{running.kind} is listening on {running.host}:{running.port}; Ctrl-C ends it.", in_log=in_log)
        if not is_loopback(host):
            _tell(_OPEN, in_log=in_log, warning=True)
        while True:
            time.sleep(60.0)


def _tell(text: str, *, in_log: bool, warning: bool = False) -> None:
    """Say it to the person who started the broker, or to the program that reads its log."""
    if in_log:
        log.log(logging.WARNING if warning else logging.INFO, "%s", text)
    else:
        typer.echo(f"warning: {text}" if warning else text, err=warning)
