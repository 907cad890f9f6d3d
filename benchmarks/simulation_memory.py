"""The peak memory of `sojourn simulate` with 1,000 devices on CIFAR-10: all processes, minus one copy of the data set.

SOJOURN_DATA=FOLDER python -m benchmarks.simulation_memory [--devices 1000] [--rounds 3] [--strategy fedavg]
"""

from __future__ import annotations

import argparse
import subprocess
import sys
import tempfile
from pathlib import Path

from benchmarks.agent_memory import MemoryWatch
from fleet_sim.datasets import load


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0] if __doc__ else "")
    parser.add_argument("--devices", type=int, default=1000)
    parser.add_argument("--rounds", type=int, default=3)
    parser.add_argument("--strategy", default="fedavg")
    parser.add_argument("--cohort", type=float, default=0.05, help="of fedavg: the share of devices in a round")
    asked = parser.parse_args()
    data = load("cifar10")
    size = sum(each.nbytes for each in (data.x_train, data.y_train, data.x_test, data.y_test)) / 1e6
    del data
    settings = [f"arranger.fraction={asked.cohort}"] if asked.strategy == "fedavg" else []
    with tempfile.TemporaryDirectory() as folder:
        command = [
            sys.executable, "-m", "sojourn.cli", "simulate", "--strategy", asked.strategy, "--data", "cifar10",
            "--devices", str(asked.devices), "--rounds", str(asked.rounds), "--engine", "pool", "--alpha", "0.5",
            "--output", str(Path(folder) / "out"), "--set", "model.name=cnn",
            *(word for each in settings for word in ("--set", each)),
        ]  # fmt: skip
        process = subprocess.Popen(command, stdout=subprocess.DEVNULL)
        with MemoryWatch(process.pid) as samples:
            process.wait()
    if process.returncode:
        sys.exit(f"the simulation ended with exit code {process.returncode}")
    peak = max(samples, key=lambda each: each.pss)
    print(f"{asked.devices} devices, {asked.strategy}, {asked.rounds} rounds, {peak.processes} processes")
    print(f"peak PSS {peak.pss:.0f} MB, data set {size:.0f} MB, without it {peak.pss - size:.0f} MB (reach 500)")


if __name__ == "__main__":
    main()
