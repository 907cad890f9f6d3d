"""Samples shared by devices."""

from __future__ import annotations

import numpy as np
import pytest

from fleet_sim.datasets import load
from fleet_sim.datasets.partition import By, Split, split
from fleet_sim.settings import SimulationSettings, read_simulation
from sojourn.errors import ConfigError

DIGITS = load("digits")
LABELS = DIGITS.y_train


def drawn(devices: int = 5000, seed: int = 1, alpha: float = 0.3, by: By = "dirichlet") -> list[list[int]]:
    found = split(Split(by=by, alpha=alpha, samples=8, shared=True), DIGITS, devices, seed)
    return [part.tolist() for part in found]


def test_every_device_draws_the_requested_sample_count() -> None:
    parts = drawn()
    assert len(LABELS) < len(parts) == 5000
    assert {len(part) for part in parts} == {8}
    assert all(part == sorted(part) for part in parts)
    assert {sample for part in parts for sample in part} == set(range(len(LABELS)))  # any sample may be drawn


def test_same_seed_gives_the_same_samples() -> None:
    assert drawn(50) == drawn(50)
    assert drawn(50) != drawn(50, seed=2)


@pytest.mark.parametrize(
    ("by", "alpha", "least", "most"), [("dirichlet", 0.0, 1, 1), ("dirichlet", 1e6, 4, 7), ("iid", 0.0, 4, 7)]
)
def test_alpha_determines_classes_per_device(by: By, alpha: float, least: float, most: float) -> None:
    classes = [len(np.unique(LABELS[part])) for part in drawn(400, alpha=alpha, by=by)]
    assert least <= np.mean(classes) <= most


def test_unsupported_shared_splits_are_refused() -> None:
    with pytest.raises(ConfigError, match="the number of samples per device"):
        split(Split(shared=True), DIGITS, 10, 1)
    with pytest.raises(ConfigError, match="not 'shards'"):
        split(Split(by="shards", samples=2, shared=True), DIGITS, 10, 1)


def test_site_count_follows_the_device_count() -> None:
    assert [len(SimulationSettings(devices=devices).devices_by_site) for devices in (1, 20, 20_000, 20_001)] == [
        1,
        2,
        2,
        3,
    ]
    assert len(SimulationSettings(devices=20, sites=5).devices_by_site) == 5
    for given, words in (({"simulation.sites": 2}, "need 3 sites"), ({"simulation.reach": "all"}, "omit reach")):
        with pytest.raises(ConfigError, match=words):
            read_simulation("", "here", {"simulation.devices": 20_001, **given})
    assert "sites = 3\n" in read_simulation("", "here", {"simulation.devices": 20_001}).text
