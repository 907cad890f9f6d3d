"""Inputs for predictions: the layouts of training files, by the same rules."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from PIL import Image

from edge_agent.inference.inputs_and_outputs import of_csv, read_inputs, rows_of
from sojourn.data.samples import SampleForm
from sojourn.data.source import DataSettings
from sojourn.errors import DataError
from sojourn.protocol.spec import InputSpec, TableSpec
from sojourn.protocol.task import Window
from tests.sojourn.data.tasks import form_of

GREY, COLOUR = SampleForm(InputSpec((1, 2, 3)), ("a", "b")), SampleForm(InputSpec((3, 2, 4)), ("a", "b"))
PIXELS = np.arange(6, dtype=np.uint8).reshape(2, 3)
PICTURE = np.arange(24, dtype=np.uint8).reshape(2, 4, 3)


@pytest.mark.parametrize(
    ("x", "one"),
    [
        (PIXELS, True),
        (PIXELS[np.newaxis], True),
        (PIXELS[..., np.newaxis], True),
        (PIXELS.ravel(), True),
        (PIXELS.tolist(), True),
        (PIXELS[np.newaxis, np.newaxis], False),
        (PIXELS.reshape(1, 6), False),
        (np.stack([PIXELS] * 5), False),
        (np.stack([PIXELS.ravel()] * 5), False),
    ],
)
def test_grey_image_layouts_are_accepted(x: Any, one: bool) -> None:
    rows, single = rows_of(x, GREY, "digits")
    assert single == one
    assert rows.shape[1:] == (1, 2, 3)
    assert (rows[-1] == PIXELS).all()


@pytest.mark.parametrize(
    ("x", "one"), [(PICTURE, True), (PICTURE[np.newaxis], False), (PICTURE.transpose(2, 0, 1), True)]
)
def test_colour_channels_can_be_last_or_first(x: Any, one: bool) -> None:
    rows, single = rows_of(x, COLOUR, "cars")
    assert single == one
    assert (rows[0] == PICTURE.transpose(2, 0, 1)).all()


@pytest.mark.parametrize("x", [np.zeros((3, 2)), np.zeros(7), np.zeros((2, 2, 2, 2)), 5, []])
def test_other_shapes_are_refused_with_the_expected_shape(x: Any) -> None:
    with pytest.raises(DataError, match=r"expected one or more samples of shape \(1, 2, 3\)"):
        rows_of(x, GREY, "digits")


def test_paths_are_read_like_the_predict_command(tmp_path: Path) -> None:
    Image.fromarray(PIXELS).save(tmp_path / "a.png")
    for path in (tmp_path / "a.png", str(tmp_path / "a.png")):
        rows, one = rows_of(path, GREY, "digits")
        assert one
        assert (rows[0] == PIXELS).all()
    assert rows_of([tmp_path / "a.png", tmp_path / "a.png"], GREY, "digits")[0].shape == (2, 1, 2, 3)
    (tmp_path / "rows.csv").write_text("7,0,1,2,3,4,5\n8,0,1,2,3,4,5\n")
    settings = DataSettings(path=str(tmp_path / "rows.csv"), label="first", scale="0..5 to 0..1")
    rows, one = read_inputs(settings, GREY)
    assert not one
    assert rows[1].ravel().tolist() == pytest.approx([0, 0.2, 0.4, 0.6, 0.8, 1])
    with pytest.raises(DataError, match="does not exist"):
        rows_of(tmp_path / "no.png", GREY, "digits")


def test_csv_rows_in_a_request_are_parsed() -> None:
    flat = SampleForm(InputSpec((2,)), ("a", "b"))
    assert of_csv(b"x1,x2,label\n1,2,a\n3,4,b\n", flat).tolist() == [[1, 2], [3, 4]]
    assert of_csv(b"1;2\r\n3;4\r\n", flat).tolist() == [[1, 2], [3, 4]]
    with pytest.raises(DataError, match="line 2"):
        of_csv(b"1,2\n3,x\n", flat)
    with pytest.raises(DataError, match="cannot be read as CSV"):
        of_csv(b"\xff\xfe", flat)


TEMPERATURE = form_of("forecast", (2, 2), (1, 1), window=Window(2, 1), names=("a",))


def test_forecast_uses_the_end_of_a_series(tmp_path: Path) -> None:
    file = tmp_path / "series.csv"
    file.write_text("t,a,b\n3,30,31\n1,10,11\n2,20,21\n", encoding="utf-8")
    rows, one = read_inputs(DataSettings(path=str(file), time="t"), TEMPERATURE)
    assert rows.tolist() == [[[20, 21], [30, 31]]]
    assert not one
    file.write_text("m,a,b\nx,1,2\ny,5,6\nx,3,4\ny,7,8\n", encoding="utf-8")
    rows, _ = read_inputs(DataSettings(path=str(file), series="m"), TEMPERATURE)
    assert rows.tolist() == [[[1, 2], [3, 4]], [[5, 6], [7, 8]]]
    assert of_csv(b"a,b\n1,2\n3,4\n5,6\n", TEMPERATURE).tolist() == [[[3, 4], [5, 6]]]


@pytest.mark.parametrize("text", ["t,a,b\n1,1,1\n2,2,2\n9,3,3\n", "t,a,b\n1,1,1\n"])
def test_too_few_steps_since_the_last_gap_is_an_error(tmp_path: Path, text: str) -> None:
    file = tmp_path / "series.csv"
    file.write_text(text, encoding="utf-8")
    with pytest.raises(DataError, match="1 steps since the last gap; the model needs 2"):
        read_inputs(DataSettings(path=str(file), time="t"), TEMPERATURE)


def test_array_can_be_one_window_many_or_a_longer_series() -> None:
    long = np.arange(10.0).reshape(5, 2)
    assert rows_of(long[:2], TEMPERATURE, "x")[0].tolist() == [long[:2].tolist()]
    assert rows_of(np.stack([long[:2], long[1:3]]), TEMPERATURE, "x")[0].shape == (2, 2, 2)
    rows, one = rows_of(long, TEMPERATURE, "x")
    assert (rows.tolist(), one) == ([long[3:].tolist()], True)
    with pytest.raises(DataError, match="has 3 channels"):
        rows_of(np.zeros((5, 3)), TEMPERATURE, "x")


def test_text_is_continued_from_its_end(tmp_path: Path) -> None:
    form = form_of("tokens", (3,), (3,), dtype="int64", output=(3, 256))
    (tmp_path / "a.txt").write_bytes(b"abcde")
    rows, one = read_inputs(DataSettings(path=str(tmp_path / "a.txt")), form)
    assert (rows.tolist(), one) == ([[99, 100, 101]], True)
    assert rows_of([1, 2, 3, 4], form, "x")[0].tolist() == [[2, 3, 4]]
    (tmp_path / "a.txt").write_bytes(b"ab")
    with pytest.raises(DataError, match="has 2 tokens, the model needs 3"):
        read_inputs(DataSettings(path=str(tmp_path / "a.txt")), form)


def test_target_columns_may_be_in_the_file(tmp_path: Path) -> None:
    form = form_of("regression", (2,), (2,), names=("load", "heat"))
    file = tmp_path / "rows.csv"
    cases: tuple[tuple[str, Any], ...] = (
        ("a,load,b,heat\n1,9,2,9\n", {}),
        ("a,b\n1,2\n", {}),
        ("1,2,9,9\n", {}),
        ("id,a,b\nx,1,2\n", {"ignore": ("id",)}),
    )
    for text, settings in cases:
        file.write_text(text, encoding="utf-8")
        assert read_inputs(DataSettings(path=str(file), **settings), form)[0].tolist() == [[1, 2]]
    file.write_text("1,2,3\n", encoding="utf-8")
    with pytest.raises(DataError, match="has 3 columns; the model expects 2 numbers, optionally with the targets"):
        read_inputs(DataSettings(path=str(file)), form)


NAMED = replace(form_of("regression", (2,), (1,), names=("load",)), table=TableSpec(("temp", "rpm"), "state"))
CHANNELS = replace(TEMPERATURE, table=TableSpec(("a", "b"), time="t"))


def test_rows_are_matched_by_name() -> None:
    cases: tuple[tuple[Any, list[list[float]], bool], ...] = (
        ({"rpm": 2, "temp": 1.5}, [[1.5, 2]], True),
        ([{"rpm": 2, "temp": 1}, {"temp": np.float32(3), "rpm": True}], [[1, 2], [3, 1]], False),
        ([{"rpm": 2, "temp": 1, "load": None, "state": "ok"}], [[1, 2]], False),
        ([[1, 2]], [[1, 2]], False),
    )
    for x, rows, one in cases:
        found, single = rows_of(x, NAMED, "pumps")
        assert (found.tolist(), single) == (rows, one)
    steps = [{"t": at, "b": at + 1, "a": at} for at in range(3)]
    found, single = rows_of(steps, CHANNELS, "series")
    assert (found.tolist(), single) == ([[[1, 2], [2, 3]]], True)


@pytest.mark.parametrize(
    ("x", "form", "message"),
    [
        ({"temp": 1}, NAMED, r"the row lacks the column 'rpm'; it has 'temp'"),
        ({}, NAMED, r"the row lacks the columns 'temp' and 'rpm'; it has none"),
        ([{"temp": 1, "rpm": 2}, {"Temp": 1}], NAMED, r"row 2 lacks the columns 'temp' and 'rpm'; it has 'Temp'"),
        (
            {"temp": 1, "rpm": 2, "rmp": 3},
            NAMED,
            r"the row has the column 'rmp', which the model does not use: its columns",
        ),
        ({"temp": 1, "rpm": "2"}, NAMED, r"'rpm' is '2', but the model needs a number"),
        ({"temp": 1, "rpm": None}, NAMED, r"'rpm' is 'None', but the model needs a number"),
        ([{"temp": 1, "rpm": 2}, [1, 2]], NAMED, r"row 2 has no column names"),
        ({"temp": 1, "rpm": 2}, GREY, r"the model has no column names"),
    ],
)
def test_unknown_column_names_are_refused(x: Any, form: Any, message: str) -> None:
    with pytest.raises(DataError, match=message):
        rows_of(x, form, "pumps")


def test_file_columns_are_matched_by_name(tmp_path: Path) -> None:
    file = tmp_path / "rows.csv"
    for text in ("rpm,temp\n2,1\n", "state,rpm,id,temp,load\nok,2,9,1,7\n", "temp,rpm\n1,2\n"):
        file.write_text(text, encoding="utf-8")
        assert rows_of(file, NAMED, "pumps")[0].tolist() == [[1, 2]]
        assert of_csv(text.encode(), NAMED).tolist() == [[1, 2]]
    for text, message in (
        ("rpm,x\n2,1\n", "the table lacks the column 'temp'; it has 'rpm', 'x'"),
        ("1,2\n", "has no column names, .*add a header line"),
        ("rpm,temp\n2,cold\n", "line 2: expected 2 numbers"),
    ):
        with pytest.raises(DataError, match=message):
            of_csv(text.encode(), NAMED)
    free = replace(NAMED, table=TableSpec(("temp", "rpm"), by_position=True))
    assert of_csv(b"1,2\n", free).tolist() == [[1, 2]]
    assert of_csv(b"b,note,a\n1,x,2\n3,x,4\n", CHANNELS).tolist() == [[[2, 1], [4, 3]]]
    np.savez(tmp_path / "rows.npz", x=[[2, 1]], feature_names=["rpm", "temp"])
    assert rows_of(tmp_path / "rows.npz", NAMED, "pumps")[0].tolist() == [[1, 2]]
