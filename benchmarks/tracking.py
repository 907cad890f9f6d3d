"""The cost of tracking for a simulation: processor time of the simulating process, and of the writing one.

python -m benchmarks.tracking [--turns 3] [--devices 100] [--rounds 20]

Each turn simulates the same job without tracking, with TensorBoard and with MLflow, in that order; MLflow's store
exists already. The measure is processor time, because wall time is useless on a busy machine.
"""

from __future__ import annotations

import argparse
import os
import resource
import statistics
import tempfile
import time
from pathlib import Path

from fleet_sim.run import SimulationRun
from fleet_sim.settings import read_simulation

JOB = """
strategy = "fedavg"
rounds = {rounds}
threads = 1
model = {{ name = "mlp", options = {{ hidden = [16] }} }}
[simulation]
devices = {devices}
engine = "serial"
[split]
by = "iid"
{tracking}
"""


def simulated(rounds: int, devices: int, tracking: str, folder: Path) -> tuple[float, float]:
    """Return the seconds of this process from the start to the end, and of the writing process."""
    text = JOB.format(rounds=rounds, devices=devices, tracking=f"[tracking]\n{tracking}\n" if tracking else "")
    before = resource.getrusage(resource.RUSAGE_CHILDREN)
    running = SimulationRun(read_simulation(text, "benchmark"), folder)
    began = time.process_time()
    for _ in running.courses():
        pass
    took = time.process_time() - began
    running.close()
    after = resource.getrusage(resource.RUSAGE_CHILDREN)
    return took, after.ru_utime + after.ru_stime - before.ru_utime - before.ru_stime


def main() -> None:
    """Run in turns and print medians."""
    parser = argparse.ArgumentParser()
    for name, usual in (("--turns", 3), ("--devices", 100), ("--rounds", 20)):
        parser.add_argument(name, type=int, default=usual)
    given = parser.parse_args()
    found: dict[str, list[tuple[float, float]]] = {}
    with tempfile.TemporaryDirectory() as place:
        where = {
            "plain": "",
            "tensorboard": f'tensorboard = "{place}/tb"',
            "mlflow": f'mlflow = "{place}/mlflow.db"',
        }
        simulated(1, 4, where["mlflow"], Path(place) / "first")  # compiles, and makes the store
        print(f"load {os.getloadavg()[0]:.1f}")
        for turn in range(given.turns):
            for name, tracking in where.items():
                folder = Path(place) / f"{name}-{turn}"
                found.setdefault(name, []).append(simulated(given.rounds, given.devices, tracking, folder))
    plain = statistics.median(own for own, _ in found["plain"])
    for name, turns in found.items():
        own, writer = (statistics.median(values) for values in zip(*turns, strict=True))
        each = " ".join(f"{value:.2f}" for value, _ in turns)
        print(f"{name}: {own:.2f} s ({each}), {own / plain:.3f} of plain; the writer {writer:.2f} s")
    print(f"load {os.getloadavg()[0]:.1f}")


if __name__ == "__main__":
    main()
