"""Checks when the agent starts that the listed custom objectives can be imported.

A separate process imports them, so that their modules do not stay in the agent's memory. It uses the same interpreter
as the training worker.
"""

from __future__ import annotations

import sys
from collections.abc import Sequence
from importlib import import_module
from pathlib import Path

import msgspec

from edge_agent.training.sandbox import python_paths
from sojourn.errors import ConfigError, MachineError
from sojourn.processes import Parent, ask

_CHECK_TIMEOUT = 120.0


def check(names: Sequence[str]) -> tuple[str, ...]:
    """Check that each objective can be imported; return the folders of their modules outside of Python's paths."""
    folders: dict[str, None] = {}
    for name in names:
        try:
            found = ask(__name__, name, msgspec.msgpack.Decoder(list[str]), _CHECK_TIMEOUT)
        except MachineError as error:
            raise ConfigError(f"`objectives` lists {name}, which cannot be imported: {error}") from error
        folders |= dict.fromkeys(found)
    return tuple(folders)


def main() -> None:
    """Import the objective that the agent names, and send the folders of its modules."""
    agent = Parent(msgspec.msgpack.Decoder(str))
    module, _, form = next(agent.frames).partition(":")
    if not callable(getattr(getattr(import_module(module), form), "begin", None)):
        sys.exit("it has no method `begin`, see docs/strategies.md")
    agent.send(_folders_apart())


def _folders_apart() -> list[str]:
    """Return the folders of imported modules outside of Python's paths, as in an editable install."""
    files = {str(file) for each in list(sys.modules.values()) if (file := getattr(each, "__file__", None))}
    paths = [*python_paths(), Path(__file__).parents[2]]
    return sorted({str(Path(file).parent) for file in files if not any(map(Path(file).is_relative_to, paths))})


if __name__ == "__main__":
    main()
