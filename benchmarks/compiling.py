"""Processor time of compiling a model, compared with the previous version: each in a separate process, in turns.

python -m benchmarks.compiling --before DIR [--models mlp resnet8] [--turns 5]

DIR is a checkout of the version to compare with (`git worktree add DIR COMMIT`); without it only this one is measured.
The import of torch and the compiler is listed separately, because it is the same for both; a coordinator needs it, too.
"""

from __future__ import annotations

import argparse
import json
import os
import statistics
import subprocess
import sys
from pathlib import Path

HERE = Path(__file__).resolve().parents[1]
PROGRAM = """
import json, sys, time
from coordinator.compiling import compile_kit
from coordinator.models import build
from sojourn.protocol.spec import InputSpec
imported = time.process_time()
spec = InputSpec((3, 64, 64))
model = build(sys.argv[1], spec, 7, {}, int(sys.argv[2]))
compile_kit(model, spec, tuple("abcdefg"), mean=[160.0] * 3, std=[90.0] * 3, seed=int(sys.argv[2]))
print(json.dumps([imported, time.process_time() - imported]))
"""
SEED = 1


def main() -> None:
    """Print a row for each model."""
    given = _arguments()
    sides = {"before": given.before, "now": HERE} if given.before else {"now": HERE}
    print(f"images of 3x64x64, 7 classes, one thread; load {os.getloadavg()[0]:.1f}")
    for model in given.models:
        seconds: dict[str, list[tuple[float, float]]] = {name: [] for name in sides}
        for turn in range(given.turns):
            for name, folder in sides.items():
                imported, compiled = _measured(folder, model)
                seconds[name].append((imported, compiled))
                print(f"  turn {turn + 1} {model} {name}: import {imported:.2f} s, compile {compiled:.2f} s")
        medians = {name: tuple(map(statistics.median, zip(*each, strict=True))) for name, each in seconds.items()}
        row = "; ".join(
            f"{name} {compiled:.2f} s (import {imported:.2f} s)" for name, (imported, compiled) in medians.items()
        )
        print(f"{model}: {row}{_ratio(medians)}")
    print(f"load at the end {os.getloadavg()[0]:.1f}")


def _ratio(medians: dict[str, tuple[float, ...]]) -> str:
    if "before" not in medians:
        return ""
    (import_before, before), (import_now, now) = medians["before"], medians["now"]
    whole = (import_now + now) / (import_before + before)
    return f"; ratio {now / before:.2f}, with the import {whole:.2f}"


def _measured(folder: Path, model: str) -> tuple[float, float]:
    """Return seconds of CPU time for the import and for compiling; a refused model ends the benchmark."""
    done = subprocess.run(
        [sys.executable, "-c", PROGRAM, model, str(SEED)],
        cwd=folder,
        env={**os.environ, "PYTHONPATH": str(folder), "OMP_NUM_THREADS": "1"},
        stdout=subprocess.PIPE,
        check=True,
    )
    imported, compiled = json.loads(done.stdout.splitlines()[-1])
    return imported, compiled


def _arguments() -> argparse.Namespace:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--before", type=lambda text: Path(text).resolve(), metavar="DIR")
    parser.add_argument("--models", nargs="+", default=["mlp", "resnet8"])
    parser.add_argument("--turns", type=int, default=5)
    return parser.parse_args()


if __name__ == "__main__":
    main()
