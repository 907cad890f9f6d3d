"""The memory of a real `sojourn agent run` with its training process: idle, while training, idle again.

The default is `cnn` on 28x28. `--model resnet18` is torchvision's with its BatchNorm at 3x64x64, batch 16, compared
with a bare loop: a process that only opens the same graph on onnxruntime and steps with numpy.

python -m benchmarks.agent_memory [--model cnn] [--samples 1000]
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
SHAPES = {"cnn": (1, 28, 28), "resnet18": (3, 64, 64)}
NAMES = {"cnn": "cnn", "resnet18": "torchvision:resnet18"}
BATCH, RATE = 16, 0.01
BARE_STEPS = 30
BARE = """
import sys
import numpy as np
import onnxruntime

onnxruntime.disable_telemetry_events()
graph, vector, data, batch, rate, steps = sys.argv[1:]
options = onnxruntime.SessionOptions()
options.intra_op_num_threads, options.inter_op_num_threads = 1, 1
options.enable_mem_pattern = False
session = onnxruntime.InferenceSession(graph, options, providers=["CPUExecutionProvider"])
w, batch, rate = np.fromfile(vector, np.float32), int(batch), np.float32(rate)
with np.load(data) as file:
    x, y = file["x"], file["y"]
names = [each.name for each in session.get_outputs()]
for step in range(int(steps)):
    at = step * batch % (len(y) - batch + 1)
    feeds = {"vector": w, "x": x[at : at + batch].astype(np.float32), "y": y[at : at + batch]}
    _, gradient, *state = session.run(names, feeds)
    w[: len(gradient)] -= rate * gradient
    for each in state:
        w[len(gradient) :] = each
"""
"""What a person would write who has the graph and nothing of ours."""


class Sample(NamedTuple):
    """MB of a process and its children: summed PSS, and the value without other processes."""

    pss: float
    alone: float
    processes: int


def tree(pid: int) -> list[int]:
    """Return a process and all its descendants."""
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
    """Return KB: private pages, and each page of a file once, also if other processes map it."""
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
    """Take samples during the `with` block, except while a process ends."""

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


def data(site: MeasuredSite, shape: tuple[int, ...], samples: int) -> Path:
    """Write a file of samples."""
    draw = np.random.default_rng(1)
    x = draw.integers(0, 256, (samples, *(shape if shape[0] > 1 else shape[1:])), np.uint8)
    np.savez(site.folder / "data.npz", x=x, y=draw.integers(0, len(CLASSES), samples))
    return site.folder / "data.npz"


def bare_loop(site: MeasuredSite, model: CompiledModel, file: Path) -> list[Sample]:
    """Return the memory of a process that only runs steps."""
    graph, vector = site.folder / "train.onnx", site.folder / "vector"
    graph.write_bytes(model.kit.train)
    model.initial.tofile(vector)
    arguments = [graph, vector, file, BATCH, RATE, BARE_STEPS]
    process = subprocess.Popen([sys.executable, "-c", BARE, *map(str, arguments)])
    with MemoryWatch(process.pid) as samples:
        process.wait()
    if process.returncode:
        raise SystemExit("the bare loop failed")
    return samples


def agent(site: MeasuredSite) -> subprocess.Popen[bytes]:
    """Start an agent by its command, with a shorter timeout of its idle child process."""
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


def highest(samples: list[Sample]) -> float:
    return max(each.alone for each in samples)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--model", choices=list(SHAPES), default="cnn")
    parser.add_argument("--samples", type=int, default=1000)
    arguments = parser.parse_args()
    large, shape = arguments.model == "resnet18", SHAPES[arguments.model]
    model = CompiledModel(NAMES[arguments.model], shape)
    training = Training(epochs=1, batch=BATCH, lr=RATE) if large else Training(epochs=8)
    print(f"MB{'':32}{'processes':>10}{'PSS median':>12}{'PSS max':>10}{'alone median':>14}{'max':>10}")
    with tempfile.TemporaryDirectory() as name, MeasuredSite(Path(name)) as site:
        file = data(site, shape, arguments.samples)
        if large:
            bare = bare_loop(site, model, file)
            row("the bare loop", bare)
        process = agent(site)
        try:
            time.sleep(2)
            with MemoryWatch(process.pid) as idle:
                time.sleep(2)
            row("connected, before any visit", idle)
            with MemoryWatch(process.pid) as visit:
                site.lead(model, model.initial, ["one"], training=training, threads=1 if large else None)()
            busy = [each for each in visit if each.processes > 1]
            row("during a visit", busy)
            if large:
                print(f"during a visit / the bare loop: {highest(busy) / highest(bare):.2f} of the highest, alone")
                return
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
