"""Recurrent layers: CPU seconds to compile one, operators of its graph, and its steps compared with torch eager.

Steps are whole SGD steps, batch 32, one thread; both engines run in turns in one process, measured by CPU time.

python -m benchmarks.recurrence [--layers GRU LSTM] [--steps 50 500] [--turns 10]
"""

from __future__ import annotations

import argparse
import os
import statistics
import time
from typing import TYPE_CHECKING

import numpy as np
import onnx
import torch
from torch import Tensor, nn
from torch.nn import functional

from coordinator.compiling import compile_kit
from sojourn.model.graphs import Graphs
from sojourn.protocol.spec import InputSpec

if TYPE_CHECKING:
    from collections.abc import Callable

    from coordinator.compiling import Compiled

FEATURES, WIDTH, BATCH = 16, 64, 32
CLASSES = tuple(str(n) for n in range(10))
RATE = 0.05
SECONDS = 0.5
"""Of the processor, that a turn takes at least."""


class Recurrent(nn.Module):
    """A recurrent layer, its last output, and a linear layer."""

    def __init__(self, layer: str) -> None:
        super().__init__()
        self.layer: nn.RNNBase = getattr(nn, layer)(FEATURES, WIDTH, batch_first=True)
        self.head = nn.Linear(WIDTH, len(CLASSES))

    def forward(self, x: Tensor) -> Tensor:
        """Return the logits."""
        outputs, _ = self.layer(x)
        logits: Tensor = self.head(outputs[:, -1])
        return logits


def main() -> None:
    """Print a row for each layer and length."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--layers", nargs="+", default=["GRU", "LSTM"], choices=["RNN", "GRU", "LSTM"])
    parser.add_argument("--steps", nargs="+", type=int, default=[50, 500])
    parser.add_argument("--turns", type=int, default=10)
    given = parser.parse_args()
    torch.set_num_threads(1)
    print("layer  steps  compile s  operators  torch ms   onnx ms  speed of torch   load")
    for layer in given.layers:
        for steps in given.steps:
            print(row(layer, steps, given.turns))


def row(layer: str, steps: int, turns: int) -> str:
    """Return one line of the table."""
    load = os.getloadavg()[0]
    torch.manual_seed(0)
    module = Recurrent(layer)
    begun = time.process_time()
    made = compile_kit(module, InputSpec((steps, FEATURES)), CLASSES, mean=None, std=None, seed=1)
    compiling = time.process_time() - begun
    draw = np.random.default_rng(0)
    x = draw.standard_normal((BATCH, steps, FEATURES), dtype=np.float32)
    y = draw.integers(0, len(CLASSES), BATCH)
    engines = by_torch(module, x, y), by_graph(made, x, y)
    pairs = [[turn(step) for step in engines] for _ in range(turns + 1)][1:]
    eager, graph = (1000 * statistics.median(each) for each in zip(*pairs, strict=True))
    ratio = statistics.median(first / second for first, second in pairs)
    operators = len(onnx.load_from_string(made.kit.train).graph.node)
    return f"{layer:5} {steps:6} {compiling:10.1f} {operators:10} {eager:9.2f} {graph:9.2f} {ratio:15.2f} {load:6.1f}"


def by_torch(module: nn.Module, x: np.ndarray, y: np.ndarray) -> Callable[[], None]:
    """Run a plain step in torch."""
    samples, labels = torch.from_numpy(x), torch.from_numpy(y)
    optimiser = torch.optim.SGD(module.train().parameters(), lr=RATE)

    def step() -> None:
        optimiser.zero_grad()
        functional.cross_entropy(module(samples), labels).backward()
        optimiser.step()

    return step


def by_graph(made: Compiled, x: np.ndarray, y: np.ndarray) -> Callable[[], None]:
    """Run a step like a device."""
    graphs, vector = Graphs(made.kit), made.initial.copy()

    def step() -> None:
        _, gradient = graphs.loss_and_gradient(vector, x, y)
        np.subtract(vector, np.float32(RATE) * gradient, out=vector)

    return step


def turn(step: Callable[[], None]) -> float:
    """Return the CPU seconds of a step."""
    begun, steps = time.process_time(), 0
    while (taken := time.process_time() - begun) < SECONDS:
        step()
        steps += 1
    return taken / steps


if __name__ == "__main__":
    main()
