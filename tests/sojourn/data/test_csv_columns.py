"""The one rule by which a CSV file's label column is found."""

from __future__ import annotations

from typing import Any

import pytest

from sojourn.data.csv_columns import columns_of
from sojourn.data.source import DataSettings
from sojourn.errors import DataError


@pytest.mark.parametrize(
    ("head", "settings", "at", "guessed", "headed"),
    [
        ("1,2,3", {}, 2, True, False),
        ("1,2,cat", {}, 2, True, False),
        ("a,b,c", {}, 2, True, True),
        ("label,b,c", {}, 0, False, True),
        ("a,Label,c", {}, 1, False, True),
        ("a,CLASS,c", {}, 1, False, True),
        ("target,class,c", {}, 1, False, True),
        ("y,a,b", {}, 0, False, True),
        ("x,y,kind", {}, 2, True, True),
        ("1,2,label", {}, 2, False, True),
        ("1,2,label", {"header": False}, 2, True, False),
        ("1,2,3", {"label": "first"}, 0, False, False),
        ("1,2,3", {"label": "last"}, 2, False, False),
        ("9,8,7", {"label": 2}, 1, False, False),
        ("9,8,7", {"label": "2"}, 1, False, False),
        ("2,1,0", {"label": "2"}, 0, False, True),
        ("a,b,label", {"label": "b"}, 1, False, True),
        ("first,b,label", {"label": "first"}, 0, False, True),
        ("b,first,label", {"label": "first"}, 1, False, True),
        ("1,2,3", {"header": True}, 2, True, True),
        (" a , label ,c", {}, 1, False, True),
    ],
)
def test_where_the_labels_stand(head: str, settings: dict[str, Any], at: int, guessed: bool, headed: bool) -> None:
    found = columns_of(head.split(","), DataSettings(path="data.csv", **settings))
    assert (found.at, found.guessed, found.headed) == (at, guessed, headed)


@pytest.mark.parametrize(("label", "head"), [("kind", "a,b"), (0, "1,2"), (3, "1,2"), ("-1", "1,2"), ("²", "1,2")])
def test_columns_that_are_not_there(label: str | int, head: str) -> None:
    with pytest.raises(DataError, match=r'"first", "last", or a number from 1 to 2'):
        columns_of(head.split(","), DataSettings(path="data.csv", label=label))


def test_a_row_of_data_is_not_repeated_in_an_error() -> None:
    with pytest.raises(DataError, match="2 columns and no header") as error:
        columns_of(["4711", "42"], DataSettings(path="data.csv", label="kind"))
    assert "4711" not in str(error.value)


def test_one_column_is_too_few() -> None:
    with pytest.raises(DataError, match="a comma, a semicolon or a tab"):
        columns_of(["1 2 3"], DataSettings(path="data.csv"))
