"""Sojourn's simulation compared with a plain loop, Flower's and pfl-research's: seconds of a round after the start.

All train the same models on the same random data with FedAvg in two worker processes of one thread (workloads.py);
there is no evaluation, and imports, processes and compilation do not count: the first rounds are ignored. They run in
turns, so that the load affects all, and a ratio is the median over the turns.

The rivals need separate venvs, outside the project:

    python3.11 -m venv flower && flower/bin/pip install torch==2.13.0
    flower/bin/pip install 'flwr[simulation]==1.41.0'
    python3.11 -m venv pfl && pfl/bin/pip install torch==2.13.0
    pfl/bin/pip install pfl==0.6.0

python -m benchmarks.rivals [--flower flower/bin/python] [--pfl pfl/bin/python] [--workload cnn] [--repeats 5]
"""

from __future__ import annotations

import argparse
import json
import os
import statistics
import subprocess
import sys
from pathlib import Path
from typing import Any

from benchmarks.rivals.workloads import WORKLOADS

ROOT = Path(__file__).resolve().parents[2]
TIMEOUT = 600
OURS = "sojourn"
MODULES = {"plain_loop": "plain_loop", OURS: "sojourn_run", "flower": "flower_run", "pfl": "pfl_run"}
ALONE = dict.fromkeys(("OMP_NUM_THREADS", "OPENBLAS_NUM_THREADS", "MKL_NUM_THREADS"), "1")
QUIET = {"RAY_DEDUP_LOGS": "0", "RAY_ACCEL_ENV_VAR_OVERRIDE_ON_ZERO": "0", "FLWR_TELEMETRY_ENABLED": "0"}


def one(command: list[str], workload: str, rounds: int) -> dict[str, Any]:
    """Run one of them in separate processes and return the values of its line."""
    environment = os.environ | ALONE | QUIET | {"PYTHONPATH": str(ROOT)}
    done = subprocess.run(
        [*command, workload, str(rounds)],
        cwd=ROOT,
        env=environment,
        capture_output=True,
        text=True,
        timeout=TIMEOUT,
        check=False,
    )
    lines = [line for line in done.stdout.splitlines() if line.startswith('{"version"')]
    if done.returncode or len(lines) != 1:
        raise SystemExit(f"{' '.join(command)} ended with {done.returncode}:\n{done.stderr[-3000:]}")
    found: dict[str, Any] = json.loads(lines[0])
    return found


def compared(workload: str, commands: dict[str, list[str]], repeats: int, rounds: int) -> None:
    """Print a workload's table."""
    times: dict[str, list[float]] = {name: [] for name in commands}
    versions = {}
    for _ in range(repeats):
        for name, command in commands.items():
            found = one(command, workload, rounds)
            versions[name] = found["version"]
            times[name].append(statistics.median(found["seconds"]))
            print(f"  {name} {times[name][-1] * 1e3:.1f} ms", file=sys.stderr, flush=True)
    cohort = WORKLOADS[workload].cohort
    print(f"{workload}: {repeats} turns of {rounds} rounds, load {os.getloadavg()[0]:.1f}")
    print("              ms of a round  least     most  users/s  sojourn is x times as fast")
    for name, taken in times.items():
        ratio = statistics.median(theirs / ours for theirs, ours in zip(taken, times[OURS], strict=True))
        middle = statistics.median(taken)
        line = f"{name:11} {middle * 1e3:15.1f} {min(taken) * 1e3:6.1f} {max(taken) * 1e3:8.1f} {cohort / middle:8.1f}"
        print(f"{line} {ratio:12.2f}   ({versions[name]})")


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--flower", help="the Python of Flower's venv")
    parser.add_argument("--pfl", help="the Python of pfl's venv")
    parser.add_argument("--workload", nargs="+", default=list(WORKLOADS), choices=list(WORKLOADS))
    parser.add_argument("--repeats", type=int, default=5)
    parser.add_argument("--rounds", type=int, help="rounds in each turn; default: the workload's")
    asked = parser.parse_args()
    pythons = {"plain_loop": sys.executable, OURS: sys.executable, "flower": asked.flower, "pfl": asked.pfl}
    # Absolute but not resolved: a venv's Python is a link, identified by the location of the link.
    commands = {
        name: [str(Path(python).absolute()), "-m", f"benchmarks.rivals.{MODULES[name]}"]
        for name, python in pythons.items()
        if python
    }
    for workload in asked.workload:
        compared(workload, commands, asked.repeats, asked.rounds or WORKLOADS[workload].rounds)


if __name__ == "__main__":
    main()
