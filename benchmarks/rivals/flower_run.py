"""Flower's simulation runtime, in Flower's own venv: ServerApp and ClientApp with FedAvg, actors of one CPU in Ray.

Optimised within Flower's limits: a worker keeps data and model from one user to the next, trains with one thread, and
neither evaluates nor reports. `evaluate_fn` only reads the clock.

python -m benchmarks.rivals.flower_run cnn 5
"""

from __future__ import annotations

import logging
import os
import sys
import time
from functools import cache
from typing import Any

import flwr
import torch
from flwr.app import ArrayRecord, Context, Message, MetricRecord, RecordDict
from flwr.clientapp import ClientApp
from flwr.serverapp import Grid, ServerApp
from flwr.serverapp.strategy import FedAvg
from flwr.simulation import run_simulation

from benchmarks.rivals.plain_loop import train_user
from benchmarks.rivals.workloads import WARM, WORKLOADS, data, print_rounds

WORKLOAD = "RIVALS_WORKLOAD"
"""The environment reaches the actors."""


@cache
def at_hand() -> tuple[Any, Any, Any]:
    """Return module and data, once in each actor."""
    torch.set_num_threads(1)
    workload = WORKLOADS[os.environ[WORKLOAD]]
    x, y = data(workload)
    return workload.build(), torch.from_numpy(x), torch.from_numpy(y)


def train(message: Message, context: Context) -> Message:
    module, x, y = at_hand()
    module.load_state_dict(message.content["arrays"].to_torch_state_dict())
    samples, user = WORKLOADS[os.environ[WORKLOAD]].samples, int(context.node_config["partition-id"])
    rows = slice(user * samples, (user + 1) * samples)
    train_user(module, x[rows], y[rows])
    found = {"arrays": ArrayRecord(module.state_dict()), "metrics": MetricRecord({"num-examples": samples})}
    return Message(content=RecordDict(found), reply_to=message)


def main(name: str, rounds: str) -> None:
    workload, marks = WORKLOADS[name], []
    os.environ[WORKLOAD] = name
    logging.getLogger("flwr").setLevel(logging.ERROR)
    client, server = ClientApp(), ServerApp()
    client.train()(train)

    @server.main()
    def run(grid: Grid, context: Context) -> None:
        del context
        grid.pull_interval = 0.01  # 0.1 by default, with which small rounds would mostly sleep
        share = workload.cohort / workload.users
        strategy = FedAvg(fraction_train=share, fraction_evaluate=0.0, min_available_nodes=workload.users)

        def mark(number: int, _: ArrayRecord) -> None:
            if number:
                marks.append(time.perf_counter())

        strategy.start(
            grid,
            ArrayRecord(workload.build().state_dict()),
            num_rounds=WARM + int(rounds),
            evaluate_fn=mark,
        )

    resources = {"init_args": {"num_cpus": 2, "log_to_driver": False}, "client_resources": {"num_cpus": 1}}
    run_simulation(server, client, workload.users, backend_config=resources)
    print_rounds(marks, f"flwr {flwr.__version__}")


if __name__ == "__main__":
    # Under its own name, so that actors import it instead of unpickling it.
    from benchmarks.rivals import flower_run

    flower_run.main(*sys.argv[1:])
