"""Training speed of a kit on onnxruntime relative to torch eager: whole SGD steps with the same threads.

Batches of 32, and of 16 for resnet18, which is torchvision's with its BatchNorm. `quantities` is an mlp of two hidden
layers with 64 units that predicts two quantities from 16 numbers (mse, targets scaled).

Each engine has a separate process, as on a device, and they run in turns, so that the load affects both.

python -m benchmarks.training_speed [--models cnn resnet8 resnet18 quantities] [--threads 1 2] [--blocks 10]
"""

from __future__ import annotations

import argparse
import multiprocessing
import os
import statistics
import time
from concurrent.futures import ProcessPoolExecutor
from itertools import pairwise
from pathlib import Path
from typing import TYPE_CHECKING, Any, NamedTuple

import numpy as np

from sojourn.model.graphs import Graphs
from sojourn.protocol.spec import InputSpec
from sojourn.protocol.task import Strata, Target, TaskSpec

if TYPE_CHECKING:
    from collections.abc import Callable
    from multiprocessing.connection import Connection

    from numpy.typing import NDArray

    from sojourn.protocol.spec import Kit

MODELS = {"cnn": (1, 28, 28), "resnet8": (3, 32, 32), "resnet18": (3, 64, 64), "quantities": (16,)}
QUANTITIES = "quantities"
MEAN, STD = (20.0, 1000.0), (4.0, 250.0)
"""Of the quantities."""
CLASSES = tuple(str(n) for n in range(10))
BATCHES = {"resnet18": 16}
BATCH = 32
RATE = np.float32(0.05)
SECONDS = 1.0
# After a turn threads may spin for a while; the other engine waits until they sleep.
PAUSE = 0.2
# A new process has none of the parent's threads and memory.
SPAWN = multiprocessing.get_context("spawn")


class TrainingCase(NamedTuple):
    """The input of both engines."""

    kit: Kit
    vector: NDArray[np.float32]
    model: str
    threads: int


class SpeedComparison(NamedTuple):
    """Milliseconds of a step, torch's over onnxruntime's, and the peak memory of onnxruntime's process in MB."""

    torch_ms: float
    onnx_ms: float
    ratio: float
    peak: float


def main() -> None:
    """Print the table."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--models", nargs="+", default=list(MODELS), choices=list(MODELS))
    parser.add_argument("--threads", nargs="+", type=int, default=[1, 2])
    parser.add_argument("--blocks", type=int, default=10)
    arguments = parser.parse_args()
    print("model      threads  torch ms   onnx ms  speed of torch  onnx MB   load")
    for model in arguments.models:
        with ProcessPoolExecutor(1, mp_context=SPAWN) as compiler:
            kit, vector = compiler.submit(compiled, model).result()
        for threads in arguments.threads:
            load = os.getloadavg()[0]
            torch_ms, onnx_ms, ratio, peak = compare(TrainingCase(kit, vector, model, threads), arguments.blocks)
            print(f"{model:10} {threads:7} {torch_ms:9.2f} {onnx_ms:9.2f} {ratio:15.2f} {peak:8.1f} {load:6.1f}")


def compiled(model: str) -> tuple[Kit, NDArray[np.float32]]:
    """Return the model's kit and first vector."""
    from coordinator.compiling import compile_kit  # noqa: PLC0415 - only where torch belongs

    spec = InputSpec(MODELS[model])
    module = built(model, spec)
    if model == QUANTITIES:
        from coordinator.compiling.losses import learning_of  # noqa: PLC0415

        task = TaskSpec("regression", (2,), Target((2,)), Strata(1), loss="mse")
        made = compile_kit(module, spec, (), mean=None, std=None, seed=1, learning=learning_of(task, MEAN, STD))
    else:
        made = compile_kit(module, spec, CLASSES, mean=None, std=None, seed=1)
    return made.kit, made.initial


def built(model: str, spec: InputSpec) -> Any:
    """Return the torch module: a built-in one, or torchvision's."""
    import torch  # noqa: PLC0415 - only where torch belongs

    from coordinator.models import build  # noqa: PLC0415
    from coordinator.models.torchvision_models import make_torchvision_importable  # noqa: PLC0415

    if model == QUANTITIES:
        return build("mlp", spec, len(MEAN), {"hidden": [64, 64]}, seed=1)
    if model != "resnet18":
        return build(model, spec, len(CLASSES), {}, seed=1)
    make_torchvision_importable()
    from torchvision.models import resnet18  # noqa: PLC0415

    torch.manual_seed(1)
    return resnet18(num_classes=len(CLASSES))


