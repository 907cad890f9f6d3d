"""Visits per second on a torch device, compared with the devices' trainer on this machine's CPU: rows for gpu.md.

The workloads are those of benchmarks.engines (cnn, logistic), with as many visits in a round as train at once.
`pool` is the default engine with a process for each core; `torch` trains one visit after another; `batched N` trains N
as one step of torch. All start from the same model and run in turns; a value is the median over the rounds. `apart`
is the largest difference from the pool's model after the first round: rounding, or an error.

python -m benchmarks.gpu [--device cuda] [--workloads cnn logistic] [--together 1 8 64] [--rounds 7]
"""

from __future__ import annotations

import argparse
import platform
import statistics
from typing import TYPE_CHECKING

import numpy as np
import torch

from benchmarks.engines import SimulatedUsers, seconds
from benchmarks.rivals.workloads import WORKLOADS
from fleet_sim.engines.choosing import hardware, pick
from sojourn import __version__

if TYPE_CHECKING:
    from benchmarks.rivals.workloads import Workload

HEAD = "| model | engine | visits/s | / pool | peak MB | apart |\n|---|---|---|---|---|---|"


def main() -> None:
    """Print the machine and the table."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--device", default="auto", help="auto, cpu, cuda, cuda:1 or mps")
    parser.add_argument("--workloads", nargs="+", default=list(WORKLOADS), choices=list(WORKLOADS))
    parser.add_argument("--together", nargs="+", type=int, default=[1, 8, 64])
    parser.add_argument("--rounds", type=int, default=7)
    arguments = parser.parse_args()
    has = hardware(gpus=True)
    device = pick("batched", "torch", arguments.device, 0, 0, has).device
    print(f"{_name(device)}; {platform.processor() or platform.machine()}, {has}; sojourn {__version__}, ", end="")
    print(f"torch {torch.__version__}, CUDA {torch.version.cuda or 'none'}, Python {platform.python_version()}\n")
    print(HEAD)
    for name in arguments.workloads:
        workload = WORKLOADS[name]._replace(cohort=max(arguments.together))
        sides = {"pool": ("pool", "cpu", 64), "torch": ("torch", device, 64)}
        sides |= {f"batched {count}": ("batched", device, count) for count in arguments.together}
        for row in _rows(name, workload, sides, arguments.rounds, has.cores):
            print(row, flush=True)


def _rows(name: str, workload: Workload, sides: dict[str, tuple[str, str, int]], rounds: int, cores: int) -> list[str]:
    fleets = {}
    for label, (engine, device, together) in sides.items():
        torch.manual_seed(1)  # all start with the same model
        fleets[label] = SimulatedUsers(engine, workload, cores, device, together)
    draw = np.random.default_rng(1)
    times: dict[str, list[float]] = {label: [] for label in fleets}
    peaks, apart = dict.fromkeys(fleets, 0.0), dict.fromkeys(fleets, 0.0)
    for number in range(rounds + 1):  # the first one is not counted
        users = draw.choice(workload.users, workload.cohort, replace=False).tolist()
        for label, fleet in fleets.items():
            if torch.cuda.is_available():
                torch.cuda.reset_peak_memory_stats()
            times[label].append(seconds(fleet, users))
            if torch.cuda.is_available():
                peaks[label] = max(peaks[label], torch.cuda.max_memory_allocated() / 1e6)
            if number == 0:
                apart[label] = float(np.abs(fleet.model - fleets["pool"].model).max())
    for fleet in fleets.values():
        fleet.close()
    speeds = {label: workload.cohort / statistics.median(taken[1:]) for label, taken in times.items()}
    return [
        f"| {name} | {label} | {speed:.1f} | {speed / speeds['pool']:.2f} | "
        f"{f'{peaks[label]:.0f}' if peaks[label] else '-'} | {apart[label]:.1e} |"
        for label, speed in speeds.items()
    ]


def _name(device: str) -> str:
    return f"{torch.cuda.get_device_name(device)} as {device}" if device.startswith("cuda") else f"torch on {device}"


if __name__ == "__main__":
    main()
