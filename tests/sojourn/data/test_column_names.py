"""Columns of a table are matched by name, in every format and for every kind of task."""

from __future__ import annotations

import logging
from dataclasses import replace
from typing import TYPE_CHECKING, Any

import msgspec
import numpy as np
import pytest

from sojourn.data.column_names import ColumnNames, table_of
from sojourn.data.samples import SampleForm
from sojourn.data.source import DataSettings, load_data
from sojourn.errors import DataError
from sojourn.protocol.spec import MOST_COLUMNS, InputSpec, TableSpec
from sojourn.protocol.task import Window
from tests.sojourn.data.tasks import form_of

if TYPE_CHECKING:
    from pathlib import Path

    from sojourn.data.samples import Samples

TABLE = TableSpec(("temp", "rpm"), "state")
STATES = SampleForm(InputSpec((2,)), ("ok", "worn"), table=TABLE)
LOAD = replace(form_of("regression", (2,), (1,), names=("load",)), table=TABLE)
TWO = replace(form_of("regression", (2,), (2,), names=("load", "power")), table=TABLE)
SERIES = replace(
    form_of("forecast", (2, 2), (1, 1), window=Window(2, 1), names=("rpm",)),
    table=TableSpec(("temp", "rpm"), time="when"),
)
PUMP = replace(form_of("reconstruction", (2,), normal=("ok",)), table=TABLE)
SEVERAL = replace(form_of("multilabel", (2,), (2,), classes=("hot", "loud")), table=TABLE)


def load(folder: Path, text: str, form: SampleForm, **settings: Any) -> Samples:
    path = folder / "data.csv"
    path.write_text(text, encoding="utf-8")
    return load_data(DataSettings(path=str(path), **settings), form)


@pytest.mark.parametrize(
    ("text", "form", "settings", "y"),
    [
        ("temp,rpm,state\n1,2,ok\n3,4,worn\n", STATES, {}, [0, 1]),
        ("state,rpm,temp\nok,2,1\nworn,4,3\n", STATES, {}, [0, 1]),
        ("id,state,rpm,remark,temp\n7,ok,2,x,1\n8,worn,4,y,3\n", STATES, {}, [0, 1]),
        ("rpm,temp,zustand\n2,1,ok\n4,3,worn\n", STATES, {"label": "zustand"}, [0, 1]),
        ("rpm,temp,label\n2,1,ok\n4,3,worn\n", STATES, {}, [0, 1]),
        ("load,rpm,temp,state\n5,2,1,ok\n6,4,3,worn\n", STATES, {"label": "load"}, [0, 1]),
        ("load,rpm,temp,state\n5,2,1,ok\n6,4,3,worn\n", STATES, {"targets": ("load",)}, [0, 1]),
        ("load,rpm,temp,state\n5,2,1,ok\n6,4,3,worn\n", LOAD, {}, [[5], [6]]),
        ("load,rpm,temp,state\n5,2,1,ok\n6,4,3,worn\n", LOAD, {"label": "state"}, [[5], [6]]),
        ("kw,rpm,temp\n5,2,1\n6,4,3\n", LOAD, {"targets": ("kw",)}, [[5], [6]]),
        ("power,rpm,load,temp\n7,2,5,1\n8,4,6,3\n", TWO, {}, [[5, 7], [6, 8]]),
        ("power,rpm,load,temp\n7,2,5,1\n8,4,6,3\n", TWO, {"targets": ("load",)}, [[5, 7], [6, 8]]),
        ("rpm,temp,noise\n2,1,0\n4,3,0\n", PUMP, {}, [0, 0]),
        ("state,rpm,temp\nok,2,1\nok,4,3\nleak,0,0\n", PUMP, {}, [0, 0]),
        ("loud,rpm,hot,temp\n1,2,0,1\n0,4,1,3\n", SEVERAL, {}, [[0, 1], [1, 0]]),
    ],
)
def test_columns_are_matched_in_any_order(tmp_path: Path, text: str, form: Any, settings: Any, y: Any) -> None:
    samples = load(tmp_path, text, form, **settings)
    assert samples.x.tolist() == [[1, 2], [3, 4]]
    assert samples.y.tolist() == y


def test_series_channels_and_time_are_matched_by_name(tmp_path: Path) -> None:
    text = "rpm,noise,when,temp\n6,0,3,5\n2,0,1,1\n4,0,2,3\n"
    for settings in ({}, {"time": "when"}):
        samples = load(tmp_path, text, SERIES, **settings)
        assert np.asarray(samples.x).tolist() == [[[1, 2], [3, 4]]]
        assert np.asarray(samples.y).tolist() == [[[6]]]
    renamed = load(tmp_path, "speed,temp\n2,1\n4,3\n6,5\n", SERIES, targets=("speed",))
    assert np.asarray(renamed.x).tolist() == [[[1, 2], [3, 4]]]


