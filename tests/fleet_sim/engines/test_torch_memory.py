"""A device with too little memory: torch's own error, and the same results in smaller pieces."""

from __future__ import annotations

import logging
from copy import deepcopy
from dataclasses import replace
from typing import Any

import numpy as np
import pytest
import torch
from torch import nn

from coordinator.compiling import compile_kit
from fleet_sim.engines import Network, SerialEngine, batched
from fleet_sim.engines.batched import BatchedEngine
from fleet_sim.engines.torch_graphs import TorchEngine, TorchGraphs
from fleet_sim.engines.torch_place import TorchPlace, is_out_of_memory, pieces
from sojourn.errors import ModelError
from sojourn.model.graphs import Graphs
from sojourn.node.machine import WorkFailed
from sojourn.protocol.spec import InputSpec
from sojourn.store.memory_blobs import MemoryBlobs
from tests.edge_agent.training.kits import CLASSES, compiled
from tests.fleet_sim.engines.shares import assert_close, net, shards, train, visit

DEVICES = ("dev-0", "dev-1", "dev-2", "dev-3")


class Memory:
    """Limits the number of samples of one model in a forward pass; records the requested numbers."""

    def __init__(self, most: int) -> None:
        self.limit, self.tried = most, list[int]()

    def __deepcopy__(self, _memo: object) -> Memory:
        return self

    def __call__(self, _module: nn.Module, inputs: tuple[torch.Tensor, ...]) -> None:
        self.tried.append(len(inputs[0]))
        if len(inputs[0]) > self.limit:
            raise torch.OutOfMemoryError("CUDA out of memory. Tried to allocate 2.00 GiB")


def cramped(most: int, network: Network | None = None) -> tuple[Network, Memory]:
    """Return the network on a device with memory for `limit` samples."""
    memory, module = Memory(most), deepcopy((network or net()).module)
    module.register_forward_pre_hook(memory)
    return replace(network or net(), module=module), memory


@pytest.mark.parametrize("kind", ["sgd", "adam", "scaffold", "sam", "elmy", "signature"])
@pytest.mark.parametrize("engine", [TorchEngine, BatchedEngine])
def test_visits_give_the_same_result_in_smaller_pieces(
    engine: type[TorchEngine | BatchedEngine], kind: str, caplog: pytest.LogCaptureFixture
) -> None:
    network, memory = cramped(4)
    with caplog.at_level(logging.WARNING):
        ours = train(engine(shards(), network), kind, DEVICES)
    for one, other in zip(ours, train(SerialEngine(shards()), kind, DEVICES), strict=True):
        assert_close(one, other)
    assert max(memory.tried) > 4  # the limit was exceeded at first
    notices = [record.message for record in caplog.records if "too little memory" in record.message]
    assert notices
    assert notices[0].startswith("cpu has too little memory for ")
    assert sum(size > 4 for size in memory.tried) == len(notices)  # a failed size is not tried again


def test_enough_memory_means_no_splitting_and_no_warning(caplog: pytest.LogCaptureFixture) -> None:
    network, memory = cramped(1000)
    train(BatchedEngine(shards(), network), "sgd", DEVICES)
    whole = len(memory.tried)
    train(BatchedEngine(shards(), net()), "sgd", DEVICES)
    assert not caplog.records
    steps = max(len(pieces(len(shards().rows[device]), 8)) for device in DEVICES)
    assert whole <= steps + 1  # a step of all, and the probe


@pytest.mark.parametrize("engine", [TorchEngine, BatchedEngine])
def test_visit_without_room_for_one_sample_fails_for_memory(engine: type[TorchEngine | BatchedEngine]) -> None:
    network, memory = cramped(1000)
    made, blobs = engine(shards(), network), MemoryBlobs()
    made.start("dev-0", "warm", visit("sgd", blobs), blobs).result()  # the probe needs memory
    memory.limit = 0
    futures = [made.start(device, "key", visit("sgd", blobs), blobs) for device in ("dev-0", "dev-1")]
    for future in futures:
        event = future.result().event
        assert isinstance(event, WorkFailed)
        assert event.reason == "memory"


