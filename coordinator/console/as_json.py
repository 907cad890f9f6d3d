"""What commands print with `--json`: whole data for programs, the same that the tables are made of."""

from __future__ import annotations

from typing import Annotated, Any

import msgspec
import typer

AsJson = Annotated[bool, typer.Option("--json", help="Print it as JSON, for programs.")]


def print_json(value: Any) -> None:
    """Structures, or lists of them, as JSON; a figure that is not known is null."""
    typer.echo(msgspec.json.format(msgspec.json.encode(value), indent=2).decode())
