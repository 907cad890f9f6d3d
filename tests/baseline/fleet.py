"""A fleet that tests control only by commands, settings files and logs, so that any of its nodes can run old code."""

from __future__ import annotations

import os
import re
import subprocess
import sys
from typing import TYPE_CHECKING

from tests import forked
from tests.forked import Forked
from tests.ports import free_ports
from tests.waiting import LIMIT, WHOLE, wait_until

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping, Sequence
    from pathlib import Path

FLEET = "baseline"
CLOUD, SITE = "cloud", "edge-1"
DEVICES = ("pi-1", "pi-2")
NODES = (CLOUD, SITE, *DEVICES)
ROLES = {CLOUD: "coordinator", SITE: "edge", **dict.fromkeys(DEVICES, "agent")}
LISTENING = re.compile(r"is listening on (\S+);")


def sojourn(*arguments: str, folder: Path, source: Path | None = None) -> str:
    """Run a command of today's code, or of the code in `source`, and return its output."""
    if source is None:
        return forked.sojourn(*arguments, folder=folder)
    done = subprocess.run(
        _command(*arguments),
        cwd=folder,
        env=_environment(source),
        capture_output=True,
        text=True,
        timeout=WHOLE,
        check=False,
    )
    assert done.returncode == 0, f"sojourn {' '.join(arguments)}\n{done.stdout}\n{done.stderr}"
    return done.stdout


class Started:
    """A command of the code in `source`, in a fresh Python; it has the methods of `Forked`."""

    def __init__(self, arguments: Sequence[str], log: Path, folder: Path, source: Path) -> None:
        with log.open("ab") as output:
            self._process = subprocess.Popen(
                _command(*arguments),
                cwd=folder,
                env=_environment(source),
                stdin=subprocess.DEVNULL,
                stdout=output,
                stderr=output,
            )

    def kill(self) -> None:
        self._process.kill()
        self._process.wait()

    def terminate(self) -> None:
        self._process.terminate()

    def wait(self, seconds: float) -> int | None:
        try:
            return self._process.wait(seconds)
        except subprocess.TimeoutExpired:
            return None


class CommandFleet:
    """A coordinator, an edge server and two agents as processes, with a Mosquitto broker.

    `folder` has a settings file for each node, which names its store. The nodes in `old` run the code in `source`.
    """

    def __init__(self, folder: Path, source: Path | None = None, old: Sequence[str] = ()) -> None:
        self.folder = folder
        self._sources: dict[str, Path] = {} if source is None else dict.fromkeys(old, source)
        self._logs = folder / "logs"
        self._logs.mkdir()
        self._processes: dict[str, Forked | Started] = {}
        # The broker enforces access rules: no version may need a right that the other version's broker does not give.
        rules = ("--fleet", FLEET, "--edge", SITE, *(word for device in DEVICES for word in ("--device", device)))
        (port,) = free_ports(1)
        self._spawn("broker", "broker", "--kind", "mosquitto", "--port", str(port), "--folder", "broker", *rules)
        self.wait(lambda: LISTENING.search(self.log("broker")), "the broker's address in its log")
        (self._address,) = LISTENING.findall(self.log("broker"))

    def start(self) -> None:
        """Start all nodes, the coordinator last: ten seconds later it resumes its job without the missing devices.

        The edge server's log shows which devices it has seen; a fresh Python can need longer than that to start.
        """
        self._start(*DEVICES)
        before = len(self.log(SITE))
        self._start(SITE)
        for device in DEVICES:
            self._wait_for_more(SITE, before, f"device {device} is online")
        self._start(CLOUD)

    def kill(self, *nodes: str) -> None:
        """End nodes with SIGKILL."""
        for node in nodes:
            self._processes[node].kill()

    def end(self, *nodes: str) -> None:
        """End nodes with SIGTERM: each writes a snapshot."""
        for node in nodes:
            self._processes[node].terminate()
        for node in nodes:
            assert self._processes[node].wait(LIMIT) == 0, self.log(node)

    def upgrade(self, node: str) -> None:
        """End a node that runs old code and start it with today's code on the same store."""
        self.end(node)
        self._sources.pop(node)
        self._start(node)

    def ask(self, *arguments: str) -> str:
        """Run an operator's command, with the code that the coordinator runs."""
        asked = (*arguments, "--broker", self._address, "--fleet", FLEET)
        return sojourn(*asked, folder=self.folder, source=self._sources.get(CLOUD))

    def export(self, job: str) -> Path:
        """Write the job's newest model to a file."""
        self.ask("job", "export", job, "--output", f"{job}.onnx")
        return self.folder / f"{job}.onnx"

    def roll_out(self, release: str) -> str:
        """Bring a release to all devices; raise an error if it does not reach them."""
        # The limits allow everything: this is no test of accuracy or speed, and a busy machine can be slow.
        easy = ("--max-accuracy-drop", "1", "--max-drift", "1", "--max-latency", "1000")
        how = ("--key", "release.key", "--stages", "100%", "--soak", "0.2", "--timeout", f"{LIMIT:g}", "--watch")
        return self.ask("release", "rollout", release, *how, *easy)

    def log(self, node: str) -> str:
        path = self._logs / node
        return path.read_text() if path.exists() else ""

    def wait_for(self, node: str, text: str) -> None:
        """Wait until a node's log has a text."""
        self.wait(lambda: text in self.log(node), f"{text!r} in the log of {node}")

    def wait(self, condition: Callable[[], object], what: str) -> None:
        wait_until(condition, what, self._ends_of_logs)

    def trained(self, job: str) -> list[str]:
        """All visits of a job that the devices trained, as their logs name them."""
        found = [re.findall(rf"trained ({job} [^:]*):", self.log(device)) for device in DEVICES]
        return [visit for visits in found for visit in visits]

    def stop(self) -> None:
        """End everything, also what does not react."""
        for process in self._processes.values():
            process.terminate()
        for process in self._processes.values():
            if process.wait(LIMIT) is None:
                process.kill()

    def _start(self, *nodes: str) -> None:
        lengths: Mapping[str, int] = {node: len(self.log(node)) for node in nodes}
        for node in nodes:
            self._spawn(node, ROLES[node], "run", f"{node}.toml", "--broker", self._address)
        for node, length in lengths.items():
            self._wait_for_more(node, length, ": connected")

    def _wait_for_more(self, node: str, length: int, text: str) -> None:
        """Wait until a node's log has a text after its first `length` characters."""
        self.wait(lambda: text in self.log(node)[length:], f"{text!r} in the log of {node}")

    def _ends_of_logs(self) -> str:
        return "\n".join(f"--- {path.name}\n{path.read_text()[-2500:]}" for path in self._logs.iterdir())

    def _spawn(self, node: str, *arguments: str) -> None:
        log, source = self._logs / node, self._sources.get(node)
        self._processes[node] = (
            Forked(arguments, log, self.folder) if source is None else Started(arguments, log, self.folder, source)
        )


def _command(*arguments: str) -> list[str]:
    return [sys.executable, "-m", "sojourn.cli", *arguments]


def _environment(source: Path) -> dict[str, str]:
    """The environment in which Python finds the code in `source` before the installed code."""
    return {**os.environ, "PYTHONUNBUFFERED": "1", "COLUMNS": "200", "PYTHONPATH": str(source)}
