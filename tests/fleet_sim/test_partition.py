"""Dealing out samples."""

from __future__ import annotations

import numpy as np
import pytest

from fleet_sim.partition import dirichlet

LABELS = np.repeat(np.arange(10), 100)


@pytest.mark.parametrize("alpha", [0.01, 0.3, 1.0, 1e6])
@pytest.mark.parametrize("devices", [1, 3, 8, 50])
def test_every_sample_is_given_once(alpha: float, devices: int) -> None:
    parts = dirichlet(LABELS, devices, alpha, 1)
    assert len(parts) == devices
    assert np.array_equal(np.sort(np.concatenate(parts)), np.arange(1000))


def test_the_seed_decides() -> None:
    one, same, other = (dirichlet(LABELS, 4, 0.3, seed) for seed in (1, 1, 2))
    assert all(np.array_equal(a, b) for a, b in zip(one, same, strict=True))
    assert not all(np.array_equal(a, b) for a, b in zip(one, other, strict=True))


def test_a_large_alpha_gives_everybody_the_same() -> None:
    for part in dirichlet(LABELS, 4, 1e9, 1):
        assert np.bincount(LABELS[part]).tolist() == [25] * 10


def test_a_small_alpha_gives_each_label_to_one_device() -> None:
    parts = dirichlet(LABELS, 4, 1e-6, 1)
    held = np.array([np.bincount(LABELS[part], minlength=10) for part in parts])
    assert sorted(held.ravel().tolist()) == [0] * 30 + [100] * 10


def test_alpha_matters() -> None:
    def labels_per_device(alpha: float) -> float:
        return float(np.mean([len(np.unique(LABELS[part])) for part in dirichlet(LABELS, 8, alpha, 1)]))

    assert labels_per_device(0.1) < labels_per_device(0.5) < labels_per_device(10.0)
