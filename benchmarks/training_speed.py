"""How fast a kit trains on onnxruntime beside torch eager: whole SGD steps, batch 32, the same threads."""

from __future__ import annotations

import argparse
import statistics
import time
from typing import TYPE_CHECKING

import numpy as np
import torch
from torch.nn import functional

from coordinator.compiling import compile_kit
from coordinator.models import build
from sojourn.graphs import Graphs
from sojourn.spec import InputSpec

if TYPE_CHECKING:
    from collections.abc import Callable

    from sojourn.spec import Kit

MODELS = {"cnn": (1, 28, 28), "resnet8": (3, 32, 32)}
CLASSES = tuple(str(n) for n in range(10))
BATCH = 32
RATE = np.float32(0.05)


def main() -> None:
    """Print the table."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--repeats", type=int, default=15)
    parser.add_argument("--models", nargs="+", default=list(MODELS), choices=list(MODELS))
    arguments = parser.parse_args()
    print(f"{'model':10} {'threads':>7} {'torch ms':>9} {'onnx ms':>9} {'speed of torch':>15}")
    for name in arguments.models:
        spec = InputSpec(MODELS[name])
        module = build(name, spec, len(CLASSES), {}, seed=1)
        compiled = compile_kit(module, spec, CLASSES, mean=None, std=None, seed=1)
        for threads in (1, 2):
            torch.set_num_threads(threads)
            engines = (torch_step(module, spec), graph_step(compiled.kit, compiled.initial.copy(), threads))
            by_torch, by_graph = alternate(engines, arguments.repeats)
            print(f"{name:10} {threads:7} {by_torch:9.2f} {by_graph:9.2f} {by_torch / by_graph:15.2f}")


def torch_step(module: torch.nn.Module, spec: InputSpec) -> Callable[[], None]:
    """One step of SGD as anyone would write it in torch."""
    draw = np.random.default_rng(0)
    x = torch.from_numpy(draw.standard_normal((BATCH, *spec.shape), dtype=np.float32))
    y = torch.from_numpy(draw.integers(0, len(CLASSES), BATCH))
    optimiser = torch.optim.SGD(module.parameters(), lr=float(RATE))
    module.train()

    def step() -> None:
        optimiser.zero_grad()
        functional.cross_entropy(module(x), y).backward()
        optimiser.step()

    return step


def graph_step(kit: Kit, vector: np.ndarray, threads: int) -> Callable[[], None]:
    """One step of SGD as a device does it."""
    draw = np.random.default_rng(0)
    x = draw.standard_normal((BATCH, *kit.input.shape), dtype=np.float32)
    y = draw.integers(0, len(CLASSES), BATCH)
    graphs = Graphs(kit, threads)

    def step() -> None:
        _, gradient = graphs.loss_and_gradient(vector, x, y)
        np.subtract(vector, RATE * gradient, out=vector)

    return step


def alternate(engines: tuple[Callable[[], None], Callable[[], None]], repeats: int) -> tuple[float, float]:
    """The median milliseconds of a step on either engine, measured in turns so that both see the same machine."""
    for step in engines:
        for _ in range(5):
            step()
    times: tuple[list[float], list[float]] = ([], [])
    for _ in range(repeats):
        for step, taken in zip(engines, times, strict=True):
            start = time.perf_counter()
            for _ in range(8):
                step()
            taken.append((time.perf_counter() - start) / 8)
    return 1000 * statistics.median(times[0]), 1000 * statistics.median(times[1])


if __name__ == "__main__":
    main()
