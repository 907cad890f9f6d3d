"""Detection of a CSV file's label column."""

from __future__ import annotations

from typing import Any

import pytest

from sojourn.data.csv_columns import find_columns
from sojourn.data.source import DataSettings
from sojourn.errors import DataError


@pytest.mark.parametrize(
    ("head", "settings", "at", "guessed", "has_header"),
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
def test_label_column_is_found_by_rule(
    head: str, settings: dict[str, Any], at: int, guessed: bool, has_header: bool
) -> None:
    found = find_columns(head.split(","), DataSettings(path="data.csv", **settings))
    assert (found.label, found.guessed, found.has_header) == (at, guessed, has_header)


@pytest.mark.parametrize(("label", "head"), [("kind", "a,b"), (0, "1,2"), (3, "1,2"), ("-1", "1,2"), ("²", "1,2")])
def test_missing_label_column_is_rejected_with_valid_values(label: str | int, head: str) -> None:
    with pytest.raises(DataError, match=r'"first", "last", or a number from 1 to 2'):
        find_columns(head.split(","), DataSettings(path="data.csv", label=label))


def test_error_does_not_repeat_a_row_of_data() -> None:
    with pytest.raises(DataError, match="2 columns and no header") as error:
        find_columns(["4711", "42"], DataSettings(path="data.csv", label="kind"))
    assert "4711" not in str(error.value)


def test_single_column_is_rejected_with_list_of_separators() -> None:
    with pytest.raises(DataError, match="a comma, a semicolon or a tab"):
        find_columns(["1 2 3"], DataSettings(path="data.csv"))
