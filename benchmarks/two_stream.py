"""A step with a second stream, compared with two plain forward passes and one backward in onnxruntime.

The plain measure is a step of the training graph (a pass forward and one back) and a pass of the prediction graph, on
the same batch, in turns with the step of the two-stream graph, measured by CPU time with one thread. MOON has two
frozen models, so its plain measure has two passes of the prediction graph.

python -m benchmarks.two_stream [--turns 40] [--all]
"""

from __future__ import annotations

import argparse
import os
import statistics
import time
from typing import TYPE_CHECKING, NamedTuple

import numpy as np
import torch

from coordinator.compiling import Compiled, compile_kit
from coordinator.compiling.extra_layers import enlarged
from coordinator.models import build
from sojourn.model.graphs import Graphs, Streams
from sojourn.parts import FeatureMatch, Fusion, Mmd, Moon, TwoStreamPart, name_of
from sojourn.protocol.spec import InputSpec

if TYPE_CHECKING:
    from collections.abc import Callable

CLASSES = tuple(str(n) for n in range(10))
DIGITS, CIFAR = InputSpec((1, 8, 8)), InputSpec((3, 32, 32))
AT_LEAST = 0.02
"""Seconds that one turn of one measure takes, so that the clock's steps do not matter."""


class Case(NamedTuple):
    """A model by its name, its input, and its batches."""

    model: str
    input: InputSpec
    batches: tuple[int, ...]


CASES = (Case("mlp", DIGITS, (16, 32)), Case("cnn", DIGITS, (32, 64)), Case("cnn", CIFAR, (32, 128)))
OBJECTIVES: tuple[TwoStreamPart, ...] = (Mmd(),)
OTHERS: tuple[TwoStreamPart, ...] = (
    Mmd(layer="penultimate"),
    Mmd(distance="mmd-relative"),
    Mmd(distance="l2"),
    FeatureMatch(),
    Moon(),
    Fusion(),
)


def main() -> None:
    """Print the results."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--turns", type=int, default=40)
    parser.add_argument("--all", action="store_true", help="other objectives, too")
    arguments = parser.parse_args()
    torch.manual_seed(1)
    print(f"load {os.getloadavg()[0]:.1f}; to reach: a ratio of 1.2 at most with mmd on logits")
    for case in CASES:
        for objective in (*OBJECTIVES, *(OTHERS if arguments.all else ())):
            module = enlarged(build(case.model, case.input, len(CLASSES), {}, 1), objective, case.input, 1)
            made = compile_kit(module, case.input, CLASSES, mean=None, std=None, seed=1, objective=objective.compiled)
            for batch in case.batches:
                measure(case, objective, made, batch, arguments.turns)
    print(f"load {os.getloadavg()[0]:.1f}")


def measure(case: Case, objective: TwoStreamPart, made: Compiled, batch: int, turns: int) -> None:
    """Run both in turns and print the median of each and of their ratios."""
    graphs, draw = Graphs(made.kit), np.random.default_rng(1)
    x = draw.standard_normal((batch, *case.input.shape), dtype=np.float32)
    y = draw.integers(0, len(CLASSES), batch)
    w = made.initial * np.float32(1.01)
    streams = Streams([made.initial] * len(objective.anchors), objective.scalars)

    def plain() -> None:
        graphs.loss_and_gradient(w, x, y)
        for _ in objective.anchors:
            graphs.outputs(w, x)

    def both() -> None:
        graphs.loss_and_gradient(w, x, y, streams=streams)

    def alone() -> None:
        graphs.loss_and_gradient(w, x, y)

    repeats = [max(1, round(AT_LEAST / seconds_of(each, 3))) for each in (plain, both, alone)]
    taken = [
        [seconds_of(each, often) for each, often in zip((plain, both, alone), repeats, strict=True)]
        for _ in range(turns)
    ]
    first, second, step = (statistics.median(each) * 1e3 for each in zip(*taken, strict=True))
    ratio = statistics.median(one[1] / one[0] for one in taken)
    options = [
        name_of(objective),
        *(getattr(objective, key) for key in ("distance", "layer") if hasattr(objective, key)),
    ]
    print(
        f"{case.model} {case.input.shape}, {made.kit.model.size:,} numbers, batch {batch:3}; {' '.join(options)}: "
        f"{second:.3f} ms, plain passes {first:.3f} ms, ratio {ratio:.3f}; FedAvg's step {step:.3f} ms"
    )


def seconds_of(what: Callable[[], None], often: int) -> float:
    """Return the CPU seconds of one of N calls."""
    began = time.process_time()
    for _ in range(often):
        what()
    return (time.process_time() - began) / often


if __name__ == "__main__":
    main()
