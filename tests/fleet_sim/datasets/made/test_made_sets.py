"""Generated data sets: their contents, their reproducibility by seed, and that models can learn from them."""

from __future__ import annotations

import numpy as np
import pytest

from coordinator.jobs.data import digits_split
from coordinator.jobs.settings_tables import TaskSettings
from fleet_sim.datasets import DataSet, load
from fleet_sim.datasets.built_in_sets import (
    ATTRIBUTES,
    FAULTS,
    FAULTY,
    HOURS,
    HOUSEHOLDS,
    MACHINES,
    MADE,
    TESTED_HOURS,
    load_series,
)
from fleet_sim.datasets.partition import By, Split, split
from sojourn.errors import ConfigError, DataError

SHAPES = {
    "diabetes": ((353, 10), (353, 1), 89),
    "dialects": ((2880, 16), (2880, 16), 720),
    "digit-attributes": ((1437, 1, 8, 8), (1437, 6), 360),
    "households": ((6400, 48, 1), (6400, 6, 1), 1920),
    "houses": ((4800, 8), (4800, 1), 1200),
    "pumps": ((2880, 64), (2880,), 864),
}


def arrays(data: DataSet) -> list[np.ndarray]:
    return [data.x_train, data.y_train, data.x_test, data.y_test]


@pytest.mark.parametrize("name", MADE)
def test_set_has_the_documented_shapes(name: str) -> None:
    data = load(name)
    x, y, tested = SHAPES[name]
    assert (data.name, data.kind) == (name, MADE[name].kind)
    assert (data.x_train.shape, data.y_train.shape) == (x, y)
    assert (data.x_test.shape, data.y_test.shape) == ((tested, *x[1:]), (tested, *y[1:]))
    for groups in (data.users, data.domains):
        assert groups is None or (groups.shape == (x[0],) and groups.dtype == np.int64)
    wanted = np.int64 if name == "dialects" else np.float32
    assert data.x_train.dtype == data.x_test.dtype == wanted
    assert all(np.isfinite(each).all() for each in arrays(data))


@pytest.mark.parametrize("name", MADE)
def test_seed_determines_the_whole_set(name: str) -> None:
    one, same, other = (load(name, seed=seed) for seed in (0, 0, 1))
    assert all(map(np.array_equal, arrays(one), arrays(same)))
    drawn = name not in ("diabetes", "digit-attributes")
    assert np.array_equal(one.x_train, other.x_train) is not drawn


def test_set_name_ignores_case_and_separators() -> None:
    assert load("Digit_Attributes").name == "digit-attributes"


def explained(data: DataSet) -> float:
    """Return how much of the variance of the test part's first target a linear model explains."""
    one = [np.c_[x.reshape(len(x), -1), np.ones(len(x))] for x in (data.x_train, data.x_test)]
    y, y_test = (each.reshape(len(each), -1)[:, 0].astype(np.float64) for each in (data.y_train, data.y_test))
    guess = one[1] @ np.linalg.lstsq(one[0], y, rcond=None)[0]
    return 1.0 - float(np.mean(np.square(guess - y_test)) / y_test.var())


def test_houses_are_only_partly_explained_by_a_linear_model() -> None:
    assert 0.7 < explained(load("houses")) < 0.9
    assert 0.3 < explained(load("diabetes")) < 0.6


def test_households_have_daily_and_weekly_cycles() -> None:
    series = load_series(0)
    assert series.shape == (HOUSEHOLDS, HOURS)

    def alike(hours: int) -> float:
        return float(np.mean([np.corrcoef(row[:-hours], row[hours:])[0, 1] for row in series]))

    assert alike(24) > 0.6 > 0.2 > alike(12)
    assert alike(168) > alike(72)
    assert explained(load("households")) > 0.6


def test_training_windows_never_reach_into_test_hours() -> None:
    data, series = load("households"), load_series(0)
    assert np.array_equal(data.x_train[0, :, 0], series[0, :48])
    assert np.array_equal(data.y_train[0, :, 0], series[0, 48:54])
    each = len(data.x_train) // HOUSEHOLDS
    last = 6 * (each - 1)
    assert np.array_equal(data.y_train[each - 1, :, 0], series[0, last + 48 : last + 54])
    assert last + 54 <= HOURS - TESTED_HOURS
    assert np.array_equal(data.x_test[0, :, 0], series[0, HOURS - TESTED_HOURS : HOURS - TESTED_HOURS + 48])


