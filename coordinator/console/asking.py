"""The options that say which coordinator is asked, and commands that have them."""

from __future__ import annotations

import inspect
import logging
import os
import shlex
from typing import TYPE_CHECKING, Annotated, Any, get_args

import typer

from sojourn.settings import broker_flags

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping

    from coordinator.console.operator import Operator


def _connection(
    broker: Annotated[
        str, typer.Option(metavar="HOST[:PORT]", help="The coordinator's broker.", envvar="SOJOURN_BROKER")
    ] = "localhost:1883",
    fleet: Annotated[str, typer.Option(help="The fleet's name.", envvar="SOJOURN_FLEET")] = "sojourn",
    cloud: Annotated[str, typer.Option(help="The coordinator's name.", envvar="SOJOURN_CLOUD")] = "cloud",
    operator: Annotated[str, typer.Option(help="Your name there.", envvar="SOJOURN_OPERATOR")] = "operator",
    username: Annotated[str | None, typer.Option(help="The broker's name for you.", show_default="--operator")] = None,
    password_file: Annotated[
        str | None, typer.Option(metavar="FILE", help="Holds the broker's password.", envvar="SOJOURN_PASSWORD_FILE")
    ] = None,
    ca_file: Annotated[
        str | None, typer.Option(metavar="FILE", help="The broker's CA: encrypt.", envvar="SOJOURN_CA_FILE")
    ] = None,
    operator_key: Annotated[
        str | None, typer.Option(metavar="FILE", help="Your key: sign what you ask.", envvar="SOJOURN_OPERATOR_KEY")
    ] = None,
) -> Operator:
    from coordinator.console.operator import Operator  # noqa: PLC0415  # `--help` is quick without it
    from sojourn.links.settings import BrokerSettings  # noqa: PLC0415
    from sojourn.settings import validated  # noqa: PLC0415

    # What goes wrong with the broker is in the error that ends the command.
    logging.getLogger("sojourn").addHandler(logging.NullHandler())
    flags = broker_flags(broker, username, password_file) | {"tls": ca_file and {"ca_file": ca_file}}
    settings = validated({key: value for key, value in flags.items() if value is not None}, BrokerSettings, "--broker")
    return Operator(settings, fleet=fleet, cloud=cloud, name=operator, signer=_signer(operator_key))


def _signer(key: str | None) -> Any:
    if key is None:
        return None
    from sojourn.protocol.signing import Signer  # noqa: PLC0415  # only who signs needs it

    return Signer.load(key)


CONNECTION = tuple(inspect.signature(_connection, eval_str=True, locals={"Operator": Any}).parameters.values())
"""The options that every such command has."""


def asking(command: Callable[..., None]) -> Callable[..., None]:
    """A command with the options that say which coordinator is asked; its first parameter is the connection."""
    own = list(inspect.signature(command, eval_str=True).parameters.values())[1:]

    def run(**given: Any) -> None:
        connection = {each.name: given.pop(each.name) for each in CONNECTION}
        with _connection(**connection) as operator:
            operator.flags = repeated(connection)
            command(operator, **given)

    run.__name__, run.__doc__ = command.__name__, command.__doc__
    run.__signature__ = inspect.Signature([*own, *CONNECTION])  # type: ignore[attr-defined]
    return run


def repeated(given: Mapping[str, Any]) -> str:
    """The options that the next command needs, too, to reach the same coordinator.

    What is so without them, by default or by a variable of the environment, is left out.
    """
    flags = []
    for each in CONNECTION:
        (option,) = (it for it in get_args(each.annotation) if isinstance(it, typer.models.OptionInfo))
        otherwise = os.environ.get(str(option.envvar)) or each.default
        if given[each.name] != otherwise:
            flags += [f"--{each.name.replace('_', '-')}", shlex.quote(str(given[each.name]))]
    return "".join(f" {flag}" for flag in flags)
