"""The optimisers' steps, compared with torch."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
import torch

from edge_agent.training import descent
from sojourn.parts import Training

SIZE, STEPS = 40, 25


def directions() -> list[np.ndarray]:
    draw = np.random.default_rng(1)
    return [draw.standard_normal(SIZE).astype(np.float32) * 10 ** draw.uniform(-4, 1) for _ in range(STEPS)]


def start() -> np.ndarray:
    return np.random.default_rng(2).standard_normal(SIZE).astype(np.float32)


def ours(**settings: Any) -> np.ndarray:
    w, optimiser = start(), descent.begin(Training(**settings))
    for direction in directions():
        optimiser.move(w, direction.copy())
    return w


def theirs(optimiser: str = "sgd", **options: float) -> np.ndarray:
    w = torch.nn.Parameter(torch.from_numpy(start()))
    kind: Any = {"sgd": torch.optim.SGD, "adam": torch.optim.Adam}[optimiser]
    stepping = kind([w], **options)
    for direction in directions():
        w.grad = torch.from_numpy(direction)
        stepping.step()
    return w.detach().numpy()


@pytest.mark.parametrize("decay", [0.0, 0.1])
@pytest.mark.parametrize("how", [{}, {"momentum": 0.9}, {"optimiser": "adam"}])
def test_steps_match_torch(how: dict[str, Any], decay: float) -> None:
    settings = {"lr": 0.05, "weight_decay": decay, **how}
    found = ours(**settings)
    assert found.dtype == np.float32
    np.testing.assert_allclose(found, theirs(**settings), rtol=2e-6, atol=2e-6)


def test_adam_matches_a_hand_calculation() -> None:
    # Without decay the first step is lr g / (|g| + eps), whatever the size of g.
    w = np.array([1.0, 1.0, 1.0], np.float32)
    optimiser = descent.begin(Training(lr=0.5, optimiser="adam"))
    optimiser.move(w, np.array([3.0, -1e-3, 0.0], np.float32))
    np.testing.assert_allclose(w, [0.5, 1.5, 1.0], atol=1e-5)
    # m' = (0.9 * 0.1 * 3 + 0.1 * 0) / 0.19, v' = 0.999 * 0.001 * 9 / (1 - 0.999^2)
    optimiser.move(w, np.zeros(3, np.float32))
    step = 0.5 * (0.27 / 0.19) / (0.008991 / 0.001999) ** 0.5
    np.testing.assert_allclose(w[0], 0.5 - step, rtol=1e-5)


@pytest.mark.parametrize("how", [{}, {"momentum": 0.9}, {"optimiser": "adam"}])
def test_batched_models_in_torch_step_like_each_alone(how: dict[str, Any]) -> None:
    settings = {"lr": 0.05, "weight_decay": 0.1, **how}
    many = torch.from_numpy(np.stack([start(), 2 * start()]))
    optimiser = descent.begin(Training(**settings))
    for direction in directions():
        optimiser.move(many, torch.from_numpy(np.stack([direction, -direction])))
    np.testing.assert_allclose(many[0].numpy(), ours(**settings), rtol=2e-6, atol=2e-6)
    assert not torch.allclose(many[0], many[1])
