"""`sojourn` commands as processes that come out of one in which everything is loaded: no import is paid for twice.

They are real processes, each with its own pid, signals and exit code. A test that tries the start itself, or another
version, starts Python instead.
"""

from __future__ import annotations

import importlib
import multiprocessing
import os
import signal
import sys
import tempfile
from pathlib import Path
from typing import TYPE_CHECKING, NoReturn

from tests.there import there

if TYPE_CHECKING:
    from collections.abc import Sequence

PATIENCE = 150.0
_LOADED = (
    "coordinator.admin.commands",
    "coordinator.admin.settings",
    "coordinator.console.job_commands",
    "coordinator.console.release_commands",
    "coordinator.machine.coordinator",
    "coordinator.machine.work",
    "edge_agent.commands",
    "edge_agent.run",
    "encodings.idna",
    "hierarchy.commands",
    "hierarchy.edge.server",
    "hierarchy.settings",
    "numpy.random",
    "sojourn.cli",
    "sojourn.links.mqtt",
    "sojourn.node.driver",
    "sojourn.protocol.signing",
    "typer._adapters",
)
"""What the commands import. None of it starts a thread: a process with threads must not be forked."""


class Forked:
    """A `sojourn` command that runs in `folder`; what it says goes to the end of `log`."""

    def __init__(self, arguments: Sequence[str], log: Path, folder: Path = Path()) -> None:
        context = multiprocessing.get_context("forkserver")
        context.set_forkserver_preload(list(_LOADED))
        log.touch()
        # A daemon: what a test leaves behind ends with the tests, and nobody waits for it.
        self._process = context.Process(target=_run, args=(arguments, log.absolute(), folder), daemon=True)
        self._process.start()

    def kill(self) -> None:
        """End it as a power cut would, and wait until it is gone."""
        self._process.kill()
        self._process.join()

    def terminate(self) -> None:
        """Ask it to end."""
        self._process.terminate()

    def interrupt(self) -> None:
        """Ctrl-C."""
        os.kill(there(self._process.pid), signal.SIGINT)

    def wait(self, seconds: float) -> int | None:
        """Its exit code when it has ended; nothing if it still runs after these seconds."""
        self._process.join(seconds)
        return self._process.exitcode


def sojourn(*arguments: str, folder: Path = Path()) -> str:
    """What a command says; it is an error if it does not end well."""
    with tempfile.TemporaryDirectory() as place:
        log = Path(place) / "log"
        code = Forked(arguments, log, folder).wait(PATIENCE)
        said = log.read_text()
    assert code == 0, f"sojourn {' '.join(arguments)}\n{said}"
    return said


def _run(arguments: Sequence[str], log: Path, folder: Path) -> None:
    """In the new process: the command, as if Python had been started with it."""
    with log.open("ab") as output:
        os.dup2(output.fileno(), 1)
        os.dup2(output.fileno(), 2)
    os.chdir(folder)
    os.environ["COLUMNS"] = "200"
    os.execv = _go_on
    sys.argv = ["sojourn", *arguments]
    importlib.import_module("sojourn.cli").main()


def _go_on(_program: str, command: list[str]) -> NoReturn:
    """In the place of `exec`, by which an agent becomes a leaner Python: what it would load is here already."""
    module, *arguments = command[command.index("-m") + 1 :]
    sys.exit(importlib.import_module(module).main(*arguments))
