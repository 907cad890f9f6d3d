"""The whole of `sojourn simulate`: all roles and messages, tables, checkpoints, and the live view on a terminal.

Evaluation cannot be disabled, so it uses only ten samples.

python -m benchmarks.rivals.sojourn_run cnn 5 [SETTING=VALUE ...]
"""

from __future__ import annotations

import os
import sys
import time
from pathlib import Path
from tempfile import TemporaryDirectory

import numpy as np
from rich.console import Console

from benchmarks.rivals.workloads import BATCH, CLASSES, RATE, WARM, WORKLOADS, data, print_rounds
from coordinator.console.live_view import show
from coordinator.records import RoundClosed
from fleet_sim.console.setting_options import changes
from fleet_sim.run import SimulationRun
from fleet_sim.settings import read_simulation
from fleet_sim.world.memory_fleet import CLOUD
from sojourn import __version__

SIMULATION = """
name = "rivals"
strategy = "fedavg"
rounds = {rounds}
model.name = "benchmarks.rivals.workloads:{model}"
arranger.fraction = {fraction}
training.batch = {batch}
training.lr = {rate}
training.epochs = 1
data.exemplars_per_class = 1

[simulation]
data = "{file}"
devices = {devices}
sites = 1
engine = "pool"
workers = 2

[split]
by = "iid"
"""


def main(name: str, rounds: str, *settings: str) -> None:
    workload, marks = WORKLOADS[name], []
    x, y = data(workload)
    with TemporaryDirectory() as folder, Path(os.devnull).open("w", encoding="utf-8") as nowhere:
        file = Path(folder) / "data.npz"
        tested = np.arange(2 * len(CLASSES))
        np.savez(file, x_train=x, y_train=y, x_test=x[tested], y_test=tested % len(CLASSES), classes=np.array(CLASSES))
        text = SIMULATION.format(
            rounds=WARM + int(rounds),
            model=workload.build.__name__,
            fraction=workload.cohort / workload.users,
            batch=BATCH,
            rate=RATE,
            file=file,
            devices=workload.users,
        )
        running = SimulationRun(read_simulation(text, name, changes({}, list(settings))), Path(folder) / "results")

        def written(record: object) -> None:
            if isinstance(record, RoundClosed):
                marks.append(time.perf_counter())

        running.fleet.nodes[CLOUD].node.on_record(written)
        try:
            show(running.courses(), Console(file=nowhere, force_terminal=True, width=120))
        finally:
            running.close()
    print_rounds(marks, __version__)


if __name__ == "__main__":
    main(*sys.argv[1:])
