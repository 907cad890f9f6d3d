"""The options that commands share: the connection to a coordinator, and --json."""

from __future__ import annotations

import inspect
import logging
import os
import shlex
from collections.abc import Callable, Mapping
from typing import TYPE_CHECKING, Annotated, Any, get_args

import msgspec
import typer

from sojourn.settings import broker_flags

if TYPE_CHECKING:
    from coordinator.console.operator import Operator


AsJson = Annotated[bool, typer.Option("--json", help="Print JSON.")]


def print_json(value: Any) -> None:
    """Print structures, or lists of them, as JSON; an unknown metric is null."""
    typer.echo(msgspec.json.format(msgspec.json.encode(value), indent=2).decode())


def _connection(
    broker: Annotated[
        str, typer.Option(metavar="HOST[:PORT]", help="The coordinator's broker.", envvar="SOJOURN_BROKER")
    ] = "localhost:1883",
    fleet: Annotated[str, typer.Option(help="The fleet's name.", envvar="SOJOURN_FLEET")] = "sojourn",
    cloud: Annotated[str, typer.Option(help="The coordinator's name.", envvar="SOJOURN_CLOUD")] = "cloud",
    operator: Annotated[str, typer.Option(help="Your name as an operator.", envvar="SOJOURN_OPERATOR")] = "operator",
    username: Annotated[str | None, typer.Option(help="MQTT user name.", show_default="--operator")] = None,
    password_file: Annotated[
        str | None, typer.Option(metavar="FILE", help="File with the MQTT password.", envvar="SOJOURN_PASSWORD_FILE")
    ] = None,
    ca_file: Annotated[
        str | None, typer.Option(metavar="FILE", help="The broker's CA; enables TLS.", envvar="SOJOURN_CA_FILE")
    ] = None,
    operator_key: Annotated[
        str | None, typer.Option(metavar="FILE", help="Your key, to sign requests.", envvar="SOJOURN_OPERATOR_KEY")
    ] = None,
) -> Operator:
    from coordinator.console.operator import Operator  # noqa: PLC0415  # keeps `--help` fast
    from sojourn.links.settings import BrokerSettings  # noqa: PLC0415
    from sojourn.settings import validated  # noqa: PLC0415

    # Problems with the broker are reported by the error that ends the command.
    logging.getLogger("sojourn").addHandler(logging.NullHandler())
    flags = broker_flags(broker, username, password_file) | {"tls": ca_file and {"ca_file": ca_file}}
    settings = validated({key: value for key, value in flags.items() if value is not None}, BrokerSettings, "--broker")
    signer = None
    if operator_key is not None:
        from sojourn.protocol.signing import Signer  # noqa: PLC0415  # needed only for signing

        signer = Signer.load(operator_key)
    return Operator(settings, fleet=fleet, cloud=cloud, name=operator, signer=signer)


CONNECTION = tuple(inspect.signature(_connection, eval_str=True, locals={"Operator": Any}).parameters.values())
"""The connection options of every such command."""


def with_operator(command: Callable[..., None]) -> Callable[..., None]:
    """Add the connection options to a command; its first parameter is the connection."""
    own = list(inspect.signature(command, eval_str=True).parameters.values())[1:]

    def run(**given: Any) -> None:
        connection = {each.name: given.pop(each.name) for each in CONNECTION}
        with _connection(**connection) as operator:
            operator.flags = connection_flags(connection)
            command(operator, **given)

    run.__name__, run.__doc__ = command.__name__, command.__doc__
    run.__signature__ = inspect.Signature([*own, *CONNECTION])  # type: ignore[attr-defined]
    return run


def connection_flags(given: Mapping[str, Any]) -> str:
    """Return the options that the next command needs to reach the same coordinator.

    Options with their default value, or set by an environment variable, are omitted.
    """
    flags = []
    for each in CONNECTION:
        (option,) = (it for it in get_args(each.annotation) if isinstance(it, typer.models.OptionInfo))
        otherwise = os.environ.get(str(option.envvar)) or each.default
        if given[each.name] != otherwise:
            flags += [f"--{each.name.replace('_', '-')}", shlex.quote(str(given[each.name]))]
    return "".join(f" {flag}" for flag in flags)
