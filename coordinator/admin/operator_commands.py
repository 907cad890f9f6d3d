"""The commands of `sojourn fleet operators`: operators with their keys and roles."""

from __future__ import annotations

import datetime as dt
from collections.abc import Mapping
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import msgspec
import typer

from coordinator.admin.joining_commands import DEFAULT, Folder
from coordinator.console.options import AsJson, print_json

if TYPE_CHECKING:
    from sojourn.protocol.operators import OperatorEntry

app = typer.Typer(add_completion=False, no_args_is_help=True, help="Manage the keys and roles of operators.")
Name = Annotated[str, typer.Argument(metavar="NAME", help="The operator's name.")]
FILE, KEYS = "operators.toml", "operators.pub"


@app.command()
def add(
    name: Name,
    public: Annotated[
        Path, typer.Option(metavar="FILE", help="The operator's public key, from `sojourn release key`.")
    ],
    role: Annotated[str, typer.Option(help="The operator's role: viewer, submitter, releaser or owner.")] = "submitter",
    replace: Annotated[
        bool, typer.Option("--replace", help="Replace the key or role of an existing operator.")
    ] = False,
    fleet_folder: Folder = DEFAULT,
) -> None:
    """Add an operator, or replace its key; the coordinator then rejects signatures of the old key."""
    from sojourn.brokers import fleet as folders
    from sojourn.errors import ConfigError
    from sojourn.protocol.operators import OperatorEntry
    from sojourn.protocol.signing import read_public
    from sojourn.protocol.topics import check_name
    from sojourn.settings import validated

    check_name(name, "the operator's name")
    entry = {"key": read_public(public), "role": role, "added": dt.datetime.now(dt.UTC).date().isoformat()}
    made = validated(entry, OperatorEntry, "--role")
    with folders.locked(fleet_folder):
        known = _known(fleet_folder)
        if name in known and not replace:
            raise ConfigError(f"{name!r} is an operator already ({known[name].role}): --replace changes key and role")
        first = not known
        _write(fleet_folder, {**known, name: made})
    typer.echo(f"{name} has the role {made.role}")
    _print_next_steps(fleet_folder, first=first)


@app.command()
def remove(name: Name, fleet_folder: Folder = DEFAULT) -> None:
    """Remove an operator from the coordinator. Devices trust its key until their own files change."""
    from sojourn.brokers import fleet as folders
    from sojourn.errors import ConfigError

    with folders.locked(fleet_folder):
        known = _known(fleet_folder)
        if name not in known:
            raise ConfigError(f"{name!r} is not an operator: `sojourn fleet operators list` lists them")
        left = {key: each for key, each in known.items() if key != name}
        if not any(each.role == "owner" for each in left.values()):
            typer.echo("no owner is left", err=True)
        _write(fleet_folder, left)
    typer.echo(f"{name} is removed")
    _print_next_steps(fleet_folder, first=False)


@app.command("list")
def list_(fleet_folder: Folder = DEFAULT, as_json: AsJson = False) -> None:
    """List the operators with their roles and keys."""
    from rich.console import Console
    from rich.table import Table

    known = _known(fleet_folder)
    if as_json:
        print_json(known)
        return
    table = Table("name", "role", "key", "added")
    for name, each in sorted(known.items()):
        table.add_row(name, each.role, each.key, each.added)
    Console().print(table)


def _known(folder: Path) -> dict[str, OperatorEntry]:
    from coordinator.admin.settings import read_operators

    return read_operators(folder / FILE) if (folder / FILE).exists() else {}


def _write(folder: Path, operators: Mapping[str, OperatorEntry]) -> None:
    """Write the coordinator's file with a copy that it can read, and the keys that devices should trust."""
    from sojourn import settings
    from sojourn.brokers.fleet import COORDINATOR_GROUP
    from sojourn.protocol.operators import mandate_keys
    from sojourn.store.files import write_private

    table = {"operators": {name: msgspec.to_builtins(each) for name, each in sorted(operators.items())}}
    keys = "".join(f"{key} {name}\n" for key, name in mandate_keys(operators).items())
    for name, text in ((FILE, settings.dumps(table)), (KEYS, keys or "# no operator may sign jobs\n")):
        write_private(folder / name, text)
        if (folder / "coordinator").is_dir():
            write_private(folder / "coordinator" / name, text, group=COORDINATOR_GROUP)


def _print_next_steps(folder: Path, *, first: bool) -> None:
    if first:
        typer.echo(
            f"to require signatures, add to {folder / 'coordinator' / 'coordinator.toml'}, above the first [table]: "
            f'operators_file = "{FILE}" (requests are signed) and mandate_keys_file = "{KEYS}" (jobs are signed); '
            "then restart the coordinator",
            err=True,
        )
    typer.echo(
        f"devices trust {folder / KEYS}: new bundles contain it, others need it at [mandate] keys_file and a restart "
        "of the agent; the coordinator reads its mandate_keys_file when it starts",
        err=True,
    )
