"""CSV files with quantities, several labels, ignored columns, and text in numeric columns."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import pytest

from sojourn.data.source import DataSettings, load_data
from sojourn.data.summary import survey
from sojourn.errors import DataError
from tests.sojourn.data.tasks import form_of
from tests.sojourn.data.test_data import kit

if TYPE_CHECKING:
    from pathlib import Path

    from sojourn.data.samples import Samples

ONE = form_of("regression", (2,), (1,), names=("load",))
BARE = form_of("regression", (2,), (1,))
TWO = form_of("regression", (2,), (2,), names=("load", "temp"))
ROWS = "1,2,3.5\n4,5,6.5\n"


def load(folder: Path, text: str, form: Any, **settings: Any) -> Samples:
    path = folder / "data.csv"
    path.write_text(text, encoding="utf-8")
    return load_data(DataSettings(path=str(path), **settings), form)


@pytest.mark.parametrize(
    ("text", "form", "settings", "x", "y"),
    [
        ("a,b,load\n" + ROWS, ONE, {}, [[1, 2], [4, 5]], [[3.5], [6.5]]),
        ("load,a,b\n" + ROWS, ONE, {}, [[2, 3.5], [5, 6.5]], [[1], [4]]),
        ("a,kw,b\n" + ROWS, ONE, {"targets": ("kw",)}, [[1, 3.5], [4, 6.5]], [[2], [5]]),
        ("a,kw,b\n" + ROWS, ONE, {"label": "kw"}, [[1, 3.5], [4, 6.5]], [[2], [5]]),
        ("a,target,b\n" + ROWS, ONE, {}, [[1, 3.5], [4, 6.5]], [[2], [5]]),
        ("a,kw,b\n" + ROWS, BARE, {"targets": (2,)}, [[1, 3.5], [4, 6.5]], [[2], [5]]),
        (ROWS, ONE, {}, [[1, 2], [4, 5]], [[3.5], [6.5]]),
        (ROWS, BARE, {"label": "first"}, [[2, 3.5], [5, 6.5]], [[1], [4]]),
        ("temp,a,load,b\n1,2,3,4\n", TWO, {}, [[2, 4]], [[3, 1]]),
        ("c,a,kw,b\n1,2,3,4\n", TWO, {"targets": ("kw", "c")}, [[2, 4]], [[3, 1]]),
        ("1,2,3,4\n", TWO, {}, [[1, 2]], [[3, 4]]),
        ("id,a,b,load\nx7,1,2,3\n", ONE, {"ignore": ("id",)}, [[1, 2]], [[3]]),
        ("when,a,b,load\nmonday,1,2,3\n", ONE, {"ignore": (1,)}, [[1, 2]], [[3]]),
        ("a,b,load\n1,2,32\n3,4,212\n", ONE, {"target_scale": "32..212 to 0..100"}, [[1, 2], [3, 4]], [[0], [100]]),
    ],
)
def test_target_columns_are_selected(tmp_path: Path, text: str, form: Any, settings: Any, x: Any, y: Any) -> None:
    samples = load(tmp_path, text, form, **settings)
    assert samples.x.tolist() == x
    assert samples.y.tolist() == y


def test_rows_with_empty_or_nan_cells_are_skipped(tmp_path: Path) -> None:
    samples = load(tmp_path, "a,b,load\n1,2,\n1,2,nan\n1,2,1e999\n,2,3\n1,2,oops\n5,6,7\n", ONE)
    assert samples.x.tolist() == [[5, 6]]
    assert samples.y.tolist() == [[7]]
    assert samples.skipped == (
        "line 6: 'oops' is not a number",
        "3 samples whose target is missing, NaN or infinite",
        "1 samples with NaN or infinite values",
    )


@pytest.mark.parametrize(
    ("text", "form", "settings", "message"),
    [
        ("a,b,kw\n" + ROWS, ONE, {}, r"no column 'load', which the job predicts, only 'a', 'b', 'kw': set the col"),
        ("a,b,load\n" + ROWS, TWO, {}, r"no column 'temp', which the job predicts"),
        ("a,b,load\n" + ROWS, TWO, {"targets": ("load",)}, r"data\.targets names 1 columns .*'load', 'temp': name one"),
        ("a,b,load\n" + ROWS, TWO, {"targets": ("load", 3)}, r"names a column of .* twice"),
        ("a,b,c\n" + ROWS, ONE, {"targets": ("kw",)}, r"no column 'kw', but 3 columns and the header a, b, c"),
        ("a,b,load\n" + ROWS, ONE, {"ignore": ("id",)}, r"no column 'id'"),
        ("a,load\n1,2\n", ONE, {}, r"samples of shape \(1,\), but the model expects \(2,\)"),
        ("1,2\n", TWO, {}, r"has 2 columns, but the job predicts 2 columns"),
        ("a,b,load\n1,2,low\n3,4,high\n", ONE, {}, r"'load' holds text where numbers are needed"),
        (
            "who,at,load,b\nme,here,1,2\n",
            ONE,
            {},
            r"'who', 'at' hold text.*data\.ignore = \[\"who\", \"at\"",
        ),
        ("load\n1\n", ONE, {}, "1 column"),
        ("a,b,load\n", ONE, {}, "has no samples"),
        ("\x00\x01\x02,\x03\n\x00,\x01\n", BARE, {}, "hold text where"),
    ],
)
def test_csv_files_that_do_not_match_the_job_are_rejected(
    tmp_path: Path, text: str, form: Any, settings: Any, message: str
) -> None:
    with pytest.raises(DataError, match=message):
        load(tmp_path, text, form, **settings)


def test_classifier_error_names_text_column_to_ignore(tmp_path: Path) -> None:
    text = "day,a,b,c,d,label\nmon,1,2,3,4,cat\ntue,5,6,7,8,dog\n"
    with pytest.raises(DataError, match=r"'day' holds text.*data\.ignore = \[\"day\"\]"):
        load(tmp_path, text, kit())
    assert load(tmp_path, text, kit(), ignore=("day",)).y.tolist() == [0, 1]
    assert load(tmp_path, text, kit(), time="day", label="last").y.tolist() == [0, 1]


def test_fractional_labels_are_not_classes(tmp_path: Path) -> None:
    text = "a,b,c,d,label\n1,2,3,4,0.5\n5,6,7,8,1.5\n"
    with pytest.raises(DataError, match=r"has no sample of the job's classes"):
        load(tmp_path, text, kit())


SEVERAL = form_of("multilabel", (2,), (3,), classes=("red", "round", "big"))


@pytest.mark.parametrize(
    ("text", "settings"),
    [
        ("a,b,red,round,big\n1,2,1,0,1\n3,4,0,0,0\n", {}),
        ("big,a,b,round,red\n1,1,2,0,1\n0,3,4,0,0\n", {}),
        ("a,b,r,o,g\n1,2,1,0,1\n3,4,0,0,0\n", {"targets": ("r", "o", "g"), "class_names": ("red", "round", "big")}),
        ("a,b,label\n1,2,red;big\n3,4,\n", {}),
        ("a;b;kinds\n1;2;red|big\n3;4;\n", {"label": "kinds"}),
    ],
)
def test_several_labels_per_row_are_read(tmp_path: Path, text: str, settings: Any) -> None:
    samples = load(tmp_path, text, SEVERAL, **settings)
    assert samples.x.tolist() == [[1, 2], [3, 4]]
    assert samples.y.tolist() == [[1, 0, 1], [0, 0, 0]]


PUMP = form_of("reconstruction", (2,), normal=("ok",))


@pytest.mark.parametrize(
    ("text", "settings", "kept"),
    [
        ("a,b\n1,2\n3,4\n", {}, 2),
        ("1,2\n3,4\n", {}, 2),
        ("a,b,label\n1,2,ok\n3,4,leak\n", {}, 1),
        ("a,b,state\n1,2,ok\n3,4,leak\n", {}, 1),
        ("a,b,state\n1,2,ok\n3,4,leak\n", {"ignore": ("state",)}, 2),
        ("a,b,state\n1,2,ok\n3,4,leak\n", {"label": "state"}, 1),
        ("a,b,label\n1,2,\n3,4,leak\n", {}, 1),
    ],
)
def test_reconstruction_accepts_rows_with_or_without_labels(
    tmp_path: Path, text: str, settings: Any, kept: int
) -> None:
    samples = load(tmp_path, text, PUMP, **settings)
    assert samples.x.tolist() == [[1, 2], [3, 4]][:kept]


def test_advice_names_the_label_column_instead_of_ignoring_it(tmp_path: Path) -> None:
    (tmp_path / "data.csv").write_text("temp,state,rpm\n1,ok,2\n3,worn,4\n", encoding="utf-8")
    fault = survey(DataSettings(path=str(tmp_path / "data.csv"))).summary.fault
    assert "'state' holds text where numbers are needed, and no column is named like a label" in fault
    assert 'set data.label = "state" (--label state)' in fault