def test_group_is_halved_when_its_vectors_do_not_fit(
    monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    groups: list[int] = []
    descend = batched._descend

    def cramped_descend(group: Any, graphs: TorchGraphs) -> Any:
        groups.append(len(group))
        if len(group) > 1:
            raise torch.OutOfMemoryError("CUDA out of memory")
        return descend(group, graphs)

    monkeypatch.setattr(batched, "_descend", cramped_descend)
    ours = train(BatchedEngine(shards(), net()), "sgd", DEVICES)
    for one, other in zip(ours, train(SerialEngine(shards()), "sgd", DEVICES), strict=True):
        assert_close(one, other)
    assert groups == [4, 2, 1, 1, 1, 1]
    assert [record.message for record in caplog.records] == [
        "too little memory for 4 visits at once: continuing with 2",
        "too little memory for 2 visits at once: continuing with 1",
    ]


class Mixing(nn.Module):
    """A model whose output depends on the whole batch."""

    def __init__(self) -> None:
        super().__init__()
        self.last = nn.Linear(64, len(CLASSES))

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        flat = x.flatten(1)
        logits: torch.Tensor = self.last(flat - flat.mean(0, keepdim=True))
        return logits


def test_indivisible_batch_fails_instead_of_being_split() -> None:
    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(4)
        module = Mixing()
    kit = compile_kit(module, InputSpec((1, 8, 8)), CLASSES, mean=None, std=None, seed=3).kit
    network, memory = cramped(1000, Network(module))
    graphs = TorchGraphs(kit, network)
    draw = np.random.default_rng(1)
    vector = draw.normal(0, 0.1, kit.model.size).astype(np.float32)
    x, y = draw.normal(0, 1, (8, 1, 8, 8)).astype(np.float32), np.arange(8) % len(CLASSES)
    loss, _ = graphs.loss_and_gradient(vector, x, y)
    assert loss == pytest.approx(Graphs(kit).loss_and_gradient(vector, x, y)[0], rel=1e-5)
    memory.limit = 4
    with pytest.raises(
        ModelError, match="out of memory with a batch of 8 samples, and this model depends on the whole batch"
    ):
        graphs.loss_and_gradient(vector, x, y)


def test_other_errors_are_not_treated_as_out_of_memory() -> None:
    graphs = TorchGraphs(compiled().kit, net())
    short = np.zeros(compiled().kit.model.size - 1, np.float32)
    with pytest.raises(RuntimeError, match="split_with_sizes"):
        graphs.loss_and_gradient(short, np.zeros((2, 1, 8, 8), np.float32), np.zeros(2, np.int64))


def test_torch_out_of_memory_errors_are_recognised() -> None:
    with pytest.raises(RuntimeError) as refused:
        torch.empty(10**15)
    assert is_out_of_memory(refused.value)
    assert is_out_of_memory(torch.OutOfMemoryError("any"))
    assert is_out_of_memory(RuntimeError("MPS backend out of memory (MPS allocated: 1 GB)"))
    assert not is_out_of_memory(RuntimeError("mat1 and mat2 shapes cannot be multiplied"))


def test_each_torch_place_uses_its_own_stream() -> None:
    one, other = TorchPlace("cpu"), TorchPlace("cpu")
    outside = torch.cpu.current_stream()
    with one.work():
        mine = torch.cpu.current_stream()
        with other.work():
            assert torch.cpu.current_stream() is not mine
        assert torch.cpu.current_stream() is mine
    assert torch.cpu.current_stream() is outside
    assert mine is not outside


def test_torch_place_sets_its_threads_only_while_working() -> None:
    before = torch.get_num_threads()
    with TorchPlace("cpu", threads=before + 1).work():
        assert torch.get_num_threads() == before + 1
    assert torch.get_num_threads() == before
    with TorchPlace("cpu").work():
        assert torch.get_num_threads() == before


def test_read_only_arrays_are_copied_and_others_shared() -> None:
    array = np.arange(3, dtype=np.float32)
    shared = TorchPlace().tensor(array)
    array[0] = 7
    assert shared[0] == 7
    array.flags.writeable = False
    TorchPlace().tensor(array)[0] = 1
    assert array[0] == 7
