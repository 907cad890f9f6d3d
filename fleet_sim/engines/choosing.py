"""Chooses the training engine by the user's settings or the machine's hardware, and explains the choice."""

from __future__ import annotations

import os
from dataclasses import dataclass
from typing import TYPE_CHECKING, Literal

from fleet_sim.engines.process_pool import ProcessPoolEngine
from fleet_sim.engines.serial import SerialEngine
from sojourn import errors
from sojourn.errors import ConfigError

if TYPE_CHECKING:
    from fleet_sim.engines.engine import Engine, Network, Shards

EngineName = Literal["auto", "serial", "pool", "batched", "ray"]
TrainerName = Literal["onnx", "torch"]
SMALL = 100_000
"""Up to this many parameters, the batched engine is faster on a CPU, too: its steps cost less than torch's calls."""


@dataclass(frozen=True)
class Hardware:
    """The hardware available for training."""

    cores: int
    gpus: tuple[str, ...] = ()
    cluster: str = ""
    """The Ray cluster named in the environment."""

    def __str__(self) -> str:
        cores = f"{self.cores} CPU core{'s' if self.cores > 1 else ''}"
        return f"{cores} and {', '.join(self.gpus)}" if self.gpus else f"{cores} and no GPU usable by torch"


@dataclass(frozen=True)
class Choice:
    """The name of an engine, its device, and the reason for the choice."""

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
    """Return the engine and the reason for choosing it. Torch needs the `network`; `ray` is a cluster's address.

    device: auto, cpu, cuda, one of several (`cuda:1`), or mps.
    """
    asked = trainer == "torch" or device not in {"auto", "cpu"}
    has = hardware(gpus=asked)
    made = pick(engine, trainer, device, workers, network.size if network else 0, has, ray)
    if made.engine == "ray":
        errors.require_extra("ray", "the Ray engine")
        from fleet_sim.engines.ray_engine import RayEngine  # noqa: PLC0415  # slow and optional

        cluster = RayEngine(shards, has.cores, made.workers, ray)
        return cluster, f"{made.why}: {cluster.where}"
    if made.engine in {"torch", "batched"}:
        if network is None:
            raise ConfigError("training with torch needs the torch module that the model was compiled from")
        from fleet_sim.engines.batched import BatchedEngine  # noqa: PLC0415  # importing torch takes seconds and 280 MB
        from fleet_sim.engines.torch_graphs import TorchEngine  # noqa: PLC0415

        kind = BatchedEngine if made.engine == "batched" else TorchEngine
        return kind(shards, network, made.device), made.why
    return (ProcessPoolEngine(shards, made.workers) if made.engine == "pool" else SerialEngine(shards)), made.why


def hardware(*, gpus: bool) -> Hardware:
    """Return this machine's hardware; GPUs are looked up only if needed, because that imports torch."""
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
    """Choose the engine for a model of `size` parameters; raise ConfigError if the settings are contradictory.

    A cluster named in the settings is used. One that only the environment names is not, because it may belong to
    another program, and the data set must not leave the machine without an explicit setting.
    """
    if engine == "auto" and ray:
        engine = "ray"
    if device == "cuda" and "cuda:0" in has.gpus:
        device = "cuda:0"
    if device not in {"auto", "cpu", *has.gpus}:
        instead = " or ".join(repr(each) for each in (*has.gpus, "cpu"))
        raise ConfigError(f"device = {device!r} is not available: this machine has {has}. Use {instead}")
    if trainer == "torch":
        return _by_torch(engine, device, size, has)
    if device not in {"auto", "cpu"}:
        raise ConfigError(f"the devices' own trainer (onnx) runs on the CPU: for {device!r}, set trainer = 'torch'")
    if engine == "batched":
        raise ConfigError("the batched engine trains with torch: set trainer = 'torch', or use another engine")
    return _by_onnx(engine, workers, has)


def _by_torch(engine: EngineName, device: str, size: int, has: Hardware) -> Choice:
    if engine in {"pool", "ray"}:
        raise ConfigError(f"{engine} runs the devices' own trainer: set trainer = 'onnx', or engine = 'batched'")
    place = (has.gpus[0] if has.gpus else "cpu") if device == "auto" else device
    if engine == "batched":
        return Choice("batched", place, 1, f"batched on {place}, as configured")
    if engine == "serial":
        return Choice("torch", place, 1, f"torch on {place}, one visit after another, as configured")
    if place != "cpu":
        return Choice("batched", place, 1, f"batched on {place}: many small models at once keep a GPU busy")
    if size <= SMALL:
        return Choice(
            "batched", place, 1, f"batched on cpu: with {size:,} parameters, the model is small enough to benefit"
        )
    why = f"torch on cpu, one visit after another: with {size:,} parameters, batching gains nothing without a GPU"
    return Choice("torch", place, 1, why)


def _by_onnx(engine: EngineName, workers: int, has: Hardware) -> Choice:
    count = workers or has.cores
    if engine == "ray":
        return Choice("ray", "cpu", workers, "ray, as configured")
    if engine == "pool":
        return Choice("pool", "cpu", count, f"pool of {count}, as configured")
    if engine == "serial":
        return Choice("serial", "cpu", 1, "serial, as configured")
    if count == 1:
        return Choice("serial", "cpu", 1, "serial: there is only one core")
    why = f"pool of {count}: one process per core, with the devices' own trainer"
    hint = f" (RAY_ADDRESS names a cluster at {has.cluster}, which --engine ray would use)" if has.cluster else ""
    return Choice("pool", "cpu", count, why + hint)
