"""The cost of compiling, a visit and a training step of torchvision's models, all trained or only the head.

Images of 3x64x64, 10 classes, batch 16, one thread, processor time. Each engine has a separate process, and they run
in turns, so that the load affects both. torch trains the same tensors eagerly, with the same frozen ones. A step is one
of the first epoch, which runs the frozen trunk; a later one uses cached features.

python -m benchmarks.torchvision_models [--models resnet18 vit_b_16] [--steps 3] [--turns 3]
"""

from __future__ import annotations

import argparse
import multiprocessing
import os
import statistics
import time
from pathlib import Path
from typing import TYPE_CHECKING, Any, NamedTuple, Self

import numpy as np

from sojourn.errors import ModelError
from sojourn.protocol.envelope import pack_blob
from sojourn.protocol.spec import InputSpec, Kit

if TYPE_CHECKING:
    from collections.abc import Callable
    from multiprocessing.connection import Connection

    from numpy.typing import NDArray

HEADS = {
    "resnet18": "fc.*",
    "mobilenet_v2": "classifier.*",
    "mobilenet_v3_small": "classifier.*",
    "efficientnet_b0": "classifier.*",
    "shufflenet_v2_x0_5": "fc.*",
    "squeezenet1_1": "classifier.*",
    "vgg11_bn": "classifier.6.*",
    "convnext_tiny": "classifier.2.*",
    "vit_b_16": "heads.*",
}
"""The patterns of what is trained where only the head is."""
HEAD_ONLY = {"vgg11_bn", "convnext_tiny", "vit_b_16"}
OPTIONS: dict[str, dict[str, Any]] = {
    name: {"stochastic_depth_prob": 0.0} for name in ("efficientnet_b0", "convnext_tiny")
}
SHAPE, CLASSES, BATCH = (3, 64, 64), tuple(str(n) for n in range(10)), 16
RATE = np.float32(0.01)
# A new process has none of the parent's threads and memory.
SPAWN = multiprocessing.get_context("spawn")
MEGABYTE = 1e6


class TorchvisionCase(NamedTuple):
    """A model, and the pattern of its trained parameters."""

    name: str
    trains: str


class CompiledCase(NamedTuple):
    """A kit, its first vector, and the processor seconds of compiling."""

    kit: Kit
    vector: NDArray[np.float32]
    seconds: float


