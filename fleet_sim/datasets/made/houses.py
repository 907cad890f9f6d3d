"""Prices of houses in twenty towns, made up after the well-known Californian set: regression."""

from __future__ import annotations

import numpy as np

from fleet_sim.datasets.data_set import DataSet, every_fifth
from sojourn.randomness import generator

TOWNS, HOUSES = 20, 300
FEATURES = ("income", "age", "rooms", "bedrooms", "people", "occupancy", "north", "east")
DEAREST = 5.0
"""Prices are in 100,000 and end here, as those of the Californian set do."""


def make_houses(seed: int = 0) -> DataSet:
    """6,000 houses of eight standardised features; domains are the towns.

    A town has its own place, wealth and age. Prices rise with income, and more so near the coast (in the west) and near
    the two cities; they go up and down with age. A straight line explains three quarters of them.
    """
    draw = generator(seed, "houses")
    town = np.repeat(np.arange(TOWNS), HOUSES)
    places, wealth, built = draw.random((TOWNS, 2)), draw.normal(1.2, 0.25, TOWNS), draw.uniform(8, 45, TOWNS)
    where = places[town] + draw.normal(0.0, 0.03, (len(town), 2))
    income = np.exp(wealth[town] + draw.normal(0.0, 0.35, len(town)))
    age = np.clip(built[town] + draw.normal(0.0, 8.0, len(town)), 1.0, 60.0)
    rooms = np.clip(3.0 + 0.6 * income + draw.normal(0.0, 0.8, len(town)), 1.5, 12.0)
    bedrooms = np.clip(0.22 * rooms + draw.normal(0.0, 0.15, len(town)), 0.5, 5.0)
    people = np.exp(7.0 + 0.6 * draw.standard_normal(len(town)))
    occupancy = np.clip(3.6 - 0.18 * income + draw.normal(0.0, 0.5, len(town)), 1.0, 8.0)
    coast = np.exp(-4.0 * np.clip(where[:, 1], 0.0, None))
    cities = np.exp(-8.0 * _squares(where, draw.random((2, 2)))).sum(axis=1)
    price = 0.4 + (0.1 + 0.5 * coast + 0.3 * cities) * income + 0.05 * rooms - 0.1 * occupancy
    price += 0.5 * np.sin(age / 7.0) + draw.normal(0.0, 0.2, len(town))
    columns = (income, age, rooms, bedrooms, people, occupancy, where[:, 0], where[:, 1])
    x = np.stack(columns, axis=1)
    x = ((x - x.mean(axis=0)) / x.std(axis=0)).astype(np.float32)
    y = np.clip(price, 0.15, DEAREST).astype(np.float32)[:, None]
    return every_fifth(DataSet("houses", x, y, x[:0], y[:0], (), domains=town, kind="regression", names=("price",)))


def _squares(where: np.ndarray, cities: np.ndarray) -> np.ndarray:
    """The squares of the distances to each city."""
    return np.asarray(np.square(where[:, None] - cities[None]).sum(axis=2))
