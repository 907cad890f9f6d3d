"""The memory of a real `sojourn agent run` with its training process: idle, while training `cnn` on 28x28, idle again.

python -m benchmarks.agent_memory [--samples 1000]
"""

from __future__ import annotations

import argparse
import statistics
import subprocess
import sys
import tempfile
import threading
import time
from pathlib import Path
from typing import NamedTuple

import numpy as np

from benchmarks.site import CLASSES, FLEET, CompiledModel, MeasuredSite
from sojourn.parts import Training

PROC = Path("/proc")
PAUSE = 0.1
IDLE_SECONDS = 2.0
SHAPE = (1, 28, 28)


class Sample(NamedTuple):
    """MB of a process and its children: summed PSS, and as it were with the machine to themselves."""

    pss: float
    alone: float
    processes: int


def tree(pid: int) -> list[int]:
    """A process and all below it."""
    found = [pid]
    for task in (PROC / str(pid) / "task").glob("*/children"):
        for child in task.read_text().split():
            found += tree(int(child))
    return found


def sample(pid: int) -> Sample:
    pids = tree(pid)
    rollups = [(PROC / str(each) / "smaps_rollup").read_text() for each in pids]
    pss = sum(int(line.split()[1]) for text in rollups for line in text.splitlines() if line.startswith("Pss:"))
    return Sample(pss / 1e3, alone(pids) / 1e3, len(pids))


def alone(pids: list[int]) -> int:
    """KB: private pages, and each page of a file once, whoever else on this machine has it mapped too."""
    private, shared = 0, dict[tuple[str, ...], int]()
    for pid in pids:
        key: tuple[str, ...] = ()
        pages: dict[tuple[str, ...], int] = {}
        for line in (PROC / str(pid) / "smaps").read_text().splitlines():
            word, *rest = line.split()
            if not word.endswith(":"):
                key = tuple(rest[1:4])
            elif word.startswith("Private_"):
                private += int(rest[0])
            elif word.startswith("Shared_"):
                pages[key] = pages.get(key, 0) + int(rest[0])
        for key, size in pages.items():
            shared[key] = max(shared.get(key, 0), size)
    return private + sum(shared.values())


class MemoryWatch:
    """Takes samples for as long as the `with` block lasts; a moment in which a process ends is left out."""

    def __init__(self, pid: int) -> None:
        self.samples: list[Sample] = []
        self._pid = pid
        self._over = threading.Event()
        self._thread = threading.Thread(target=self._run)

    def _run(self) -> None:
        while not self._over.wait(PAUSE):
            try:
                self.samples.append(sample(self._pid))
            except (FileNotFoundError, ProcessLookupError):
                continue

    def __enter__(self) -> list[Sample]:
        self._thread.start()
        return self.samples

    def __exit__(self, *_: object) -> None:
        self._over.set()
        self._thread.join()


def agent(site: MeasuredSite, samples: int) -> subprocess.Popen[bytes]:
    """Start an agent as a person does, with a shorter patience for its idle child."""
    draw = np.random.default_rng(1)
    x = draw.integers(0, 256, (samples, *SHAPE[1:]), np.uint8)
    np.savez(site.folder / "data.npz", x=x, y=draw.integers(0, len(CLASSES), samples))
    file = site.folder / "agent.toml"
    file.write_text(
        f'name = "one"\nfleet = "{FLEET}"\nidle_seconds = {IDLE_SECONDS}\nstore = "{site.folder / "one"}"\n'
        f'[broker]\nhost = "{site.broker.host}"\nport = {site.broker.port}\n'
        f'[data]\npath = "{site.folder / "data.npz"}"\n'
    )
    process = subprocess.Popen([sys.executable, "-m", "sojourn.cli", "agent", "run", file])
    site.await_devices(1)
    return process


def row(what: str, samples: list[Sample]) -> None:
    pss, alone_, count = zip(*samples, strict=True)
    print(
        f"{what:34}{max(count):>10}{statistics.median(pss):>12.1f}{max(pss):>10.1f}"
        f"{statistics.median(alone_):>14.1f}{max(alone_):>10.1f}",
        flush=True,
    )


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--samples", type=int, default=1000)
    arguments = parser.parse_args()
    model = CompiledModel("cnn", SHAPE)
    print(f"MB{'':32}{'processes':>10}{'PSS median':>12}{'PSS max':>10}{'alone median':>14}{'max':>10}")
    with tempfile.TemporaryDirectory() as name, MeasuredSite(Path(name)) as site:
        process = agent(site, arguments.samples)
        try:
            time.sleep(2)
            with MemoryWatch(process.pid) as idle:
                time.sleep(2)
            row("connected, before any visit", idle)
            with MemoryWatch(process.pid) as training:
                site.lead(model, model.initial, ["one"], training=Training(epochs=8), threads=None)()
            row("during a visit", [each for each in training if each.processes > 1])
            with MemoryWatch(process.pid) as warm:
                time.sleep(1)
            row("after it, the child still waits", [each for each in warm if each.processes > 1])
            time.sleep(IDLE_SECONDS + 2)
            with MemoryWatch(process.pid) as after:
                time.sleep(2)
            row("the child has gone", after)
        finally:
            process.terminate()
            process.wait()


if __name__ == "__main__":
    main()
