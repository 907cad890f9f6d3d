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
    "this broker accepts any client that can reach it, without passwords or encryption: use it only for tests in a "
    "network that you trust. `sojourn fleet init` creates the configuration of a broker with access control."
)
app = typer.Typer(add_completion=False, help="Run an MQTT broker for development.")


@app.command()
def broker(
    host: Annotated[str, typer.Option(help="Address to listen on; 0.0.0.0 also accepts other machines.")] = "127.0.0.1",
    port: Annotated[int, typer.Option(help="Port to listen on; 0 selects a free port.", min=0, max=65_535)] = 1883,
    kind: Annotated[str, typer.Option(metavar="auto|mosquitto|amqtt", help="Broker program to start.")] = "auto",
    max_packet: Annotated[int, typer.Option(help="Maximum packet size in bytes.", min=1_024)] = 1_000_000,
    folder: Annotated[Path, typer.Option(help="Folder for the broker's configuration and log.")] = Path(
        ".sojourn/broker"
    ),
    fleet: Annotated[str | None, typer.Option(help="Restrict topics to the roles of this fleet.")] = None,
    edge: Annotated[list[str] | None, typer.Option(help="With --fleet: name of an edge server; repeatable.")] = None,
    device: Annotated[list[str] | None, typer.Option(help="With --fleet: name of a device; repeatable.")] = None,
    cloud: Annotated[
        list[str] | None, typer.Option(help="With --fleet: name of a coordinator; repeatable.", show_default="cloud")
    ] = None,
    operator: Annotated[
        list[str] | None, typer.Option(help="With --fleet: name of an operator; repeatable.", show_default="operator")
    ] = None,
    home_assistant: Annotated[
        list[str] | None, typer.Option(help="With --fleet: Home Assistant's user name; repeatable.")
    ] = None,
    log_format: options.LogFormat = None,
    verbose: options.Verbose = False,
) -> None:
    """Run mosquitto, or amqtt if mosquitto is not installed, until Ctrl-C. For development, not for production."""
    from sojourn.brokers.acl import Members, acl_lines
    from sojourn.brokers.local_broker import start_broker
    from sojourn.errors import ConfigError
    from sojourn.links.settings import LocalBroker
    from sojourn.loopback import is_loopback
    from sojourn.settings import validated

    logs.set_up(verbose=verbose, log_format=log_format, role="broker")
    in_log = logs.chosen_format(log_format) == "json"
    if fleet is None and (edge or device or cloud or operator or home_assistant):
        raise ConfigError(
            "--edge, --device, --cloud, --operator and --home-assistant need the name of the fleet: add --fleet"
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
        # Before the ready message: a program that reads it may send SIGTERM at once.
        signal.signal(signal.SIGTERM, signal.default_int_handler)
        _print_or_log(
            f"{running.kind} is listening on {running.host}:{running.port}; press Ctrl-C to stop it.", in_log=in_log
        )
        if not is_loopback(host):
            _print_or_log(_OPEN, in_log=in_log, warning=True)
        while True:
            time.sleep(60.0)


def _print_or_log(text: str, *, in_log: bool, warning: bool = False) -> None:
    """Print the text, or log it if logs are JSON."""
    if in_log:
        log.log(logging.WARNING if warning else logging.INFO, "%s", text)
    else:
        typer.echo(f"warning: {text}" if warning else text, err=warning)
