"""Data sets that need no files: generated (dialects, households, houses, pumps), or included in scikit-learn."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from importlib.metadata import distribution
from typing import Any

import numpy as np
from numpy.lib.stride_tricks import sliding_window_view

from coordinator.jobs.data import digits_split
from fleet_sim.datasets.data_set import DataSet, every_fifth
from sojourn.errors import DataError
from sojourn.protocol.task import Kind, Window
from sojourn.randomness import generator

WORDS, SEQUENCE_LENGTH = 32, 16
"""The number of tokens, and the length of the part of a sentence that a model sees."""
DIALECTS, SPEAKERS = 6, 36
SENTENCES, TESTED_SPEAKERS = 80, 20
"""Sentences per speaker for training, and speakers for testing."""
DIALECT_SHARE = 0.5
"""The share of word successors specific to a dialect; the rest is common to all dialects."""


def make_dialects(seed: int = 0) -> DataSet:
    """Generate sequences of 16 tokens out of 32; the target is the sequence shifted by one token.

    users are the speakers, domains their dialects. A grammar allows four successors of each word, half of them common
    to all dialects, half specific to one.
    """
    draw = generator(seed, "dialects")
    common, own = _grammar(draw, 1), _grammar(draw, DIALECTS)
    follows = np.cumsum((1.0 - DIALECT_SHARE) * common + DIALECT_SHARE * own, axis=2)
    speaker = np.repeat(np.arange(SPEAKERS), SENTENCES + TESTED_SPEAKERS)
    sentences = _sentences(follows, speaker % DIALECTS, draw)
    tested = np.tile(np.arange(SENTENCES + TESTED_SPEAKERS) >= SENTENCES, SPEAKERS)
    x, y = sentences[:, :-1], sentences[:, 1:]
    users = speaker[~tested]
    words = tuple(f"w{at}" for at in range(WORDS))
    return DataSet(
        "dialects", x[~tested], y[~tested], x[tested], y[tested], words, users, users % DIALECTS, kind="tokens"
    )


def _grammar(draw: np.random.Generator, count: int) -> np.ndarray:
    """Return the probabilities of each word's successors: four words with random shares."""
    rest = draw.random((count, WORDS, WORDS))
    may = np.argsort(rest, axis=2)[:, :, :4]
    grammar = np.zeros((count, WORDS, WORDS))
    np.put_along_axis(grammar, may, draw.dirichlet(np.ones(4), (count, WORDS)), axis=2)
    return grammar


def _sentences(follows: np.ndarray, dialect: np.ndarray, draw: np.random.Generator) -> np.ndarray:
    """Return a sentence for each entry of `dialect`, all generated in parallel; `follows` holds cumulative shares."""
    sentences = np.empty((len(dialect), SEQUENCE_LENGTH + 1), np.int64)
    sentences[:, 0] = draw.integers(0, WORDS, len(dialect))
    for at in range(1, SEQUENCE_LENGTH + 1):
        rows = follows[dialect, sentences[:, at - 1]]
        sentences[:, at] = np.minimum((draw.random((len(dialect), 1)) >= rows).sum(axis=1), WORDS - 1)
    return sentences


HOUSEHOLDS, HOURS, TESTED_HOURS = 40, 8 * 7 * 24, 2 * 7 * 24
DEFAULT_WINDOW = Window(48, 6, 6)
"""Two days are seen, six hours are predicted; a window starts every six hours."""
LIFESTYLES = {
    "workers": ((7.0, 1.0, 0.5), (19.5, 2.0, 1.6)),
    "at-home": ((9.0, 2.5, 0.8), (13.0, 2.0, 1.0), (19.0, 2.5, 0.9)),
    "night-shift": ((2.0, 3.0, 1.0), (15.0, 2.0, 1.1)),
    "heat-pump": ((4.0, 2.0, 2.0), (22.0, 2.0, 1.8)),
}
"""Lifestyles: peaks of the load on a working day, each with its hour, its width in hours, and its height in kW."""


