"""The choice of an engine and its explanation."""

from __future__ import annotations

from typing import Any

import pytest

from fleet_sim.engines import ProcessPoolEngine, SerialEngine, choose
from fleet_sim.engines.batched import BatchedEngine
from fleet_sim.engines.choosing import Hardware, hardware, pick
from fleet_sim.engines.torch_graphs import TorchEngine
from fleet_sim.settings import read_simulation
from sojourn.errors import ConfigError
from tests.edge_agent.training.kits import compiled
from tests.fleet_sim.engines.shares import net, shards

FOUR = Hardware(4)
GPU = Hardware(4, ("cuda:0", "cuda:1"))
MAC = Hardware(4, ("mps",))


def picked(has: Hardware = FOUR, **asked: Any) -> tuple[str, str, int, str]:
    plain: dict[str, Any] = {"engine": "auto", "trainer": "onnx", "device": "auto", "workers": 0, "size": 10**6}
    made = pick(**(plain | asked), has=has)
    return made.engine, made.device, made.workers, made.why


@pytest.mark.parametrize(
    ("has", "asked", "expected"),
    [
        (FOUR, {}, ("pool", "cpu", 4, "pool of 4: one process per core, with the devices' own trainer")),
        (GPU, {}, ("pool", "cpu", 4, "pool of 4: one process per core, with the devices' own trainer")),
        (Hardware(1), {}, ("serial", "cpu", 1, "serial: there is only one core")),
        (FOUR, {"workers": 1}, ("serial", "cpu", 1, "serial: there is only one core")),
        (FOUR, {"engine": "pool", "workers": 3}, ("pool", "cpu", 3, "pool of 3, as configured")),
        (FOUR, {"engine": "serial"}, ("serial", "cpu", 1, "serial, as configured")),
        (
            GPU,
            {"trainer": "torch"},
            ("batched", "cuda:0", 1, "batched on cuda:0: many small models at once keep a GPU busy"),
        ),
        (GPU, {"trainer": "torch", "device": "cuda"}, ("batched", "cuda:0", 1,
         "batched on cuda:0: many small models at once keep a GPU busy")),
        (GPU, {"trainer": "torch", "device": "cuda:1"}, ("batched", "cuda:1", 1,
         "batched on cuda:1: many small models at once keep a GPU busy")),
        (MAC, {"trainer": "torch"}, ("batched", "mps", 1,
         "batched on mps: many small models at once keep a GPU busy")),
        (GPU, {"trainer": "torch", "device": "cpu", "engine": "batched"},
         ("batched", "cpu", 1, "batched on cpu, as configured")),
        (GPU, {"trainer": "torch", "engine": "serial"}, ("torch", "cuda:0", 1,
         "torch on cuda:0, one visit after another, as configured")),
        (FOUR, {"trainer": "torch", "size": 100_001}, ("torch", "cpu", 1,
         "torch on cpu, one visit after another: with 100,001 parameters, batching gains nothing without a GPU")),
        (FOUR, {"trainer": "torch", "size": 100_000}, ("batched", "cpu", 1,
         "batched on cpu: with 100,000 parameters, the model is small enough to benefit")),
        (FOUR, {"trainer": "torch", "engine": "batched"}, ("batched", "cpu", 1, "batched on cpu, as configured")),
    ],
)  # fmt: skip
def test_picked_engine_and_its_reason(
    has: Hardware, asked: dict[str, Any], expected: tuple[str, str, int, str]
) -> None:
    assert picked(has, **asked) == expected


@pytest.mark.parametrize(
    ("asked", "words"),
    [
        ({"trainer": "torch", "device": "cuda"}, "'cuda' is not available: this machine has 4 CPU cores and no GPU"),
        ({"device": "mps"}, "'mps' is not available: this machine has 4 CPU cores and no GPU"),
        ({"engine": "batched"}, "set trainer = 'torch'"),
        ({"engine": "pool", "trainer": "torch"}, "set trainer = 'onnx'"),
    ],
)
def test_unavailable_choice_is_refused_with_alternatives(asked: dict[str, Any], words: str) -> None:
    with pytest.raises(ConfigError, match=words):
        picked(FOUR, **asked)


def test_onnxruntime_on_a_gpu_is_refused() -> None:
    with pytest.raises(ConfigError, match=r"runs on the CPU: for 'cuda:0', set trainer = 'torch'"):
        picked(GPU, device="cuda")
    with pytest.raises(ConfigError, match=r"this machine has 4 CPU cores and cuda:0, cuda:1. Use 'cuda:0' or 'cuda:1'"):
        picked(GPU, device="mps")
    with pytest.raises(ConfigError, match=r"'cuda:2' is not available: .* Use 'cuda:0' or 'cuda:1' or 'cpu'"):
        picked(GPU, trainer="torch", device="cuda:2")
    with pytest.raises(
        ConfigError, match=r"'cuda' is not available: this machine has 4 CPU cores and mps. Use 'mps' or"
    ):
        picked(MAC, trainer="torch", device="cuda")


@pytest.mark.parametrize(
    ("asked", "kind"),
    [
        ({"engine": "serial"}, SerialEngine),
        ({"engine": "pool", "workers": 1}, ProcessPoolEngine),
        ({"trainer": "torch", "engine": "serial", "device": "cpu"}, TorchEngine),
        ({"trainer": "torch", "engine": "batched", "device": "cpu"}, BatchedEngine),
    ],
)
def test_picked_engine_is_created(asked: dict[str, Any], kind: type) -> None:
    engine, why = choose(shards(), network=net(), **asked)
    try:
        assert type(engine) is kind
        assert why
    finally:
        engine.close()


def test_model_size_is_read_from_its_module() -> None:
    assert net().size == compiled().kit.model.size
    assert "235 parameters" in choose(shards(), trainer="torch", device="cpu", network=net())[1]


def test_torch_without_a_module_is_refused() -> None:
    with pytest.raises(ConfigError, match="needs the torch module"):
        choose(shards(), trainer="torch", device="cpu")


def test_machine_has_at_least_one_core() -> None:
    assert hardware(gpus=False).cores >= 1


@pytest.mark.parametrize("device", ["auto", "cpu", "cuda", "cuda:1", "mps"])
def test_settings_accept_torch_device_names(device: str) -> None:
    text = f'[simulation]\ntrainer = "torch"\ndevice = "{device}"\n'
    assert read_simulation(text, "a test").fleet.device == device


@pytest.mark.parametrize("device", ["gpu", "cuda:", "cuda:one", "cpu:1", "", "cuda:1;"])
def test_settings_refuse_other_device_names(device: str) -> None:
    with pytest.raises(ConfigError, match=r"use auto, cpu, cuda, one of several \(cuda:1\) or mps"):
        read_simulation(f'[simulation]\ndevice = "{device}"\n', "a test")