def compare(case: TrainingCase, blocks: int) -> SpeedComparison:
    """Run both engines in turns; the median step of every turn counts."""
    ends = [start(engine, case) for engine in (torch_step, graph_step)]
    times = []
    for _ in range(blocks):
        pair = []
        for end in ends:
            time.sleep(PAUSE)
            end.send(SECONDS)
            pair.append(statistics.median(end.recv()))
        times.append(pair)
    peaks = []
    for end in ends:
        end.send(None)
        peaks.append(end.recv())
    by_torch, by_graph = (1000 * statistics.median(taken) for taken in zip(*times, strict=True))
    # From adjacent turns: between them the load changes least.
    ratio = statistics.median(first / second for first, second in times)
    return SpeedComparison(by_torch, by_graph, ratio, peaks[1])


def start(engine: Callable[[TrainingCase], Callable[[], None]], case: TrainingCase) -> Connection:
    """The parent's end of a warmed-up process that waits for its turns."""
    end, far = SPAWN.Pipe()
    SPAWN.Process(target=work, args=(far, engine, case), daemon=True).start()
    end.recv()
    return end


def work(turns: Connection, engine: Callable[[TrainingCase], Callable[[], None]], case: TrainingCase) -> None:
    """Run steps during each turn and send the time of every step; at the end, the peak memory."""
    step = engine(case)
    turn(step, SECONDS)
    turns.send(None)
    while (seconds := turns.recv()) is not None:
        turns.send(turn(step, seconds))
    status = Path("/proc/self/status").read_text()
    turns.send(int(status.partition("VmHWM:")[2].split()[0]) / 1e3)


def turn(step: Callable[[], None], seconds: float) -> list[float]:
    """Return the time of each step, for `seconds`."""
    times = [time.perf_counter()]
    while times[-1] < times[0] + seconds:
        step()
        times.append(time.perf_counter())
    return [end - begin for begin, end in pairwise(times)]


def torch_step(case: TrainingCase) -> Callable[[], None]:
    """Run one plain SGD step in torch."""
    import torch  # noqa: PLC0415 - only where torch belongs
    from torch.nn import functional  # noqa: PLC0415

    torch.set_num_threads(case.threads)
    module = built(case.model, case.kit.input)
    images, labels = batch(case.kit.input, case.model)
    x, y = torch.from_numpy(images), torch.from_numpy(labels)
    optimiser = torch.optim.SGD(module.parameters(), lr=float(RATE))
    module.train()
    mean, std = torch.tensor(MEAN), torch.tensor(STD)

    def loss() -> torch.Tensor:
        if case.model == QUANTITIES:
            return functional.mse_loss(module(x), (y - mean) / std)
        return functional.cross_entropy(module(x), y)

    def step() -> None:
        optimiser.zero_grad()
        loss().backward()
        optimiser.step()

    return step


def graph_step(case: TrainingCase) -> Callable[[], None]:
    """Run one SGD step like a device."""
    x, y = batch(case.kit.input, case.model)
    graphs = Graphs(case.kit, case.threads)
    vector, at = case.vector.copy(), case.kit.model.trainable_size
    trained = vector[:at]

    def step() -> None:
        _, gradient, vector[at:] = graphs.loss_gradient_and_state(vector, x, y)
        np.subtract(trained, RATE * gradient, out=trained)

    return step


def batch(spec: InputSpec, model: str) -> tuple[NDArray[np.float32], NDArray[Any]]:
    """Return the batch of every step."""
    draw, size = np.random.default_rng(0), BATCHES.get(model, BATCH)
    x = draw.standard_normal((size, *spec.shape), dtype=np.float32)
    if model == QUANTITIES:
        return x, (draw.standard_normal((size, 2)) * STD + MEAN).astype(np.float32)
    return x, draw.integers(0, len(CLASSES), size)


if __name__ == "__main__":
    main()
