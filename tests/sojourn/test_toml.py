"""Tables written as TOML are read back unchanged."""

from __future__ import annotations

import datetime as dt
import math
import tomllib

import pytest
from hypothesis import given
from hypothesis import strategies as st

from sojourn.errors import Fault
from sojourn.settings import dumps

TEXT = st.text(st.characters(exclude_categories=["Cs"]))
PLAIN = st.booleans() | st.integers(-(2**63), 2**63 - 1) | st.floats(allow_nan=False) | TEXT
VALUES = st.recursive(PLAIN, lambda inner: st.lists(inner) | st.dictionaries(TEXT, inner), max_leaves=12)


@given(st.dictionaries(TEXT, VALUES))
def test_tables_round_trip(table: dict[str, object]) -> None:
    assert tomllib.loads(dumps(table)) == table


def test_output_looks_handwritten() -> None:
    table = {"name": "first", "data": {"test": "digits"}, "rounds": 5, "a": {"b": {"c": True}}, "empty": {}}
    text = 'name = "first"\nrounds = 5\n\n[data]\ntest = "digits"\n\n[a.b]\nc = true\n\n[empty]\n'
    assert dumps(table) == text


def test_nan_dates_and_times_round_trip() -> None:
    table = {"nan": math.nan, "when": dt.datetime(2024, 2, 3, 4, 5, 6, tzinfo=dt.UTC), "day": dt.date(2024, 2, 3)}
    read = tomllib.loads(dumps(table))
    assert math.isnan(read["nan"])
    assert (read["when"], read["day"]) == (table["when"], table["day"])


def test_none_is_rejected() -> None:
    with pytest.raises(Fault, match="NoneType"):
        dumps({"nothing": None})
