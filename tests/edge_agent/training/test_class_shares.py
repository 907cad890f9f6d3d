"""Logit adjustment on a device: compared with the same loop in torch, and its limiting cases."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import numpy as np
import pytest
import torch
from torch import nn

from coordinator.compiling import compile_kit
from edge_agent.training.trainer import prepare, shift_of
from edge_agent.training.visit_vectors import Unsupported
from sojourn.data.source import DataSettings
from sojourn.errors import ModelError
from sojourn.model.layers import check_output_bias, output_bias
from sojourn.parts import LogitAdjustment, Sgd
from sojourn.protocol.spec import InputSpec
from sojourn.randomness import batches
from tests.edge_agent.training.kits import (
    CLASSES,
    MEAN,
    STD,
    Bench,
    compiled,
    network,
    torch_step,
    visit_for,
    write_data,
)
from tests.there import there

if TYPE_CHECKING:
    from pathlib import Path

LR, BATCH, SEED = 0.1, 8, 11


@pytest.fixture
def bench(tmp_path: Path) -> Bench:
    return Bench(tmp_path)


def trained(bench: Bench, objective: Any, **how: Any) -> np.ndarray:
    return bench.load(bench.perform(visit_for(bench.blobs, objective=objective, **how)).vectors["model"])


def by_torch(x: Any, y: Any, shift: Any, epochs: int) -> np.ndarray:
    """Plain SGD on the cross-entropy of the logits plus `shift`."""
    model = network()
    inputs = torch.from_numpy((x.astype(np.float32).reshape(-1, 1, 8, 8) - MEAN) / STD)
    labels, added = torch.from_numpy(y.astype(np.int64)), torch.tensor(shift, dtype=torch.float32)
    for index in batches(SEED, len(x), BATCH, epochs):
        loss = nn.functional.cross_entropy(model(inputs[index]) + added, labels[index])
        torch_step(model, loss, LR)
    return torch.cat([parameter.detach().reshape(-1) for parameter in model.parameters()]).numpy()


@pytest.mark.parametrize("tau", [1.0, 0.4])
def test_logit_adjustment_matches_torch_with_log_class_shares(bench: Bench, tau: float) -> None:
    counts = np.bincount(bench.y, minlength=len(CLASSES)) + 0.5
    expected = by_torch(bench.x, bench.y, tau * np.log(counts / counts.sum()), epochs=2)
    found = trained(bench, LogitAdjustment(tau=tau, smoothing=0.5), epochs=2)
    np.testing.assert_allclose(found, expected, atol=2e-6)
    assert np.abs(found - trained(bench, Sgd(), epochs=2)).max() > 1e-4


def test_tau_zero_equals_plain_training_bit_for_bit(bench: Bench) -> None:
    assert np.array_equal(trained(bench, LogitAdjustment(tau=0.0), epochs=2), trained(bench, Sgd(), epochs=2))


def test_missing_class_is_hardly_forgotten(tmp_path: Path) -> None:
    bench = Bench(tmp_path, classes=CLASSES[:2])
    start = compiled().initial
    place = there(output_bias(compiled().kit))
    lost = [start[place][2] - trained(bench, each)[place][2] for each in (Sgd(), LogitAdjustment())]
    assert lost[0] > 0
    assert abs(lost[1]) < lost[0] / 5


def test_shift_is_applied_only_to_the_output_bias(tmp_path: Path) -> None:
    write_data(tmp_path / "data.npz")
    prepared = prepare(compiled().kit, DataSettings(path=str(tmp_path / "data.npz")), 1)
    (shift,) = shift_of(LogitAdjustment(), prepared).values()
    place = there(output_bias(prepared.kit))
    assert place == slice(len(shift) - len(CLASSES), len(shift))
    assert not shift[: place.start].any()
    assert np.exp(shift[place]).sum() == pytest.approx(1.0)
    assert shift_of(Sgd(), prepared) == {}


def test_model_without_output_bias_is_refused_with_reason(tmp_path: Path) -> None:
    write_data(tmp_path / "data.npz")
    without = nn.Sequential(nn.Flatten(), nn.Linear(64, 5), nn.ReLU(), nn.Linear(5, len(CLASSES), bias=False))
    kit = compile_kit(without, InputSpec((1, 8, 8)), CLASSES, mean=[MEAN], std=[STD], seed=3).kit
    with pytest.raises(ModelError, match="no trained tensor of this model has one number for each of the 3 classes"):
        check_output_bias(kit)
    with pytest.raises(Unsupported, match="output bias"):
        shift_of(LogitAdjustment(), prepare(kit, DataSettings(path=str(tmp_path / "data.npz")), 1))


def test_bias_not_added_to_the_output_is_refused() -> None:
    class Squeezed(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.last = nn.Linear(64, len(CLASSES))

        def forward(self, x: torch.Tensor) -> torch.Tensor:
            return torch.tanh(self.last(x.flatten(1)))

    kit = compile_kit(Squeezed(), InputSpec((1, 8, 8)), CLASSES, mean=[MEAN], std=[STD], seed=3).kit
    with pytest.raises(ModelError, match="does not end with a layer whose bias"):
        check_output_bias(kit)
    check_output_bias(compiled().kit)
