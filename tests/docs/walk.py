"""Follows README like a new user: every command as shown, in order, each role in a separate terminal.

Only the stages of the rollout are shorter: they would only wait.

`unshare --net python -m tests.docs.walk FOLDER` has a separate network, so that the ports and addresses of the page are
free. It prints the result of each command as JSON. FOLDER takes the place of the clone, with photos/ in it.
"""

from __future__ import annotations

import fcntl
import json
import os
import re
import shlex
import signal
import socket
import struct
import subprocess
import sys
from pathlib import Path

from sojourn.processes import die_with_parent
from tests.docs.pages import ROOT, blocks, runs_on, section
from tests.waiting import LIMIT, WHOLE, wait_until

README = (ROOT / "README.md").read_text(encoding="utf-8")
FIRST, MACHINES = "## Your own images, your own model", "## More than one machine"
BACK = "## Release the model to the devices"
ADDRESS = "192.168.1.10"
"""The page's address of the broker."""
_GET_FLAGS, _SET_FLAGS, _SET_ADDRESS = 0x8913, 0x8914, 0x8916
_UP, _RUNNING = 0x1, 0x40


class Walk:
    """A user at the keyboard: the commands typed, and their results."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder
        self.steps: list[dict[str, object]] = []
        self.terminals: list[tuple[str, subprocess.Popen[bytes], Path]] = []
        self.environment = {**os.environ, "HOME": str(folder / "home"), "COLUMNS": "80", "PYTHONPATH": str(ROOT)}
        self.environment.pop("XDG_DATA_HOME", None)

    def prepare(self) -> None:
        """Make the environment of `make demo`, with the command in it; here it runs the code of the checkout."""
        programs = self.folder / ".venv" / "bin"
        programs.mkdir(parents=True)
        (self.folder / "home").mkdir()
        (programs / "sojourn").write_text(f"#!{sys.executable}\nfrom sojourn.cli import main\nmain()\n")
        (programs / "sojourn").chmod(0o755)
        (programs / "activate").write_text(f"PATH={shlex.quote(str(programs))}:$PATH\n")

    def write_files(self, text: str) -> None:
        """Write each file of a section: a block whose preceding prose names it."""
        for block in blocks(text):
            if block.language in {"python", "toml"}:
                (name,) = re.findall(r"`(\w+\.(?:py|toml))`", block.before)[-1:]
                (self.folder / name).write_text(block.text)

    def type_in(self, command: str) -> None:
        """Run one command: a role stays in its terminal; other commands are waited for."""
        shell = ["bash", "-c", f". .venv/bin/activate && exec {command}" if not command.startswith(". ") else command]
        log = self.folder / f"terminal-{len(self.steps)}.log"
        edges = [log for command, _, log in self.terminals if command.startswith("sojourn edge")]
        seen = {edge: len(edge.read_text()) for edge in edges}
        with log.open("wb") as output:
            started = subprocess.Popen(
                shell,
                cwd=self.folder,
                env=self.environment,
                stdout=output,
                stderr=output,
                preexec_fn=die_with_parent(),  # noqa: PLW1509  # this process has one thread
            )
        if runs_on(command):
            self.terminals.append((command, started, log))
            # A user waits until it has started before going to the next terminal.
            self.wait_for(log, "is listening" if command.startswith("sojourn broker") else ": connected")
            if command.startswith("sojourn agent"):
                (name,) = re.findall(r"--name (\S+)", command)
                for edge, before in seen.items():
                    self.wait_for(edge, f"device {name} is online", before)
            self.steps.append({"command": command, "code": None, "output": ""})
            return
        code = started.wait(WHOLE)
        self.steps.append({"command": command, "code": code, "output": log.read_text()})
        if code:
            self.give_up()

    def wait_for(self, log: Path, words: str, start: int = 0) -> None:
        """Wait until a terminal shows this text after its first `start` characters."""
        try:
            wait_until(lambda: words in log.read_text()[start:], f"{words!r}", log.read_text)
        except AssertionError as error:
            self.steps.append({"command": f"waiting for {words!r}", "code": 1, "output": str(error)})
            self.give_up()

    def stop(self, which: str = "sojourn") -> None:
        """Send Ctrl-C in the terminals of these commands, the last one first."""
        for command, started, log in reversed([each for each in self.terminals if each[0].startswith(which)]):
            started.send_signal(signal.SIGINT)
            self.steps.append({"command": f"Ctrl-C: {command}", "code": started.wait(LIMIT), "output": log.read_text()})
        self.terminals = [each for each in self.terminals if not each[0].startswith(which)]

    def give_up(self) -> None:
        """End after a failed command, and show every terminal."""
        self.stop()
        self.print_steps()
        sys.exit(1)

    def print_steps(self) -> None:
        """Print the results as JSON."""
        sys.stdout.write(json.dumps(self.steps))


def commands(heading: str) -> list[str]:
    """Return the commands of a section, without blocks in other languages and without text that is not a command."""
    plain = [block for block in blocks(section(README, heading)) if not block.language]
    return [each for block in plain for each in block.commands if each.startswith(("sojourn ", ". ."))]


def raise_network() -> str:
    """Set up loopback and the page's address in a new network; return the address to use instead of it.

    Without a new network nothing is changed: another loopback address takes the place of the page's.
    """
    with socket.socket(socket.AF_INET, socket.SOCK_DGRAM) as tool:
        flags = struct.unpack("16sh14x", fcntl.ioctl(tool, _GET_FLAGS, struct.pack("16sh14x", b"lo", 0)))[1]
        if flags & _UP:
            return "127.0.0.2"
        for name, number in ((b"lo", "127.0.0.1"), (b"lo:1", ADDRESS)):
            where = struct.pack("16sH2x4s8x", name, socket.AF_INET, socket.inet_aton(number))
            fcntl.ioctl(tool, _SET_ADDRESS, where)
            fcntl.ioctl(tool, _SET_FLAGS, struct.pack("16sh14x", name, _UP | _RUNNING))
    return ADDRESS


def main(folder: Path) -> None:
    """Follow the first hour; then roll out the model; then repeat it over the broker's address."""
    address = raise_network()
    walk = Walk(folder)
    walk.prepare()
    walk.write_files(section(README, FIRST))
    for command in commands(FIRST):
        walk.type_in(command)
    walk.stop("sojourn agent")
    for command in commands(BACK):
        walk.type_in(command.replace("rollout ", "rollout --soak 0.2 "))
    walk.stop()
    for command in commands(MACHINES):
        # The job is done: its listing shows that the broker is reachable.
        walk.type_in(
            command.replace("submit job.toml --broker", "list --broker")
            .replace(" --watch", "")
            .replace(ADDRESS, address)
        )
    walk.stop()
    walk.print_steps()


if __name__ == "__main__":
    main(Path(sys.argv[1]))
