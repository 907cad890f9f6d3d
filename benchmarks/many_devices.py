"""The cost of a large fleet in a simulation: its start, a round of 1,000 visits, and memory, relative to 1,000 devices.

Run from the root: python -m benchmarks.many_devices [devices ...] [--visits 1000] [--rounds 4] [--strategy visit]. Each
fleet is simulated in a separate process, with digits and logistic regression, trained in that process. Times are CPU
seconds, independent of other load; a round is the mean of all except the first. `estimating` is VISIT's estimation of
all devices and does not count as start, which ends when the first visit is sent.
"""

from __future__ import annotations

import argparse
import json
import resource
import subprocess
import sys
import tempfile
import time
from pathlib import Path
from typing import Any

from fleet_sim.run import SimulationRun
from fleet_sim.settings import read_simulation

SIZES = (1_000, 100_000)
STRATEGIES = ("fedavg", "visit")
PER_SET = 10


def settings(strategy: str, devices: int, visits: int, rounds: int) -> dict[str, Any]:
    arranged = (
        {"arranger.fraction": visits / devices}
        if strategy == "fedavg"
        else {"arranger.sets": visits // PER_SET, "arranger.size": PER_SET, "estimator.epochs": 1}
    )
    return {
        "strategy": strategy, "rounds": rounds, "model.name": "mlp", "model.options": {"hidden": []},
        "training.epochs": 1, "simulation.data": "digits", "simulation.devices": devices, "simulation.engine": "serial",
        "split.alpha": 0.3, "split.samples": 20, "split.shared": True, **arranged,
    }  # fmt: skip


def memory() -> float:
    """Return the peak memory of this process in MB."""
    return resource.getrusage(resource.RUSAGE_SELF).ru_maxrss / 1024


def simulated(strategy: str, devices: int, visits: int, rounds: int) -> dict[str, float]:
    """Return CPU seconds of each phase, and MB."""
    before, first, ends = memory(), dict[str, float](), dict[int, float]()
    with tempfile.TemporaryDirectory() as folder:
        running = SimulationRun(
            read_simulation("", "benchmark", settings(strategy, devices, visits, rounds)), Path(folder) / "out"
        )
        start = running.engine.start

        def departed(device: str, key: str, work: Any, blobs: Any) -> Any:
            first.setdefault(work.visit.task.kind, time.process_time())
            return start(device, key, work, blobs)

        running.engine.start = departed  # type: ignore[method-assign]
        for course in running.courses():
            ends.setdefault(len(course.history), time.process_time())
        job = running.fleet.job(running.name)
        running.close()
    if job.status != "done" or any(each.visits != visits for each in job.history):
        raise SystemExit(f"{strategy}, {devices} devices: {job.detail}")
    seen = sorted(ends)[1:]  # rounds, of which the first is not counted
    return {
        "start": min(first.values()),
        "estimating": first["train"] - min(first.values()),
        "round": (ends[seen[-1]] - ends[seen[0]]) / (seen[-1] - seen[0]),
        "memory": memory(),
        "by device": (memory() - before) * 1024 / devices,
    }


def main() -> None:
    asked = argparse.ArgumentParser(description=__doc__)
    asked.add_argument("devices", nargs="*", type=int, default=SIZES)
    asked.add_argument("--visits", type=int, default=1000)
    asked.add_argument("--rounds", type=int, default=4)
    asked.add_argument("--strategy", choices=STRATEGIES)
    asked.add_argument("--one", action="store_true", help=argparse.SUPPRESS)
    options = asked.parse_args()
    if options.one:
        print(json.dumps(simulated(options.strategy, options.devices[0], options.visits, options.rounds)))
        return
    headings = f"{'start s':>8} {'estimating s':>13} {'round s':>8} {'x':>5} {'MB':>6} {'KB/device':>10}"
    print(f"{'strategy':8} {'devices':>9} {headings}")
    for strategy in [options.strategy] if options.strategy else STRATEGIES:
        least = None
        for devices in options.devices:
            words = [str(devices), "--one", "--strategy", strategy, "--visits", str(options.visits)]
            done = subprocess.run(
                [sys.executable, "-m", "benchmarks.many_devices", *words, "--rounds", str(options.rounds)],
                stdout=subprocess.PIPE,
                check=True,
            )
            it = json.loads(done.stdout.splitlines()[-1])
            least = least or it["round"]
            print(
                f"{strategy:8} {devices:9,} {it['start']:8.1f} {it['estimating']:13.1f} {it['round']:8.2f} "
                f"{it['round'] / least:5.2f} {it['memory']:6,.0f} {it['by device']:10.2f}",
                flush=True,
            )


if __name__ == "__main__":
    main()
