"""What is written as TOML is read back the same."""

from __future__ import annotations

import datetime as dt
import math
import tomllib

import pytest
from hypothesis import given
from hypothesis import strategies as st

from sojourn.errors import Fault
from sojourn.toml import dumps

TEXT = st.text(st.characters(exclude_categories=["Cs"]))
PLAIN = st.booleans() | st.integers(-(2**63), 2**63 - 1) | st.floats(allow_nan=False) | TEXT
VALUES = st.recursive(PLAIN, lambda inner: st.lists(inner) | st.dictionaries(TEXT, inner), max_leaves=12)


@given(st.dictionaries(TEXT, VALUES))
def test_round_trip(table: dict[str, object]) -> None:
    assert tomllib.loads(dumps(table)) == table


def test_it_looks_as_a_person_would_write_it() -> None:
    table = {"name": "first", "data": {"test": "digits"}, "rounds": 5, "a": {"b": {"c": True}}, "empty": {}}
    text = 'name = "first"\nrounds = 5\n\n[data]\ntest = "digits"\n\n[a.b]\nc = true\n\n[empty]\n'
    assert dumps(table) == text


def test_odd_values() -> None:
    table = {"nan": math.nan, "when": dt.datetime(2024, 2, 3, 4, 5, 6, tzinfo=dt.UTC), "day": dt.date(2024, 2, 3)}
    read = tomllib.loads(dumps(table))
    assert math.isnan(read["nan"])
    assert (read["when"], read["day"]) == (table["when"], table["day"])


def test_what_toml_has_no_word_for() -> None:
    with pytest.raises(Fault, match="NoneType"):
        dumps({"nothing": None})
