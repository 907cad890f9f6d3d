"""What a program may give to predict from: whatever layout its training files have, by the same rules."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import pytest
from PIL import Image

from edge_agent.inference.inputs import of_csv, read_inputs, rows_of
from sojourn.data.samples import SampleForm
from sojourn.data.source import DataSettings
from sojourn.errors import DataError
from sojourn.protocol.spec import InputSpec

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
def test_layouts_of_a_grey_picture(x: Any, one: bool) -> None:
    rows, single = rows_of(x, GREY, "digits")
    assert single == one
    assert rows.shape[1:] == (1, 2, 3)
    assert (rows[-1] == PIXELS).all()


@pytest.mark.parametrize(
    ("x", "one"), [(PICTURE, True), (PICTURE[np.newaxis], False), (PICTURE.transpose(2, 0, 1), True)]
)
def test_colours_stand_last_or_first(x: Any, one: bool) -> None:
    rows, single = rows_of(x, COLOUR, "cars")
    assert single == one
    assert (rows[0] == PICTURE.transpose(2, 0, 1)).all()


@pytest.mark.parametrize("x", [np.zeros((3, 2)), np.zeros(7), np.zeros((2, 2, 2, 2)), 5, []])
def test_other_shapes_are_refused_with_what_is_taken(x: Any) -> None:
    with pytest.raises(DataError, match=r"digits: samples of shape \(1, 2, 3\) are expected, one or many"):
        rows_of(x, GREY, "digits")


def test_paths_are_read_as_the_command_reads_them(tmp_path: Path) -> None:
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


def test_rows_of_a_csv_in_a_request() -> None:
    flat = SampleForm(InputSpec((2,)), ("a", "b"))
    assert of_csv(b"x1,x2,label\n1,2,a\n3,4,b\n", flat).tolist() == [[1, 2], [3, 4]]
    assert of_csv(b"1;2\r\n3;4\r\n", flat).tolist() == [[1, 2], [3, 4]]
    with pytest.raises(DataError, match="line 2"):
        of_csv(b"1,2\n3,x\n", flat)
    with pytest.raises(DataError, match="cannot be read as CSV"):
        of_csv(b"\xff\xfe", flat)
