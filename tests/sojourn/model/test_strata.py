"""Strata: a sample belongs to the same stratum on every machine."""

from __future__ import annotations

from typing import Any

import msgspec
import numpy as np
import pytest

from coordinator.jobs.task_data import strata_in
from sojourn.model.kit_rules import task_errors
from sojourn.model.strata import counts_by_stratum, members, numbers, strata_of, width
from sojourn.protocol.spec import InputSpec
from sojourn.protocol.task import Strata, Target, TaskSpec, Window

ONE = TaskSpec("regression", (1,), Target((1,)), Strata(3, edges=(0.0, 10.0)), loss="mse")
TWO = TaskSpec("regression", (2,), Target((2,)), Strata(2, centres=((0.0, 0.0), (2.0, 400.0)), scale=(1.0, 100.0)))
SHAPES = TaskSpec("reconstruction", (10,), None, Strata(1))
TOKENS = TaskSpec("tokens", (4, 16), Target((4,), "int64"), Strata(1))
SERIES = TaskSpec("forecast", (2, 2), Target((2, 2)), Strata(1), window=Window(3, 2))
X = np.zeros((4, 3), np.float32)


def test_one_quantity_is_divided_into_ranges() -> None:
    y = np.array([[-5.0], [0.0], [0.1], [10.1]], np.float32)
    assert strata_of(ONE, X, y).tolist() == [0, 0, 1, 2]
    assert counts_by_stratum(ONE, X, y).tolist() == [2, 1, 1]


def test_several_quantities_use_nearest_scaled_centre() -> None:
    y = np.array([[0.9, 10.0], [2.0, 10.0], [0.0, 390.0]], np.float32)
    assert strata_of(TWO, X[:3], y).tolist() == [0, 0, 1]


def test_multilabel_sample_belongs_to_several_strata() -> None:
    task = TaskSpec("multilabel", (2,), Target((2,)), Strata(2))
    y = np.array([[1, 1], [0, 1], [0, 0]], np.float32)
    assert members(task, X[:3], y).tolist() == [[True, True], [False, True], [False, False]]
    assert counts_by_stratum(task, X[:3], y).tolist() == [1, 2]
    assert strata_of(task, X[:3], y).tolist() == [0, 1, 0]


def test_each_task_kind_has_its_own_stratum_features() -> None:
    parts = numbers(SHAPES, np.arange(10.0).reshape(1, 10), np.zeros(1))
    assert parts.tolist() == [[0.5, 2.5, 4.0, 5.0, 6.0, 7.0, 8.0, 9.0]]
    shares = numbers(TOKENS, np.array([[0, 1, 2, 15]]), np.zeros((1, 4)))
    assert shares.tolist() == [[0.5, 0.25, 0, 0, 0, 0, 0, 0.25]]
    means = numbers(SERIES, np.zeros((1, 3, 2)), np.array([[[1.0, 10.0], [3.0, 30.0]]]))
    assert means.tolist() == [[2.0, 20.0]]
    spec = InputSpec((10,))
    assert [width(task, spec) for task in (SHAPES, TOKENS, SERIES, ONE, TWO)] == [8, 8, 2, 1, 2]


def test_ranges_are_balanced_and_clusters_are_recovered() -> None:
    y = np.arange(100, dtype=np.float32).reshape(-1, 1)
    x = np.zeros((100, 1))
    found = msgspec.structs.replace(ONE, strata=strata_in(ONE, x, y, 4, 1))
    assert counts_by_stratum(found, x, y).tolist() == [25, 25, 25, 25]
    same = strata_in(ONE, x, np.minimum(y, 1.0), 4, 1)  # two values: two strata
    assert same.count == 2
    draw = np.random.default_rng(3)
    middles = np.array([[0, 0], [5, 0], [0, 900]])
    which = draw.integers(0, 3, 90)
    pairs = (middles[which] + draw.standard_normal((90, 2)) * [0.1, 10]).astype(np.float32)
    strata = strata_in(TWO, np.zeros((90, 1)), pairs, 3, 7)
    assert strata == strata_in(TWO, np.zeros((90, 1)), pairs, 3, 7)
    groups = strata_of(msgspec.structs.replace(TWO, strata=strata), np.zeros((90, 1)), pairs)
    assert len({(int(a), int(b)) for a, b in zip(which, groups, strict=True)}) == 3


@pytest.mark.parametrize(
    ("changes", "reason"),
    [
        ({"strata": Strata(3, edges=(0.0,))}, "3 strata with 1 edges"),
        ({"strata": Strata(3, edges=(1.0, 1.0))}, "do not increase"),
        ({"strata": Strata(3, edges=(1.0, float("nan")))}, "not valid numbers"),
        ({"strata": Strata(5000)}, "5000 strata"),
        ({"strata": Strata(2, centres=((1.0,), (2.0, 3.0)), scale=(1.0,))}, "different sizes"),
        ({"strata": Strata(2, centres=((1.0, 1.0), (2.0, 3.0)), scale=(1.0, 0.0))}, "not valid numbers"),
        ({"strata": Strata(2, centres=((1.0, 1.0), (2.0, 3.0)), scale=(1.0, 1.0))}, "by 2 numbers"),
        ({"blind": 0.0}, "blind"),
        ({"blind": float("inf")}, "blind"),
        ({"names": ("a" * 2000,)}, "too long"),
        ({"output": (2,)}, "targets that do not fit"),
        ({"target": Target((1,), "int64")}, "targets that do not fit"),
        ({"target": None}, "targets that do not fit"),
        ({"window": Window(3, 1)}, "a window"),
        ({"ranges": ((1.0, 0.0),)}, "ranges"),
        ({"output": (1 << 30,), "target": Target((1 << 30,))}, "1,073,741,824 numbers"),
    ],
)
def test_invalid_task_from_a_peer_is_rejected(changes: dict[str, Any], reason: str) -> None:
    spec = InputSpec((3,))
    assert not [*task_errors(ONE, spec, 0)]
    assert any(reason in text for text in task_errors(msgspec.structs.replace(ONE, **changes), spec, 0))
