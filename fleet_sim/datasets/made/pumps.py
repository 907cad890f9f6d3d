"""How twenty-four machines of a pumping station vibrate, and faults among them; reconstruction."""

from __future__ import annotations

import numpy as np

from fleet_sim.datasets.data_set import DataSet
from sojourn.randomness import generator

MACHINES, REGIMES, READINGS = 24, 6, 64
SEEN, TESTED, FAULTY = 120, 20, 16
"""Windows of each machine: to train on, healthy ones to test on, and faulty ones."""
FAULTS = ("bearing", "imbalance", "looseness", "stuck")
"""A bearing knocks at every turn; an imbalance doubles the shaft's own vibration; what is loose swings at half the
speed; a stuck sensor repeats what it read."""


def make_pumps(seed: int = 0) -> DataSet:
    """Windows of 64 readings; all are healthy but for 16 of 36 of each machine in the test part, which say 1.

    users are the machines, domains their six regimes: how fast a shaft turns and how strong its overtone is, so
    that a model of one regime takes the others for faulty.
    """
    draw = generator(seed, "pumps")
    machine = np.arange(MACHINES)
    speed = 1.5 + 1.7 * (machine % REGIMES) + draw.uniform(-0.1, 0.1, MACHINES)
    overtone = draw.uniform(0.2, 0.4, MACHINES) + 0.6 * draw.random(REGIMES)[machine % REGIMES]
    whose = [np.repeat(machine, each) for each in (SEEN, TESTED, FAULTY)]
    seen, tested, faulty = (_healthy(speed[at], overtone[at], draw) for at in whose)
    faulty = _spoilt(faulty, speed[whose[2]], draw)
    x_test = np.concatenate([tested, faulty])
    y_test = np.repeat(np.arange(2, dtype=np.int64), [len(tested), len(faulty)])
    users = whose[0].astype(np.int64)
    y = np.zeros(len(seen), np.int64)
    names = ("normal", "faulty")
    return DataSet("pumps", seen, y, x_test, y_test, names, users, users % REGIMES, kind="reconstruction")


def _healthy(speed: np.ndarray, overtone: np.ndarray, draw: np.random.Generator) -> np.ndarray:
    """One window for each speed (turns in a window): the shaft, its overtone, each at any phase, and noise."""
    turns = np.arange(READINGS)[None] / READINGS * speed[:, None]
    strength = draw.uniform(0.8, 1.2, (len(speed), 1))
    phases = draw.random((2, len(speed), 1))
    wave = np.sin(2 * np.pi * (turns + phases[0]))
    wave += overtone[:, None] * np.sin(2 * np.pi * (2 * turns + phases[1]))
    return np.asarray(strength * wave + draw.normal(0.0, 0.1, wave.shape), np.float32)


def _spoilt(healthy: np.ndarray, speed: np.ndarray, draw: np.random.Generator) -> np.ndarray:
    """The same windows with faults, one kind after another, of different strengths."""
    at = np.arange(READINGS)[None]
    turns, strength = at / READINGS * speed[:, None], draw.uniform(0.6, 1.6, (len(speed), 1))
    since = (turns + draw.random((len(speed), 1))) % 1.0 / speed[:, None] * READINGS  # readings since the last knock
    knocks = 2.0 * np.exp(-since / 2.0) * np.cos(2.4 * since)
    swings = np.sin(np.pi * (turns + draw.random((len(speed), 1))))
    begins = draw.integers(READINGS // 4, READINGS // 2, (len(speed), 1))
    stuck = np.where(at < begins, healthy, np.take_along_axis(healthy, begins, axis=1))
    kinds = (
        healthy + strength * knocks,
        healthy * (1.0 + strength),
        healthy + strength * swings,
        stuck,
    )
    return np.stack(kinds)[np.arange(len(speed)) % len(FAULTS), np.arange(len(speed))].astype(np.float32)