@pytest.mark.parametrize(
    ("text", "form", "settings", "message"),
    [
        ("a,state\n1,ok\n", STATES, {}, r"the table lacks the columns 'temp' and 'rpm'; it has 'a', 'state'"),
        ("temp,a,state\n1,2,ok\n", STATES, {}, r"the table lacks the column 'rpm'; it has 'temp', 'a', 'state'"),
        ("Temp,rpm,state\n1,2,ok\n", STATES, {}, r"lacks the column 'temp'; it has 'Temp'"),
        ("temp,rpm,state\n1,2,ok\n", STATES, {"ignore": ("rpm",)}, r"lacks the column 'rpm'.*data\.ignore .* 'rpm'"),
        ("temp,rpm,temp,state\n1,2,3,ok\n", STATES, {}, r"the table has the column 'temp' twice"),
        ("rpm,temp,status\n2,1,ok\n", STATES, {}, r"lacks the column 'state', which the job predicts; .*data\.label"),
        ("rpm,temp\n2,1\n", STATES, {}, r"lacks the column 'state', which the job predicts"),
        ("rpm,temp,state\n2,1,ok\n", STATES, {"label": "temp", "ignore": ("state",)}, r"lacks the column 'state'"),
        ("rpm,temp,kw\n2,1,5\n", LOAD, {}, r"column 'load', which the job predicts"),
        ("rpm,temp,load\n2,1,5\n", TWO, {}, r"column 'power', which the job predicts"),
        ("1,2,ok\n3,4,worn\n", STATES, {}, r"has no column names, .*'temp', 'rpm'.*add a header line.*by_position"),
        ("temp,rpm,state\n1,2,ok\n", STATES, {"header": False}, r"has no column names"),
        ("temp,rpm\n1,2\n3,4\n5,6\n", replace(SERIES, table=TableSpec(("rpm", "x"))), {}, r"lacks the column 'x'"),
        (
            "temp,rpm,state\nhot,2,ok\ncold,4,worn\n",
            STATES,
            {},
            r"the job needs numbers in 'temp', but this table has text",
        ),
        (
            "a,b,state\n1,2,ok\n",
            replace(STATES, table=TableSpec()),
            {},
            r"the job does not name its columns.*columns = ",
        ),
    ],
)
def test_tables_that_do_not_match_the_job_are_rejected(
    tmp_path: Path, text: str, form: Any, settings: Any, message: str
) -> None:
    with pytest.raises(DataError, match=message):
        load(tmp_path, text, form, **settings)


def test_table_without_header_is_read_by_position_if_allowed(tmp_path: Path) -> None:
    for table in (TableSpec(("temp", "rpm"), "state", by_position=True), TableSpec(by_position=True)):
        assert load(tmp_path, "1,2,ok\n3,4,worn\n", replace(STATES, table=table)).x.tolist() == [[1, 2], [3, 4]]
    named = replace(STATES, table=TableSpec(("temp", "rpm"), "state", by_position=True))
    assert load(tmp_path, "state,rpm,temp\nok,2,1\nworn,4,3\n", named).x.tolist() == [[1, 2], [3, 4]]


def test_unused_columns_are_logged_once(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    caplog.set_level(logging.INFO)
    load(tmp_path, "id,state,rpm,remark,temp\n7,ok,2,x,1\n8,worn,4,y,3\n", STATES)
    (line,) = (record.message for record in caplog.records if "does not use" in record.message)
    assert line.endswith("the job does not use the columns 'id', 'remark'")


def save(folder: Path, *names: str, **arrays: Any) -> DataSettings:
    found: dict[str, Any] = {"x": [[2, 1], [4, 3]], "y": ["ok", "worn"], **arrays}
    if names:
        found["feature_names"] = np.array(names)
    np.savez(folder / "data.npz", **found)
    return DataSettings(path=str(folder / "data.npz"))


def test_npz_columns_are_matched_by_name(tmp_path: Path) -> None:
    assert load_data(save(tmp_path, "rpm", "temp"), STATES).x.tolist() == [[1, 2], [3, 4]]
    assert load_data(save(tmp_path, "temp", "rpm"), STATES).x.tolist() == [[2, 1], [4, 3]]
    wide = save(tmp_path, "rpm", "id", "temp", x=[[2, 9, 1], [4, 9, 3]])
    assert load_data(wide, STATES).x.tolist() == [[1, 2], [3, 4]]
    with pytest.raises(DataError, match="the table lacks the column 'temp'; it has 'rpm', 'x'"):
        load_data(save(tmp_path, "rpm", "x"), STATES)
    with pytest.raises(DataError, match=r"no column names, .*array `feature_names`.*by_position"):
        load_data(save(tmp_path), STATES)
    with pytest.raises(DataError, match="names 3 columns, but its samples have 2"):
        load_data(save(tmp_path, "a", "b", "c"), STATES)
    free = replace(STATES, table=TableSpec(TABLE.columns, by_position=True))
    assert load_data(save(tmp_path), free).x.tolist() == [[2, 1], [4, 3]]
    x = np.arange(8.0).reshape(4, 2)
    np.savez(tmp_path / "series.npz", x=x, channels=["rpm", "temp"])
    found = load_data(DataSettings(path=str(tmp_path / "series.npz")), SERIES)
    assert np.asarray(found.x).tolist() == [[[1, 0], [3, 2]], [[3, 2], [5, 4]]]
    assert np.asarray(found.y).tolist() == [[[4]], [[6]]]


@pytest.mark.parametrize(
    "names",
    [
        {"columns": ["a"] * 2},
        {"columns": ["a" * 201]},
        {"columns": [""]},
        {"columns": ["a"], "label": ""},
        {"columns": [str(at) for at in range(MOST_COLUMNS + 1)]},
        {"columns": [1]},
    ],
)
def test_invalid_column_names_from_a_peer_are_rejected(names: Any) -> None:
    with pytest.raises(msgspec.ValidationError):
        msgspec.convert(names, TableSpec)


@pytest.mark.parametrize(
    ("found", "message"),
    [
        (ColumnNames(("a", "")), "a column has no name"),
        (ColumnNames(("a", "b", "a")), "has the column 'a' twice"),
        (ColumnNames(("a" * 201,)), "longer than 200 characters"),
        (ColumnNames(tuple(map(str, range(MOST_COLUMNS + 1)))), "a job can name 65,536"),
    ],
)
def test_column_names_unfit_for_a_kit_are_rejected(found: ColumnNames, message: str) -> None:
    with pytest.raises(DataError, match=message):
        table_of("test.csv", found)