def main() -> None:
    """Print the table."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--models", nargs="+", default=list(HEADS), choices=list(HEADS))
    parser.add_argument("--trains", nargs="+", default=["all", "head"], choices=["all", "head"])
    parser.add_argument("--steps", type=int, default=3)
    parser.add_argument("--turns", type=int, default=3)
    given = parser.parse_args()
    print(
        "| model | trains | compiling s | kit MB | visit MB each way | step ms | later ms | torch ms | speed "
        "| MB | torch MB |"
    )
    print("|---|---|---|---|---|---|---|---|---|---|---|")
    for name in given.models:
        for what in given.trains:
            if what == "head" or name not in HEAD_ONLY:
                case = TorchvisionCase(name, "*" if what == "all" else HEADS[name])
                print(f"| {name} | {what} | {_measured(case, given.steps, given.turns)} |", flush=True)
    print(f"\nload at the end {os.getloadavg()[0]:.1f}")


def _measured(case: TorchvisionCase, steps: int, turns: int) -> str:
    with _Worker(_compile, case) as compiler:
        compiled = compiler.answer()
    if isinstance(compiled, str):
        return compiled
    with _Worker(_by_onnx, compiled) as here, _Worker(_by_torch, case) as there:
        pairs = [(here.ask(steps), there.ask(steps)) for _ in range(turns)]
        onnx, torch = (1000 * statistics.median(each) for each in zip(*pairs, strict=True))
        later = 1000 * statistics.median(here.ask(-steps) for _ in range(turns))
        memory = here.ask(0), there.ask(0)
    kit, vector = len(pack_blob(compiled.kit)), compiled.vector.nbytes
    ratio = statistics.median(b / a for a, b in pairs)
    return (
        f"{compiled.seconds:.0f} | {kit / MEGABYTE:.1f} | {vector / MEGABYTE:.3f} | {onnx:.0f} | {later:.1f} | "
        f"{torch:.0f} | {ratio:.2f} | {memory[0]:.0f} | {memory[1]:.0f}"
    )


class _Worker:
    """Run N steps on request and return the processor seconds of one; 0 requests the memory.

    A negative number requests steps of later epochs, on cached features.
    """

    def __init__(self, work: Callable[[Any, Connection], None], given: object) -> None:
        self._here, there = SPAWN.Pipe()
        self._process = SPAWN.Process(target=work, args=(given, there))

    def __enter__(self) -> Self:
        self._process.start()
        return self

    def __exit__(self, *_: object) -> None:
        self._here.send(None)
        self._process.join()

    def ask(self, steps: int) -> float:
        self._here.send(steps)
        return float(self._here.recv())

    def answer(self) -> Any:
        return self._here.recv()


def _module(case: TorchvisionCase) -> Any:
    from coordinator.models import build  # noqa: PLC0415  # torch in its own processes only
    from coordinator.models.start_weights import freeze  # noqa: PLC0415

    module = build(f"torchvision:{case.name}", InputSpec(SHAPE), len(CLASSES), OPTIONS.get(case.name, {}), 1)
    freeze(module, [case.trains])
    return module


def _compile(case: TorchvisionCase, out: Connection) -> None:
    import torch  # noqa: PLC0415

    from coordinator.compiling import compile_kit  # noqa: PLC0415
    from coordinator.compiling.frozen_parts import with_shared_weights  # noqa: PLC0415

    torch.set_num_threads(1)
    module = _module(case)
    begin = time.process_time()
    try:
        compiled = compile_kit(module, InputSpec(SHAPE), CLASSES, mean=[0.5], std=[0.3], seed=1, batch=BATCH)
    except ModelError as error:
        out.send(f"{error}")
        return
    seconds = time.process_time() - begin
    out.send(CompiledCase(with_shared_weights(compiled.kit, module), compiled.initial, seconds))


def _samples() -> tuple[NDArray[np.float32], NDArray[np.int64]]:
    draw = np.random.default_rng(1)
    return draw.random((BATCH, *SHAPE), np.float32), draw.integers(0, len(CLASSES), BATCH)


def _by_onnx(compiled: CompiledCase, out: Connection) -> None:
    from sojourn.model.graphs import Graphs  # noqa: PLC0415
    from sojourn.randomness import noise  # noqa: PLC0415

    kit, vector = compiled.kit, compiled.vector.copy()
    graphs, (x, y) = Graphs(kit), _samples()

    kept = graphs.features(x)

    def step(number: int, *, later: bool) -> None:
        taken = kept if later else graphs.features(x)
        _, gradient, state = graphs.loss_gradient_and_state(vector, taken, y, noise(1, number, BATCH, kit.noise))
        vector[: len(gradient)] -= RATE * gradient
        vector[len(gradient) :] = state

    _serve(step, out)


def _by_torch(case: TorchvisionCase, out: Connection) -> None:
    import torch  # noqa: PLC0415

    torch.set_num_threads(1)
    module, (x, y) = _module(case), map(torch.from_numpy, _samples())
    module.train()
    for layer in module.modules():
        own = list(layer.parameters(recurse=False))
        if isinstance(layer, torch.nn.BatchNorm2d) and not any(each.requires_grad for each in own):
            layer.eval()
    optimiser = torch.optim.SGD([each for each in module.parameters() if each.requires_grad], lr=float(RATE))

    def step(_number: int, *, later: bool) -> None:  # noqa: ARG001
        optimiser.zero_grad()
        torch.nn.functional.cross_entropy(module((x - 0.5) / 0.3), y).backward()
        optimiser.step()

    _serve(step, out)


def _serve(step: Callable[..., None], asked: Connection) -> None:
    step(0, later=False)
    while (steps := asked.recv()) is not None:
        if not steps:
            asked.send(_peak())
            continue
        begin = time.process_time()
        for number in range(abs(steps)):
            step(number, later=steps < 0)
        asked.send((time.process_time() - begin) / abs(steps))


def _peak() -> float:
    """Return the peak memory of this process in MB. Not ru_maxrss, which starts with the parent's value."""
    line = next(each for each in Path("/proc/self/status").read_text().splitlines() if each.startswith("VmHWM"))
    return int(line.split()[1]) * 1024 / MEGABYTE


if __name__ == "__main__":
    main()