def make_households(seed: int = 0, window: Window = DEFAULT_WINDOW) -> DataSet:
    """Generate windows of the load in kW: six weeks for training, the last two for testing; no window spans both.

    users are the households, domains their four lifestyles. A household has its own level, its own shift of about an
    hour, and its own weekend; the rest is noise that decays within some hours.
    """
    series = load_series(seed)
    long = window.steps + window.horizon
    if long > TESTED_HOURS:
        raise DataError(
            f"households: a window of {window.steps} + {window.horizon} hours is longer than the {TESTED_HOURS} hours "
            "for testing: lower task.steps or task.horizon"
        )
    seen, tested = (_windows(part, window) for part in (series[:, :-TESTED_HOURS], series[:, -TESTED_HOURS:]))
    users = np.repeat(np.arange(HOUSEHOLDS), len(seen[0]) // HOUSEHOLDS)
    ways = users % len(LIFESTYLES)
    return DataSet("households", *seen, *tested, (), users, ways, kind="forecast", names=("load",), window=window)


def load_series(seed: int) -> np.ndarray:
    """Return the load of each household and hour, as float32."""
    draw = generator(seed, "households")
    clock = np.arange(HOURS)[None] + draw.normal(0.0, 1.0, HOUSEHOLDS)[:, None]
    weekend = (np.arange(HOURS) // 24 % 7 >= 5)[None]
    lie_in, stay = draw.uniform(0.5, 3.0, HOUSEHOLDS)[:, None], draw.uniform(0.8, 1.6, HOUSEHOLDS)[:, None]
    of_day = np.where(weekend, clock - lie_in, clock) % 24.0
    load = np.full((HOUSEHOLDS, HOURS), 0.25)
    for at, peaks in enumerate(LIFESTYLES.values()):
        mine = slice(at, None, len(LIFESTYLES))
        for hour, width, height in peaks:
            away = np.abs(of_day[mine] - hour)
            load[mine] += height * np.exp(-np.square(np.minimum(away, 24.0 - away) / width))
    load *= np.where(weekend, stay, 1.0) * np.exp(draw.normal(0.0, 0.4, HOUSEHOLDS))[:, None]
    return np.maximum(load * (1.0 + _decaying_noise(draw, 0.15)), 0.02).astype(np.float32)


def _decaying_noise(draw: np.random.Generator, size: float) -> np.ndarray:
    """Return noise with an autocorrelation of 0.8 after an hour."""
    noise = draw.normal(0.0, size, (HOUSEHOLDS, HOURS))
    for hour in range(1, HOURS):
        noise[:, hour] = 0.8 * noise[:, hour - 1] + 0.6 * noise[:, hour]
    return noise


def _windows(series: np.ndarray, window: Window) -> tuple[np.ndarray, np.ndarray]:
    """Return past and future of all households: (N, steps, 1) and (N, horizon, 1)."""
    every = sliding_window_view(series, window.steps + window.horizon, axis=1)[:, :: window.stride]
    flat = every.reshape(-1, every.shape[2], 1)
    return np.ascontiguousarray(flat[:, : window.steps]), np.ascontiguousarray(flat[:, window.steps :])


TOWNS, HOUSES = 20, 300
MAX_PRICE = 5.0
"""The maximum price in 100,000, as in the Californian set."""


def make_houses(seed: int = 0) -> DataSet:
    """Generate 6,000 houses with eight standardised features; the domains are towns.

    A town has its own location, wealth and age. Prices rise with income, more steeply near the coast (in the west) and
    near the two cities, and vary with age. A linear model explains three quarters of the variance.
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
    y = np.clip(price, 0.15, MAX_PRICE).astype(np.float32)[:, None]
    return every_fifth(DataSet("houses", x, y, x[:0], y[:0], (), domains=town, kind="regression", names=("price",)))


def _squares(where: np.ndarray, cities: np.ndarray) -> np.ndarray:
    """Return the squared distances to each city."""
    return np.asarray(np.square(where[:, None] - cities[None]).sum(axis=2))


MACHINES, REGIMES, READINGS = 24, 6, 64
SEEN, TESTED_WINDOWS, FAULTY = 120, 20, 16
"""Windows per machine: for training, healthy ones for testing, and faulty ones."""
FAULTS = ("bearing", "imbalance", "looseness", "stuck")
"""Faults: a damaged bearing gives an impulse per turn; an imbalance doubles the shaft's vibration; a loose part
vibrates at half the speed; a stuck sensor repeats a reading.
"""


def make_pumps(seed: int = 0) -> DataSet:
    """Generate windows of 64 readings; all are healthy except for 16 of 36 per machine in the test part, with target 1.

    users are the machines, domains their six regimes: the speed of a shaft and the strength of its overtone, so that a
    model of one regime takes the others for faulty.
    """
    draw = generator(seed, "pumps")
    machine = np.arange(MACHINES)
    speed = 1.5 + 1.7 * (machine % REGIMES) + draw.uniform(-0.1, 0.1, MACHINES)
    overtone = draw.uniform(0.2, 0.4, MACHINES) + 0.6 * draw.random(REGIMES)[machine % REGIMES]
    whose = [np.repeat(machine, each) for each in (SEEN, TESTED_WINDOWS, FAULTY)]
    seen, tested, faulty = (_healthy(speed[at], overtone[at], draw) for at in whose)
    faulty = _with_faults(faulty, speed[whose[2]], draw)
    x_test = np.concatenate([tested, faulty])
    y_test = np.repeat(np.arange(2, dtype=np.int64), [len(tested), len(faulty)])
    users = whose[0].astype(np.int64)
    y = np.zeros(len(seen), np.int64)
    names = ("normal", "faulty")
    return DataSet("pumps", seen, y, x_test, y_test, names, users, users % REGIMES, kind="reconstruction")


def _healthy(speed: np.ndarray, overtone: np.ndarray, draw: np.random.Generator) -> np.ndarray:
    """Return a window for each speed (turns per window): the shaft and its overtone with random phases, and noise."""
    turns = np.arange(READINGS)[None] / READINGS * speed[:, None]
    strength = draw.uniform(0.8, 1.2, (len(speed), 1))
    phases = draw.random((2, len(speed), 1))
    wave = np.sin(2 * np.pi * (turns + phases[0]))
    wave += overtone[:, None] * np.sin(2 * np.pi * (2 * turns + phases[1]))
    return np.asarray(strength * wave + draw.normal(0.0, 0.1, wave.shape), np.float32)


def _with_faults(healthy: np.ndarray, speed: np.ndarray, draw: np.random.Generator) -> np.ndarray:
    """Return the same windows with faults, one kind after another, of different strengths."""
    at = np.arange(READINGS)[None]
    turns, strength = at / READINGS * speed[:, None], draw.uniform(0.6, 1.6, (len(speed), 1))
    since = (turns + draw.random((len(speed), 1))) % 1.0 / speed[:, None] * READINGS  # readings since the last impulse
    impulses = 2.0 * np.exp(-since / 2.0) * np.cos(2.4 * since)
    swings = np.sin(np.pi * (turns + draw.random((len(speed), 1))))
    begins = draw.integers(READINGS // 4, READINGS // 2, (len(speed), 1))
    stuck = np.where(at < begins, healthy, np.take_along_axis(healthy, begins, axis=1))
    kinds = (
        healthy + strength * impulses,
        healthy * (1.0 + strength),
        healthy + strength * swings,
        stuck,
    )
    return np.stack(kinds)[np.arange(len(speed)) % len(FAULTS), np.arange(len(speed))].astype(np.float32)


SEX_COLUMN = 1


def make_diabetes(seed: int = 0) -> DataSet:
    """442 patients (Efron et al., 2004), standardised features; the domains are the two sexes. Not random."""
    del seed
    # From its file: importing sklearn takes two seconds.
    folder = distribution("scikit-learn").locate_file("sklearn/datasets/data")
    try:
        raw = np.loadtxt(str(folder / "diabetes_data_raw.csv.gz"))
        target = np.loadtxt(str(folder / "diabetes_target.csv.gz"))
    except OSError as error:
        raise DataError(f"scikit-learn's diabetes cannot be read ({error}): install scikit-learn again") from error
    x = ((raw - raw.mean(axis=0)) / raw.std(axis=0)).astype(np.float32)
    y = target.astype(np.float32)[:, None]
    sex = raw[:, SEX_COLUMN].astype(np.int64)
    whole = DataSet("diabetes", x, y, x[:0], y[:0], (), domains=sex, kind="regression", names=("progression",))
    return every_fifth(whole)


ATTRIBUTES = {
    "even": (0, 2, 4, 6, 8),
    "prime": (2, 3, 5, 7),
    "loop": (0, 6, 8, 9),
    "above-four": (5, 6, 7, 8, 9),
    "threefold": (0, 3, 6, 9),
    "square": (0, 1, 4, 9),
}
"""The digits that have each attribute, by its name."""


def make_digit_attributes(seed: int = 0) -> DataSet:
    """1,797 images of 8x8; the domains are the digits. There is no randomness."""
    del seed
    table = np.array([[digit in those for those in ATTRIBUTES.values()] for digit in range(10)], np.float32)
    (x, digit), (x_test, digit_test) = digits_split(train=True), digits_split(train=False)
    return DataSet(
        "digit-attributes",
        x,
        table[digit],
        x_test,
        table[digit_test],
        tuple(ATTRIBUTES),
        domains=digit,
        kind="multilabel",
    )


@dataclass(frozen=True)
class MadeSet:
    """A generated set with its task and a description.

    make: a function of a seed, and of the window for a forecast. task, data, model: a job's default settings for such
    data, in the tables of these names.
    """

    kind: Kind
    about: str
    make: Callable[..., DataSet]
    task: Mapping[str, Any] = field(default_factory=dict)
    data: Mapping[str, Any] = field(default_factory=dict)
    model: Mapping[str, Any] = field(default_factory=dict)

    @property
    def tables(self) -> dict[str, dict[str, Any]]:
        """Return a job's default settings for such data, by table."""
        return {"task": {"kind": self.kind, **self.task}, "data": dict(self.data), "model": dict(self.model)}


MADE = {
    "diabetes": MadeSet(
        "regression",
        "disease progression of 442 patients (scikit-learn)",
        make_diabetes,
        data={"exemplars_per_class": 3},  # of 89 test samples
    ),
    "dialects": MadeSet(
        "tokens",
        "sentences of an artificial language, 36 speakers of 6 dialects",
        make_dialects,
        {"vocabulary": WORDS},
        {"dtype": "int64", "input": [SEQUENCE_LENGTH]},
        {"name": "gru"},
    ),
    "digit-attributes": MadeSet(
        "multilabel", "scikit-learn's digits: even, prime, with a loop ...", make_digit_attributes
    ),
    "households": MadeSet(
        "forecast",
        "hourly load of 40 households, with daily and weekly patterns",
        make_households,
        {"steps": DEFAULT_WINDOW.steps, "horizon": DEFAULT_WINDOW.horizon, "stride": DEFAULT_WINDOW.stride},
    ),
    "houses": MadeSet("regression", "prices of 6,000 houses in 20 towns, generated", make_houses),
    "pumps": MadeSet(
        "reconstruction",
        "vibration of 24 machines in 6 regimes, with faults to detect",
        make_pumps,
        model={"name": "autoencoder", "options": {"hidden": [48, 24]}},
    ),
}
"""The sets by name."""
