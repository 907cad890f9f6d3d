"""Bytes that a real agent and its training process write to the disk for each visit, as the kernel counts them.

python -m benchmarks.disk_writes [--visits 20] [--folder a folder on a disk; a tmpfs counts nothing]

`write_bytes` of /proc/<pid>/io: pages that became dirty, also if the file was deleted before they were written.
The first visit includes the kit, and is listed separately.
"""

from __future__ import annotations

import argparse
import os
import tempfile
import time
from contextlib import suppress
from pathlib import Path
from typing import TYPE_CHECKING, Any

from benchmarks.agent_memory import PROC, agent, tree
from benchmarks.site import CompiledModel, MeasuredSite
from sojourn.parts import Training

if TYPE_CHECKING:
    import subprocess

SHAPE = (1, 28, 28)
MODELS: list[tuple[str, dict[str, Any]]] = [
    ("mlp", {"hidden": [16]}),
    ("cnn", {}),
    ("mlp", {"hidden": [1000]}),
    ("mlp", {"hidden": [2500, 2500]}),
]
ALLOWED = 256 << 10


def written(pid: int) -> int:
    """Return the bytes so far, including those of ended children, which the kernel adds to their parent."""
    total = 0
    for each in tree(pid):
        with suppress(FileNotFoundError, ProcessLookupError):
            lines = (PROC / str(each) / "io").read_text().splitlines()
            total += next(int(line.split()[1]) for line in lines if line.startswith("write_bytes"))
    return total


def settled(pid: int) -> int:
    """Return the count once no more bytes are written."""
    before = -1
    while (now := written(pid)) != before:
        before = now
        time.sleep(0.5)
    return now


def measure(
    site: MeasuredSite, process: subprocess.Popen[bytes], model: CompiledModel, visits: int
) -> tuple[int, float]:
    """Return the bytes of the first visit, and of each following one."""
    training = Training(epochs=1)
    start = settled(process.pid)
    site.lead(model, model.initial, ["one"], training=training)()
    first = settled(process.pid)
    for turn in range(visits):
        site.lead(model, model.initial + (turn + 1) * 1e-3, ["one"], training=training)()
    return first - start, (settled(process.pid) - first) / visits


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--visits", type=int, default=20)
    parser.add_argument("--folder", type=Path, default=None)
    arguments = parser.parse_args()
    os.environ.setdefault("OMP_NUM_THREADS", "1")
    print(f"{'KB':24}{'model':>10}{'first visit':>14}{'each visit':>12}{'x model':>9}{'allowed':>10}")
    for name, options in MODELS:
        model = CompiledModel(name, SHAPE, **options)
        size = model.initial.nbytes
        with tempfile.TemporaryDirectory(dir=arguments.folder) as folder, MeasuredSite(Path(folder)) as site:
            process = agent(site)
            try:
                first, each = measure(site, process, model, arguments.visits)
            finally:
                process.terminate()
                process.wait()
        allowed = 3 * size + ALLOWED
        label = f"{name} {options.get('hidden', '')}"
        print(
            f"{label:24}{size / 1e3:>10.0f}{first / 1e3:>14.0f}{each / 1e3:>12.0f}{each / size:>9.2f}"
            f"{allowed / 1e3:>10.0f}{'' if each <= allowed else '  too much'}",
            flush=True,
        )


if __name__ == "__main__":
    main()
