"""`sojourn` commands as forks of one process in which everything is loaded: no import is repeated.

They are real processes, each with its own pid, signals and exit code. A test of the start itself, or of another
version, starts Python instead.
"""

from __future__ import annotations

import importlib
import io
import multiprocessing
import os
import signal
import sys
import tempfile
from pathlib import Path
from subprocess import CompletedProcess
from typing import TYPE_CHECKING, NoReturn

from tests.there import there
from tests.waiting import LIMIT, WHOLE

if TYPE_CHECKING:
    from collections.abc import Sequence

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
"""The modules that the commands import. None of them starts a thread: a process with threads must not be forked."""


class Forked:
    """A `sojourn` command that runs in `folder`; its output is appended to `log`, its errors to `errors`, if given."""

    def __init__(
        self,
        arguments: Sequence[str],
        log: Path,
        folder: Path = Path(),
        *,
        errors: Path | None = None,
        typed: str = "",
    ) -> None:
        context = multiprocessing.get_context("forkserver")
        context.set_forkserver_preload(list(_LOADED))
        log.touch()
        outputs = (log.absolute(), (errors or log).absolute())
        # A daemon: a leftover process ends with the tests, which do not wait for it.
        self._process = context.Process(target=_run, args=(arguments, outputs, folder, typed), daemon=True)
        self._process.start()

    @property
    def pid(self) -> int:
        """The id of its process."""
        return there(self._process.pid)

    def kill(self) -> None:
        """End it like a power cut, and wait until it is gone."""
        self._process.kill()
        self._process.join()

    def terminate(self) -> None:
        """Send SIGTERM."""
        self._process.terminate()

    def interrupt(self) -> None:
        """Send Ctrl-C."""
        os.kill(there(self._process.pid), signal.SIGINT)

    def wait(self, seconds: float = LIMIT) -> int | None:
        """Return its exit code once it has ended; None if it still runs after these seconds."""
        self._process.join(seconds)
        return self._process.exitcode


def sojourn(*arguments: str, folder: Path = Path()) -> str:
    """Return a command's output; raise an error if it fails."""
    done = run(*arguments, folder=folder)
    assert done.returncode == 0, f"sojourn {' '.join(arguments)}\n{done.stdout}\n{done.stderr}"
    return done.stdout


def run(*arguments: str, folder: Path = Path(), typed: str = "") -> CompletedProcess[str]:
    """Run a command with this input, and return its result."""
    with tempfile.TemporaryDirectory() as place:
        log, errors = Path(place) / "log", Path(place) / "errors"
        started = Forked(arguments, log, folder, errors=errors, typed=typed)
        code = started.wait(WHOLE)
        if code is None:
            started.kill()
        return CompletedProcess(
            arguments, -signal.SIGKILL if code is None else code, log.read_text(), errors.read_text()
        )


def _run(arguments: Sequence[str], outputs: tuple[Path, Path], folder: Path, typed: str) -> None:
    """Run the command in the new process, as if Python had been started with it."""
    for number, path in enumerate(outputs, 1):
        with path.open("ab") as output:
            os.dup2(output.fileno(), number)
    os.chdir(folder)
    os.environ["COLUMNS"] = "200"
    os.execv = _continue_here  # type: ignore[assignment]  # it is called in one way only
    sys.stdin, sys.argv = io.StringIO(typed), ["sojourn", *arguments]
    importlib.import_module("sojourn.cli").main()


def _continue_here(_program: str, command: list[str]) -> NoReturn:
    """Replace `exec`, by which an agent becomes a leaner Python: its modules are already loaded here."""
    module, *arguments = command[command.index("-m") + 1 :]
    sys.exit(importlib.import_module(module).main(*arguments))
