"""The electric load of forty households by the hour, with seasons of a day and a week; forecast."""

from __future__ import annotations

import numpy as np
from numpy.lib.stride_tricks import sliding_window_view

from fleet_sim.datasets.data_set import DataSet
from sojourn.errors import DataError
from sojourn.protocol.task import Window
from sojourn.randomness import generator

HOUSEHOLDS, HOURS, TESTED = 40, 8 * 7 * 24, 2 * 7 * 24
USUAL = Window(48, 6, 6)
"""Two days are seen, six hours are to come; a window each six hours."""
WAYS = {
    "workers": ((7.0, 1.0, 0.5), (19.5, 2.0, 1.6)),
    "at-home": ((9.0, 2.5, 0.8), (13.0, 2.0, 1.0), (19.0, 2.5, 0.9)),
    "night-shift": ((2.0, 3.0, 1.0), (15.0, 2.0, 1.1)),
    "heat-pump": ((4.0, 2.0, 2.0), (22.0, 2.0, 1.8)),
}
"""Ways of living: peaks of the load on a working day, each the hour, its width in hours, and its height in kW."""


def make_households(seed: int = 0, window: Window = USUAL) -> DataSet:
    """Windows of the load in kW: six weeks to train on, the last two for testing; no window reaches over both.

    users are the households, domains their four ways of living. A household has its own level, its own clock (an hour
    or so early or late) and its own weekend; the rest is noise that fades within some hours.
    """
    series = load_series(seed)
    long = window.steps + window.horizon
    if long > TESTED:
        raise DataError(
            f"households: a window of {window.steps} + {window.horizon} hours is longer than the {TESTED} hours for "
            "testing: lower task.steps or task.horizon"
        )
    seen, tested = (_windows(part, window) for part in (series[:, :-TESTED], series[:, -TESTED:]))
    users = np.repeat(np.arange(HOUSEHOLDS), len(seen[0]) // HOUSEHOLDS)
    ways = users % len(WAYS)
    return DataSet("households", *seen, *tested, (), users, ways, kind="forecast", names=("load",), window=window)


def load_series(seed: int) -> np.ndarray:
    """The load of each household and hour, float32."""
    draw = generator(seed, "households")
    clock = np.arange(HOURS)[None] + draw.normal(0.0, 1.0, HOUSEHOLDS)[:, None]
    weekend = (np.arange(HOURS) // 24 % 7 >= 5)[None]
    lie_in, stay = draw.uniform(0.5, 3.0, HOUSEHOLDS)[:, None], draw.uniform(0.8, 1.6, HOUSEHOLDS)[:, None]
    of_day = np.where(weekend, clock - lie_in, clock) % 24.0
    load = np.full((HOUSEHOLDS, HOURS), 0.25)
    for at, peaks in enumerate(WAYS.values()):
        mine = slice(at, None, len(WAYS))
        for hour, width, height in peaks:
            away = np.abs(of_day[mine] - hour)
            load[mine] += height * np.exp(-np.square(np.minimum(away, 24.0 - away) / width))
    load *= np.where(weekend, stay, 1.0) * np.exp(draw.normal(0.0, 0.4, HOUSEHOLDS))[:, None]
    return np.maximum(load * (1.0 + _fading(draw, 0.15)), 0.02).astype(np.float32)


def _fading(draw: np.random.Generator, size: float) -> np.ndarray:
    """Noise of which 0.8 is left after an hour."""
    noise = draw.normal(0.0, size, (HOUSEHOLDS, HOURS))
    for hour in range(1, HOURS):
        noise[:, hour] = 0.8 * noise[:, hour - 1] + 0.6 * noise[:, hour]
    return noise


def _windows(series: np.ndarray, window: Window) -> tuple[np.ndarray, np.ndarray]:
    """What is seen and what is to come, of all households one after another: (N, steps, 1) and (N, horizon, 1)."""
    every = sliding_window_view(series, window.steps + window.horizon, axis=1)[:, :: window.stride]
    flat = every.reshape(-1, every.shape[2], 1)
    return np.ascontiguousarray(flat[:, : window.steps]), np.ascontiguousarray(flat[:, window.steps :])