def test_job_task_sets_the_window_length() -> None:
    data = load("households", task=TaskSettings(kind="forecast", steps=24, horizon=2, stride=24))
    assert (data.x_train.shape, data.y_train.shape) == ((40 * 41, 24, 1), (40 * 41, 2, 1))
    with pytest.raises(DataError, match=r"a window of 400 \+ 1 hours is longer than the 336 hours"):
        load("households", task=TaskSettings(kind="forecast", steps=400))


def test_attributes_match_the_digit() -> None:
    data, (_, digits) = load("digit-attributes"), digits_split(train=True)
    assert data.classes == tuple(ATTRIBUTES)
    for at, those in enumerate(ATTRIBUTES.values()):
        assert np.array_equal(data.y_train[:, at] > 0, np.isin(digits, those))


def test_faults_occur_only_in_the_test_part_and_are_detectable() -> None:
    data = load("pumps")
    assert not data.y_train.any()
    assert int(data.y_test.sum()) == MACHINES * FAULTY
    healthy, faulty = data.x_test[data.y_test == 0], data.x_test[data.y_test == 1]
    means, directions = _subspace(data.x_train)

    def left(x: np.ndarray) -> np.ndarray:
        rest = x - means
        return np.asarray(np.square(rest - rest @ directions.T @ directions).mean(axis=1))

    kind = np.arange(len(faulty)) % len(FAULTS)
    for at in range(len(FAULTS)):
        assert np.mean(left(faulty[kind == at])[:, None] > left(healthy)[None]) > 0.75, FAULTS[at]


def _subspace(x: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
    """Return the mean of samples, and their 24 principal directions."""
    return x.mean(axis=0), np.linalg.svd(x - x.mean(axis=0), full_matrices=False)[2][:24]


def test_machine_of_another_regime_looks_faulty() -> None:
    data = load("pumps")
    assert data.domains is not None
    means, directions = _subspace(data.x_train[data.domains == 0])

    def left(regime: int) -> float:
        rest = data.x_train[data.domains == regime] - means
        return float(np.square(rest - rest @ directions.T @ directions).mean())

    assert min(left(regime) for regime in range(1, 6)) > 3 * left(0)


def test_tokens_have_few_successors_and_dialects_differ() -> None:
    data = load("dialects")
    assert np.array_equal(data.x_train[:, 1:], data.y_train[:, :-1])
    assert data.domains is not None
    pairs = np.zeros((6, 32, 32))
    dialect = np.repeat(data.domains, 16)
    np.add.at(pairs, (dialect, data.x_train.ravel(), data.y_train.ravel()), 1)
    assert ((pairs > 0).sum(axis=2) <= 8).all()
    assert ((pairs.sum(axis=0) > 0).sum(axis=1) > 8).all()


@pytest.mark.parametrize(
    ("name", "by", "devices"),
    [("pumps", "user", 24), ("pumps", "domain", 6), ("households", "user", 40), ("dialects", "domain", 6)],
)
def test_natural_splits_are_available(name: str, by: By, devices: int) -> None:
    data = load(name)
    parts = split(Split(by=by), data, devices, 0)
    groups = data.users if by == "user" else data.domains
    assert groups is not None
    assert all(len(np.unique(groups[part])) == 1 for part in parts)


@pytest.mark.parametrize("name", MADE)
def test_every_set_can_be_split_by_strata(name: str) -> None:
    data = load(name)
    parts = split(Split(alpha=0.3), data, 5, 0)
    assert sum(map(len, parts)) == len(data.y_train)
    assert len({len(part) for part in parts}) > 1


def test_any_set_can_be_used_for_reconstruction() -> None:
    data = load("houses", task=TaskSettings(kind="reconstruction"))
    assert data.kind == "reconstruction"
    assert data.y_train.tolist() == [0] * 4800
    with pytest.raises(ConfigError, match=r"the task of houses is regression, but task\.kind is 'tokens'"):
        load("houses", task=TaskSettings(kind="tokens"))
