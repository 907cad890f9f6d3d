"""Which engine trains: as a person asks, or by what the machine has; with a sentence that says why."""

from __future__ import annotations

import os
from dataclasses import dataclass
from typing import TYPE_CHECKING, Literal

from fleet_sim.engines.process_pool import ProcessPoolEngine
from fleet_sim.engines.serial import SerialEngine
from sojourn import extras
from sojourn.errors import ConfigError

if TYPE_CHECKING:
    from fleet_sim.engines.engine import Engine, Network, Shards

EngineName = Literal["auto", "serial", "pool", "batched", "ray"]
TrainerName = Literal["onnx", "torch"]
SMALL = 100_000
"""Numbers of a model up to which many at once are faster on a CPU too: their steps cost less than torch's calls."""


@dataclass(frozen=True)
class Hardware:
    """What there is to train on."""

    cores: int
    gpus: tuple[str, ...] = ()
    cluster: str = ""
    """The cluster of Ray that the environment names."""

    def __str__(self) -> str:
        cores = f"{self.cores} CPU core{'s' if self.cores > 1 else ''}"
        return f"{cores} and {', '.join(self.gpus)}" if self.gpus else f"{cores} and no GPU that torch can use"


@dataclass(frozen=True)
class Choice:
    """An engine by its name, where it runs, and why it is this one."""

    engine: Literal["serial", "pool", "torch", "batched", "ray"]
    device: str
    workers: int
    why: str


def choose(
    shards: Shards,
    *,
    engine: EngineName = "auto",
    trainer: TrainerName = "onnx",
    device: str = "auto",
    workers: int = 0,
    network: Network | None = None,
    ray: str = "",
) -> tuple[Engine, str]:
    """The engine and the sentence. Torch needs the `network`; `ray` is the address of a cluster.

    device: auto, cpu, cuda, one of several (`cuda:1`), or mps.
    """
    asked = trainer == "torch" or device not in {"auto", "cpu"}
    has = hardware(gpus=asked)
    made = pick(engine, trainer, device, workers, network.size if network else 0, has, ray)
    if made.engine == "ray":
        extras.need("ray", "the Ray engine")
        from fleet_sim.engines.ray_engine import RayEngine  # noqa: PLC0415  # ray takes seconds, and is an extra

        cluster = RayEngine(shards, has.cores, made.workers, ray)
        return cluster, f"{made.why}: {cluster.where}"
    if made.engine in {"torch", "batched"}:
        if network is None:
            raise ConfigError("to train with torch takes the torch module that the model was compiled from")
        from fleet_sim.engines.batched import BatchedEngine  # noqa: PLC0415  # torch takes seconds and 280 MB
        from fleet_sim.engines.torch_graphs import TorchEngine  # noqa: PLC0415

        kind = BatchedEngine if made.engine == "batched" else TorchEngine
        return kind(shards, network, made.device), made.why
    return (ProcessPoolEngine(shards, made.workers) if made.engine == "pool" else SerialEngine(shards)), made.why


def hardware(*, gpus: bool) -> Hardware:
    """What this machine has; it is only asked for its GPUs where that matters, for torch knows them."""
    cores = len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count() or 1
    cluster = os.environ.get("RAY_ADDRESS", "")
    if not gpus:
        return Hardware(cores, cluster=cluster)
    import torch  # noqa: PLC0415

    cards = tuple(f"cuda:{number}" for number in range(torch.cuda.device_count()))
    return Hardware(cores, (*cards, *(("mps",) if torch.backends.mps.is_available() else ())), cluster)


def pick(
    engine: EngineName, trainer: TrainerName, device: str, workers: int, size: int, has: Hardware, ray: str = ""
) -> Choice:
    """What to use for a model of `size` numbers; ConfigError where the wishes contradict each other or the machine.

    A cluster that the settings name is used. One that only the environment names is not: it may be there for another
    program, and a data set does not go to other machines unless somebody says so.
    """
    if engine == "auto" and ray:
        engine = "ray"
    if device == "cuda" and "cuda:0" in has.gpus:
        device = "cuda:0"
    if device not in {"auto", "cpu", *has.gpus}:
        instead = " or ".join(repr(each) for each in (*has.gpus, "cpu"))
        raise ConfigError(f"device = {device!r} is not there: this machine has {has}. Take {instead}")
    if trainer == "torch":
        return _by_torch(engine, device, size, has)
    if device not in {"auto", "cpu"}:
        raise ConfigError(f"the devices' own trainer (onnx) runs on the CPU: for {device!r} say trainer = 'torch'")
    if engine == "batched":
        raise ConfigError("the batched engine trains with torch: say trainer = 'torch', or take another engine")
    return _by_onnx(engine, workers, has)


def _by_torch(engine: EngineName, device: str, size: int, has: Hardware) -> Choice:
    if engine in {"pool", "ray"}:
        raise ConfigError(f"{engine} runs the devices' own trainer: say trainer = 'onnx', or engine = 'batched'")
    place = (has.gpus[0] if has.gpus else "cpu") if device == "auto" else device
    if engine == "batched":
        return Choice("batched", place, 1, f"batched on {place}, as asked for")
    if engine == "serial":
        return Choice("torch", place, 1, f"torch on {place}, one visit after another, as asked for")
    if place != "cpu":
        return Choice("batched", place, 1, f"batched on {place}: many small models at once keep a GPU busy")
    if size <= SMALL:
        return Choice("batched", place, 1, f"batched on cpu: a model of {size:,} numbers is small enough for it to pay")
    why = f"torch on cpu, one visit after another: with {size:,} numbers many at once gain nothing without a GPU"
    return Choice("torch", place, 1, why)


def _by_onnx(engine: EngineName, workers: int, has: Hardware) -> Choice:
    count = workers or has.cores
    if engine == "ray":
        return Choice("ray", "cpu", workers, "ray, as asked for")
    if engine == "pool":
        return Choice("pool", "cpu", count, f"pool of {count}, as asked for")
    if engine == "serial":
        return Choice("serial", "cpu", 1, "serial, as asked for")
    if count == 1:
        return Choice("serial", "cpu", 1, "serial: there is one core to train on")
    why = f"pool of {count}: one process for each core, with the devices' own trainer"
    hint = f" (RAY_ADDRESS names a cluster at {has.cluster}, which --engine ray would use)" if has.cluster else ""
    return Choice("pool", "cpu", count, why + hint)
