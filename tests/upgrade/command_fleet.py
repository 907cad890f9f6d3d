"""A fleet that is known only by its commands, its settings files and its logs, so that any version can be one."""

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

FLEET = "kept"
CLOUD, SITE = "cloud", "edge-1"
DEVICES = ("pi-1", "pi-2")
NODES = (CLOUD, SITE, *DEVICES)
ROLES = {CLOUD: "coordinator", SITE: "edge", **dict.fromkeys(DEVICES, "agent")}
LISTENING = re.compile(r"is listening on (\S+);")


def sojourn(*arguments: str, folder: Path, tree: Path | None = None) -> str:
    """What a command prints; `tree` is the version's source, unless it is the one that is installed."""
    if tree is None:
        return forked.sojourn(*arguments, folder=folder)
    done = subprocess.run(
        command_of(*arguments),
        cwd=folder,
        env=environment_of(tree),
        capture_output=True,
        text=True,
        timeout=WHOLE,
        check=False,
    )
    assert done.returncode == 0, f"sojourn {' '.join(arguments)}\n{done.stdout}\n{done.stderr}"
    return done.stdout


class OtherVersion:
    """A command of the version whose source is in `tree`, in a Python of its own; otherwise as `Forked`."""

    def __init__(self, arguments: Sequence[str], log: Path, folder: Path, tree: Path) -> None:
        with log.open("ab") as output:
            self._process = subprocess.Popen(
                command_of(*arguments),
                cwd=folder,
                env=environment_of(tree),
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
    """A coordinator, an edge server and two agents as processes, on a Mosquitto of their own.

    `folder` has a settings file of each, in which its store is named; `trees` says which of them run another version.
    """

    def __init__(self, folder: Path, trees: Mapping[str, Path] | None = None) -> None:
        self.folder = folder
        self._trees = dict(trees or {})
        self._logs = folder / "logs"
        self._logs.mkdir()
        self._processes: dict[str, Forked | OtherVersion] = {}
        # With the fleet's access rules: a version may not need a right that another one's broker does not give.
        rules = ("--fleet", FLEET, "--edge", SITE, *(word for device in DEVICES for word in ("--device", device)))
        (port,) = free_ports(1)
        self._spawn("broker", "broker", "--kind", "mosquitto", "--port", str(port), "--folder", "broker", *rules)
        self.wait(lambda: LISTENING.search(self.log("broker")), "the broker's address in its log")
        (self._address,) = LISTENING.findall(self.log("broker"))

    def start(self) -> None:
        """Start all, the coordinator last: it goes on with a job ten seconds later without a device that is not here.

        A version in a Python of its own takes longer than that to start, at times, on a machine that does much else. An
        edge server that is connected may not have seen the devices yet: only its log says when it has.
        """
        self._start(*DEVICES)
        before = len(self.log(SITE))
        self._start(SITE)
        for device in DEVICES:
            self._wait_for_more(SITE, before, f"device {device} is here")
        self._start(CLOUD)

    def _start(self, *nodes: str) -> None:
        told = {node: len(self.log(node)) for node in nodes}
        for node in nodes:
            self._spawn(node, ROLES[node], "run", f"{node}.toml", "--broker", self._address)
        for node, earlier in told.items():
            self._wait_for_more(node, earlier, ": connected")

    def kill(self, *nodes: str) -> None:
        """The end that nobody is told of."""
        for node in nodes:
            self._processes[node].kill()

    def end(self, *nodes: str) -> None:
        """Stop them in good order: each leaves a snapshot."""
        for node in nodes:
            self._processes[node].terminate()
        for node in nodes:
            assert self._processes[node].wait(LIMIT) == 0, self.log(node)

    def upgrade(self, node: str) -> None:
        """Stop a node of another version and start it as one of today, on the same store."""
        self.end(node)
        self._trees.pop(node)
        self._start(node)

    def ask(self, *arguments: str) -> str:
        """What an operator is told; his commands are of the coordinator's version."""
        asked = (*arguments, "--broker", self._address, "--fleet", FLEET)
        return sojourn(*asked, folder=self.folder, tree=self._trees.get(CLOUD))

    def export(self, job: str) -> Path:
        """The job's newest model, as a file."""
        self.ask("job", "export", job, "--output", f"{job}.onnx")
        return self.folder / f"{job}.onnx"

    def roll_out(self, release: str) -> str:
        """Bring a release to all devices; it is an error if it does not get there."""
        # How well and how fast it predicts is not what is tried here, and a busy machine is slow at times.
        easy = ("--max-accuracy-drop", "1", "--max-drift", "1", "--max-latency", "1000")
        how = ("--key", "release.key", "--stages", "100%", "--soak", "0.2", "--patience", f"{LIMIT:g}", "--watch")
        return self.ask("release", "rollout", release, *how, *easy)

    def log(self, node: str) -> str:
        path = self._logs / node
        return path.read_text() if path.exists() else ""

    def wait_for(self, node: str, words: str) -> None:
        """Until a node's log says something."""
        self.wait(lambda: words in self.log(node), f"{words!r} in the log of {node}")

    def _wait_for_more(self, node: str, earlier: int, words: str) -> None:
        """Until a node's log says something after so many characters."""
        self.wait(lambda: words in self.log(node)[earlier:], f"{words!r} in the log of {node}")

    def wait(self, condition: Callable[[], object], what: str) -> None:
        wait_until(condition, what, self._ends_of_logs)

    def _ends_of_logs(self) -> str:
        return "\n".join(f"--- {path.name}\n{path.read_text()[-2500:]}" for path in self._logs.iterdir())

    def trained(self, job: str) -> list[str]:
        """Every visit of a job that was trained here, as the devices' logs have it."""
        found = [re.findall(rf"trained ({job} [^:]*):", self.log(device)) for device in DEVICES]
        return [visit for visits in found for visit in visits]

    def stop(self) -> None:
        for process in self._processes.values():
            process.terminate()
        for process in self._processes.values():
            if process.wait(LIMIT) is None:
                process.kill()

    def _spawn(self, node: str, *arguments: str) -> None:
        log, tree = self._logs / node, self._trees.get(node)
        self._processes[node] = (
            Forked(arguments, log, self.folder) if tree is None else OtherVersion(arguments, log, self.folder, tree)
        )


def command_of(*arguments: str) -> list[str]:
    """The `sojourn` command, of whichever version comes first on the path."""
    return [sys.executable, "-m", "sojourn.cli", *arguments]


def environment_of(tree: Path | None) -> dict[str, str]:
    """What a process of a version is started with: its source comes before that which is installed."""
    new = {**os.environ, "PYTHONUNBUFFERED": "1", "COLUMNS": "200"}
    new.pop("PYTHONPATH", None)
    return new if tree is None else {**new, "PYTHONPATH": str(tree)}
