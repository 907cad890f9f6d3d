"""Objectives with a second stream: compared with the same loop in torch, and limiting cases."""

from __future__ import annotations

from functools import cache
from typing import TYPE_CHECKING, Any

import msgspec
import numpy as np
import pytest
import torch
from torch import nn

from coordinator.compiling import Compiled, compile_kit
from coordinator.rounds.preparing import KitCache
from sojourn.parts import FeatureMatch, Sgd
from sojourn.protocol.spec import InputSpec
from sojourn.protocol.task import MODEL_TWO_STREAM, asked_by
from sojourn.randomness import batches
from tests.edge_agent.training.kits import CLASSES, MEAN, STD, Bench, network, torch_step, visit_for, with_vectors

if TYPE_CHECKING:
    from collections.abc import Callable
    from pathlib import Path

LR, BATCH, SEED = 0.1, 8, 11


@pytest.fixture
def bench(tmp_path: Path) -> Bench:
    return Bench(tmp_path)


@cache
def kit_for(objective: Any) -> Compiled:
    """The small network with a graph for an objective; compiled once for all processes of a run."""
    name = f"tests-two-stream-{msgspec.json.encode(objective).hex()[:160]}"
    if found := KitCache().find(name):
        return Compiled(*found)
    made = compile_kit(network(), InputSpec((1, 8, 8)), CLASSES, mean=[MEAN], std=[STD], seed=3, objective=objective)
    KitCache().keep(name, made.kit, made.initial)
    return made


def trained(bench: Bench, objective: Any, **how: Any) -> np.ndarray:
    work = visit_for(bench.blobs, objective=objective, model=kit_for(objective.compiled), **how)
    return bench.load(bench.perform(work).vectors["model"])


def by_torch(x: Any, y: Any, term: Callable[[Any, Any, Any, Any], Any], epochs: int = 1) -> np.ndarray:
    """Plain SGD on cross-entropy and a term of (features, logits) of the model and of the frozen one."""
    model, anchor = network(), network()
    inputs = torch.from_numpy((x.astype(np.float32).reshape(-1, 1, 8, 8) - MEAN) / STD)
    labels = torch.from_numpy(y.astype(np.int64))
    for index in batches(SEED, len(x), BATCH, epochs):
        seen, wanted = inputs[index], labels[index]
        features, frozen = model[:-1](seen), anchor[:-1](seen).detach()
        loss = nn.functional.cross_entropy(model[-1](features), wanted)
        loss = loss + term(features, frozen, model[-1](features), anchor[-1](frozen).detach())
        torch_step(model, loss, LR)
    return torch.cat([parameter.detach().reshape(-1) for parameter in model.parameters()]).numpy()


def test_feature_match_equals_torch(bench: Bench) -> None:
    expected = by_torch(bench.x, bench.y, lambda here, there, *_: 2.0 * (here - there).square().mean(), epochs=2)
    found = trained(bench, FeatureMatch(weight=2.0), epochs=2)
    np.testing.assert_allclose(found, expected, atol=2e-6)
    plain = by_torch(bench.x, bench.y, lambda *_: 0.0, epochs=2)
    assert np.abs(found - plain).max() > 1e-3


def test_weight_zero_equals_plain_training_bit_for_bit(bench: Bench) -> None:
    plain = bench.load(bench.perform(visit_for(bench.blobs, objective=Sgd(), epochs=2)).vectors["model"])
    assert np.array_equal(trained(bench, FeatureMatch(weight=0.0), epochs=2), plain)
    assert np.array_equal(trained(bench, FeatureMatch(weight=5.0), epochs=1, batch=50), trained_once(bench))


def trained_once(bench: Bench) -> np.ndarray:
    """In one step, the streams are equal, and the gradient of their distance is 0."""
    return bench.load(bench.perform(visit_for(bench.blobs, objective=Sgd(), batch=50)).vectors["model"])


def test_round_model_can_be_the_anchor(bench: Bench) -> None:
    objective = FeatureMatch(weight=2.0, anchor="round")
    made = kit_for(objective.compiled)
    work = visit_for(bench.blobs, objective=objective, model=made)
    same = bench.perform(with_vectors(work, bench.blobs, round=made.initial))
    assert np.array_equal(bench.load(same.vectors["model"]), trained(bench, FeatureMatch(weight=2.0)))
    other = bench.perform(with_vectors(work, bench.blobs, round=made.initial * np.float32(0.5)))
    assert other.vectors["model"] != same.vectors["model"]


def test_kit_with_second_stream_requires_two_stream_support() -> None:
    assert asked_by(kit_for(FeatureMatch()).kit) == (MODEL_TWO_STREAM,)
