"""FedELMY's diversity terms: the scale by hand, the gradient by torch."""

from __future__ import annotations

from math import floor, log10
from typing import TYPE_CHECKING, Any

import numpy as np
import pytest
import torch

from edge_agent.training.fedelmy import Diverse, distance_scale
from sojourn.parts import Elmy

if TYPE_CHECKING:
    from edge_agent.training.objectives import LossAndGrad


@pytest.mark.parametrize(
    ("loss", "d2", "scale"),
    [
        (6.02, 45.0, 0.01),  # the paper's example: 45 becomes 0.45
        (0.602, 45.0, 0.001),
        (6.02, 4500.0, 0.0001),
        (6.02, 0.45, 1.0),
        (6.02, 4.5, 0.1),
        (6.02, 0.0045, 1.0),  # never more than 1
        (1.0, 1.0, 0.1),
        (1000.0, 100.0, 1.0),
        (0.999, 1.0, 0.01),
        (0.0, 45.0, 1.0),
        (6.02, 0.0, 1.0),
    ],
)
def test_distances_are_scaled_to_a_tenth_of_the_loss_magnitude(loss: float, d2: float, scale: float) -> None:
    assert distance_scale(loss, np.float32(d2)) == pytest.approx(scale, rel=1e-12)
    found = distance_scale(torch.tensor([loss, 3.0]), torch.tensor([d2, 3e4]))
    assert found.tolist() == pytest.approx([scale, 1e-5], rel=1e-6)


def test_distance_scale_matches_the_paper_example() -> None:
    assert distance_scale(6.02, 45.0) * 45 == pytest.approx(0.45)


def level(loss: Any) -> LossAndGrad:
    """A constant loss."""
    return lambda at: (loss, at * 0)


def by_torch(w: np.ndarray, pool: list[np.ndarray], alpha: float, beta: float) -> np.ndarray:
    """The gradient of l - alpha s d1 + beta s d2 with l = |w - 1|^2 + 3, as the supplement writes it."""
    at = torch.tensor(w, dtype=torch.float64, requires_grad=True)
    models = [torch.tensor(model, dtype=torch.float64) for model in pool]
    loss = ((at - 1) ** 2).sum() + 3
    d1 = torch.stack([((at - model) ** 2).sum() for model in models]).mean()
    d2 = ((at - models[0]) ** 2).sum()
    scale = min(1.0, 10.0 ** (floor(log10(loss.item())) - 1 - floor(log10(d2.item()))))
    (loss - alpha * scale * d1 + beta * scale * d2).backward()
    assert at.grad is not None
    return at.grad.numpy()


@pytest.mark.parametrize(("alpha", "beta"), [(0.0, 0.0), (0.5, 0.0), (0.0, 0.7), (0.5, 0.7)])
@pytest.mark.parametrize("spread", [0.05, 1.0, 30.0])
def test_pull_is_the_gradient_of_the_distances(alpha: float, beta: float, spread: float) -> None:
    draw = np.random.default_rng(4)
    pool = [draw.standard_normal(8) * spread for _ in range(3)]
    w = draw.standard_normal(8)
    narrow = [model.astype(np.float32) for model in (w, pool[0], np.mean(pool, axis=0))]
    objective = Diverse(Elmy(alpha=alpha, beta=beta), narrow[1], narrow[2])
    loss, direction = objective.direction(narrow[0], lambda at: (float(((at - 1) ** 2).sum() + 3), 2 * (at - 1)))
    assert direction.dtype == np.float32
    assert loss == pytest.approx(((w - 1) ** 2).sum() + 3, rel=1e-5)
    np.testing.assert_allclose(direction, by_torch(w, pool, alpha, beta), rtol=1e-4, atol=1e-5)


def test_each_batched_model_has_its_own_scale() -> None:
    w = np.array([[1, 2], [100, 200]], np.float32)
    first, mean = np.zeros((2, 2), np.float32), np.full((2, 2), 0.5, np.float32)
    settings = Elmy(alpha=0.5, beta=0.7)
    losses = np.array([2.0, 30.0], np.float32)
    both = Diverse(settings, *map(torch.from_numpy, (first, mean)))
    _, many = both.direction(torch.from_numpy(w), level(torch.from_numpy(losses)))
    for number in range(2):
        alone = Diverse(settings, first[number], mean[number])
        _, one = alone.direction(w[number], level(float(losses[number])))
        np.testing.assert_allclose(many[number].numpy(), one, rtol=1e-6)
