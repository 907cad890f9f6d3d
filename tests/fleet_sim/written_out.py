"""Visits, tours and means written out in plain numpy, with only the gradient from the product."""

from __future__ import annotations

from functools import cache
from typing import TYPE_CHECKING, Any

import numpy as np

from edge_agent.training.trainer import prepare
from sojourn.randomness import batches, derive
from tests.fleet_sim.small_fleet import initial_model, job, kit_of_jobs, run, shards

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence

    from coordinator.records import TourPlan
    from tests.fleet_sim.small_fleet import Run

SITES = {"site-a": ("dev-0", "dev-1", "dev-2"), "site-b": ("dev-3", "dev-4", "dev-5")}
LR, BATCH, EPOCHS, N = 0.1, 32, 2, 6
PLAIN: dict[str, Any] = {
    "training__lr": LR,
    "training__batch": BATCH,
    "training__epochs": EPOCHS,
    "training__momentum": 0.0,
    "training__weight_decay": 0.0,
    "training__optimiser": "sgd",
    "fleet__devices": N,
}


@cache
def ready(device: str) -> Any:
    return prepare(kit_of_jobs(), shards(6)[device], 1)


def size(device: str) -> int:
    return len(ready(device).samples)


def train(
    w_in: np.ndarray, device: str, number: int, pull: Callable[..., Any] | None = None, repeat: int = 0
) -> tuple[np.ndarray, int]:
    """One visit in round `number`: w <- w - lr (g + pull), in float64 except for the gradient; and its steps."""
    it, w, steps = ready(device), w_in.astype(np.float64), 0
    seed = derive(derive(0, "train", number), device, repeat)
    for index in batches(seed, size(device), BATCH, EPOCHS):
        x, y = it.samples.batch(index, kit_of_jobs().input.dtype)
        g = it.graphs.loss_and_gradient(w.astype(np.float32), x, y, [])[1].astype(np.float64)
        w = w - LR * (pull(w, g) if pull else g)
        steps += 1
    return w, steps


def tour(w: np.ndarray, devices: tuple[str, ...], number: int, **how: Any) -> tuple[np.ndarray, int]:
    """Return the model after these devices, and its number of samples."""
    seen: dict[str, int] = {}
    for device in devices:
        w, _ = train(w, device, number, repeat=seen.get(device, 0), **how)
        seen[device] = seen.get(device, 0) + 1
    return w, sum(size(device) * times for device, times in seen.items())


def weighted(models: Sequence[tuple[np.ndarray, float]]) -> np.ndarray:
    total = sum(weight for _, weight in models)
    return np.asarray(sum(weight / total * model for model, weight in models))


def uniform(models: list[np.ndarray]) -> np.ndarray:
    return weighted([(model, 1.0) for model in models])


def scaffold_round(
    w: np.ndarray, c: np.ndarray, mine: dict[str, np.ndarray], number: int, devices: list[str]
) -> tuple[np.ndarray, np.ndarray]:
    """Return SCAFFOLD's model and control after these devices trained; update their controls in `mine`."""
    ends, deltas = [], []
    for k in devices:
        c_k = mine.get(k, np.zeros_like(w))
        w_k, steps = train(w, k, number, lambda v, g, c_k=c_k: g - c_k + c)
        mine[k] = c_k - c + (w - w_k) / (steps * LR)
        ends.append(w_k)
        deltas.append(mine[k] - c_k)
    return uniform(ends), c + sum(deltas) / N


def start() -> np.ndarray:
    return initial_model().astype(np.float64)


def ran(strategy: str, *, one_broker: bool = False, **changes: Any) -> tuple[Run, list[tuple[TourPlan, ...]]]:
    done = run(job(**{"strategy": strategy, **PLAIN, "rounds": 3, **changes}), SITES, one_broker=one_broker)
    assert done.state.status == "done", done.state.detail
    return done, [plan.tours for plan in done.fleet.ledger.plans]


def check_agrees(done: Run, expected: np.ndarray) -> None:
    moved = np.abs(expected - start()).max()
    assert moved > 1e-3
    np.testing.assert_allclose(done.model, expected, rtol=0, atol=2e-5 * max(1.0, moved))
