"""Objectives that an owner has installed and listed: looked at when the agent starts, in a process of its own.

Their modules may load whatever they like, and none of it may stay in the agent's memory. The same interpreter trains
with them later, so what can be loaded here can be loaded there.
"""

from __future__ import annotations

import subprocess
import sys
from importlib import import_module
from pathlib import Path
from typing import TYPE_CHECKING

from edge_agent.training.cage import python_paths
from edge_agent.training.child import environment
from sojourn.errors import ConfigError

if TYPE_CHECKING:
    from collections.abc import Sequence

_PATIENCE = 120.0


def check(names: Sequence[str]) -> tuple[str, ...]:
    """Make sure that each of these can be loaded; returns the folders of modules that Python finds in its own ways."""
    folders: dict[str, None] = {}
    for name in names:
        command = [sys.executable, "-P", "-m", "edge_agent.training.own_objectives", name]
        try:
            done = subprocess.run(
                command, capture_output=True, text=True, check=False, env=environment(), timeout=_PATIENCE
            )
        except subprocess.TimeoutExpired as error:
            raise ConfigError(f"`objectives` lists {name}, which takes forever to load") from error
        if done.returncode:
            why = (done.stderr.strip() or f"exit code {done.returncode}").splitlines()[-1]
            raise ConfigError(f"`objectives` lists {name}, which cannot be loaded here: {why}")
        folders |= dict.fromkeys(done.stdout.splitlines())
    return tuple(folders)


def main(name: str) -> int:
    """Load an objective; returns the exit code."""
    module, _, form = name.partition(":")
    if callable(getattr(getattr(import_module(module), form), "begin", None)):
        sys.stdout.write("\n".join(_folders_apart()))
        return 0
    sys.stderr.write("it has no method `begin`, see docs/strategies.md\n")
    return 1


def _folders_apart() -> list[str]:
    """The folders of loaded modules that are nowhere below Python's paths, as those of an editable install are."""
    files = {str(file) for each in list(sys.modules.values()) if (file := getattr(each, "__file__", None))}
    paths = [*python_paths(), Path(__file__).parents[2]]
    return sorted({str(Path(file).parent) for file in files if not any(map(Path(file).is_relative_to, paths))})


if __name__ == "__main__":
    sys.exit(main(*sys.argv[1:]))
