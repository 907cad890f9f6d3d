"""A plain loop over users in each of a few processes, without a framework.

python -m benchmarks.rivals.plain_loop cnn 5
"""

from __future__ import annotations

import multiprocessing
import sys
import time
from typing import TYPE_CHECKING, Any

import numpy as np
import torch
from torch.nn import functional

from benchmarks.rivals.workloads import BATCH, RATE, WARM, WORKLOADS, data, print_rounds

if TYPE_CHECKING:
    from multiprocessing.connection import Connection

    from torch import nn

SPAWN = multiprocessing.get_context("spawn")


class PlainLoop:
    """Only a round's sums are sent."""

    def __init__(self, name: str, processes: int) -> None:
        self._ends = []
        self._model: Any = None
        for _ in range(processes):
            end, far = SPAWN.Pipe()
            SPAWN.Process(target=plain_worker, args=(far, name), daemon=True).start()
            self._ends.append(end)

    def round(self, users: list[int]) -> None:
        """Send each process its part of the users, and compute the mean."""
        for at, end in enumerate(self._ends):
            end.send((self._model, users[at :: len(self._ends)]))
        sums = [end.recv() for end in self._ends]
        self._model = [sum(parts) / len(users) for parts in zip(*sums, strict=True)]

    def close(self) -> None:
        for end in self._ends:
            end.send(None)


def plain_worker(turns: Connection, name: str) -> None:
    """Train all users and return the sums of their tensors."""
    torch.set_num_threads(1)
    workload = WORKLOADS[name]
    torch.manual_seed(1)
    module = workload.build()
    images, labels = data(workload)
    x, y = torch.from_numpy(images), torch.from_numpy(labels)
    start = [parameter.detach().clone() for parameter in module.parameters()]
    while (turn := turns.recv()) is not None:
        model, users = turn
        start = [torch.from_numpy(part) for part in model] if model else start
        total = [torch.zeros_like(part) for part in start]
        for user in users:
            with torch.no_grad():
                for parameter, part in zip(module.parameters(), start, strict=True):
                    parameter.copy_(part)
            rows = slice(user * workload.samples, (user + 1) * workload.samples)
            train_user(module, x[rows], y[rows])
            torch._foreach_add_(total, [parameter.detach() for parameter in module.parameters()])
        turns.send([part.numpy() for part in total])


def train_user(module: nn.Module, x: Any, y: Any) -> None:
    """Train an epoch in a new order."""
    optimiser = torch.optim.SGD(module.parameters(), lr=RATE)
    for index in torch.randperm(len(y)).split(BATCH):
        optimiser.zero_grad()
        functional.cross_entropy(module(x[index].float()), y[index]).backward()
        optimiser.step()


def main(name: str, rounds: str) -> None:
    workload, loop, marks = WORKLOADS[name], PlainLoop(name, 2), []
    draw = np.random.default_rng(1)
    for _ in range(WARM + int(rounds)):
        loop.round(draw.choice(workload.users, workload.cohort, replace=False).tolist())
        marks.append(time.perf_counter())
    loop.close()
    print_rounds(marks, f"torch {torch.__version__}")


if __name__ == "__main__":
    main(*sys.argv[1:])
