"""What data is taken for, and what looks odd about it: every mistake is named, and honest data is not doubted."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import numpy as np
import pytest
from PIL import Image

from sojourn.data.source import DataSettings
from sojourn.data.summary import survey

if TYPE_CHECKING:
    from collections.abc import Iterable
    from pathlib import Path

    from sojourn.data.data_survey import DataSurvey

RANDOM = np.random.default_rng(5)
ROWS = 120
DIGITS = np.arange(ROWS) % 10
PIXELS = RANDOM.integers(1, 16, (ROWS, 9))
PIXELS[:, 0] = 0
PIXELS[:, -1] = np.where(np.arange(ROWS) % 12 == 0, PIXELS[:, -1], 0)
"""As in pictures of digits: the last pixel is nearly always 0."""
NUMBERS = np.arange(60.0).reshape(30, 2)
NAMES = [f"p{at}" for at in range(9)]


def csv(folder: Path, rows: Iterable[Iterable[Any]], head: Iterable[str] = ()) -> str:
    path = folder / "data.csv"
    lines = [",".join(map(str, row)) for row in ([head, *rows] if head else rows)]
    path.write_text("\n".join(lines) + "\n", encoding="utf-8")
    return str(path)


def npz(folder: Path, **arrays: Any) -> str:
    np.savez(folder / "data.npz", **arrays)
    return str(folder / "data.npz")


def look(path: str, **settings: Any) -> DataSurvey:
    return survey(DataSettings(path=path, **settings))


def odd(found: DataSurvey) -> list[str]:
    """What is odd, without the details; and that others read the same."""
    words = [text.partition(" (")[0] for text in found.warnings]
    assert [text.partition("; to do")[0] for text in found.summary.warnings] == words
    return words


FIRST, LAST = np.column_stack([DIGITS, PIXELS]), np.column_stack([PIXELS, DIGITS])


def test_what_is_understood_of_a_csv_file(tmp_path: Path) -> None:
    found = look(csv(tmp_path, LAST, [*NAMES, "digit"]), class_names=tuple("abcdefghij"))
    assert found.facts == [
        "120 samples of shape 9, float32, values 0 to 15",
        "10 classes: " + ", ".join(f"{letter} (12)" for letter in "abcdefghij"),
        "labels: column 'digit', the last of 10 columns, as none is named label, labels, class, target or y",
    ]
    assert odd(found) == []


@pytest.mark.parametrize("few", [slice(None), DIGITS == 4, (DIGITS == 3) | (DIGITS == 8)])
def test_labels_that_are_named_are_not_doubted_however_few(tmp_path: Path, few: Any) -> None:
    assert odd(look(csv(tmp_path, LAST[few], [*NAMES, "label"]))) == []
    assert odd(look(csv(tmp_path, FIRST[few]), label="first")) == []


def test_a_file_with_its_labels_first_is_not_trained_on_its_last_pixel_unseen(tmp_path: Path) -> None:
    found = look(csv(tmp_path, FIRST))
    assert odd(found)[0] == "labels look like values or pixels"
    assert found.warnings[0].endswith('the first column looks like labels: set data.label = "first" (--label first)')
    assert look(csv(tmp_path, FIRST), label="first").summary.class_count == 10


def test_also_where_the_last_pixel_is_always_the_same(tmp_path: Path) -> None:
    found = look(csv(tmp_path, np.column_stack([DIGITS, PIXELS[:, :8], np.zeros(ROWS, int)])))
    assert odd(found) == ["nearly all labels are the same"]
    assert "(--label first)" in found.summary.warnings[0]


@pytest.mark.parametrize(
    ("labels", "what"),
    [
        (np.arange(ROWS), "nearly every sample has a label of its own, as if labels were ids"),
        (np.arange(ROWS) % 40 * 1000, "labels look like measurements"),
        ([f"{value % 7 / 8:.3f}" for value in range(ROWS)], "labels are numbers with fractions, as of a measurement"),
        (["no"] * (ROWS - 10) + ["yes"] * 10, "nearly all labels are the same"),
        ([["Cat", "cat", "dog"][at % 3] for at in range(ROWS)], "classes have nearly the same name"),
        (["cat", "dog"] * (ROWS // 2 - 1) + ["cat", "owl"], "some classes have one sample only"),
    ],
)
def test_labels_that_are_none(tmp_path: Path, labels: Iterable[Any], what: str) -> None:
    rows = [[*pixels, label] for pixels, label in zip(PIXELS, labels, strict=True)]
    assert odd(look(csv(tmp_path, rows, [*NAMES, "label"]))) == [what]


def test_a_header_that_was_taken_for_data_and_data_taken_for_a_header(tmp_path: Path) -> None:
    counted = csv(tmp_path, LAST, [str(at) for at in range(10)])
    assert odd(look(counted))[0] == "the first row looks like a header, and was taken for data"
    assert look(counted, header=True).summary.samples == ROWS
    broken = csv(tmp_path, LAST, ["1", "2", "?", "4", "5", "6", "7", "8", "9", "3"])
    assert odd(look(broken)) == ["the first row was taken for a header, and most of it is numbers"]
    assert look(broken, header=False).warnings == ("left out: line 1: '?' is not a number",)


def test_a_column_that_counts_the_rows(tmp_path: Path) -> None:
    rows = np.column_stack([np.arange(ROWS), LAST])
    assert odd(look(csv(tmp_path, rows, ["", *NAMES, "digit"]))) == [
        "the first column counts the rows, and is trained on"
    ]


@pytest.mark.parametrize(
    ("x", "what"),
    [
        (np.ones((30, 2, 2)), "all samples are alike"),
        (np.where(NUMBERS == 7, np.nan, NUMBERS), "values are missing, NaN or infinite"),
    ],
)
def test_values_that_say_nothing(tmp_path: Path, x: Any, what: str) -> None:
    assert odd(look(npz(tmp_path, x=x, y=np.arange(30) % 3))) == [what]


def test_values_beyond_what_travels_are_told_as_the_largest(tmp_path: Path) -> None:
    x = np.array([[1e300], [-1e300], [np.inf]])
    summary = look(npz(tmp_path, x=x, y=np.arange(3) % 2)).summary
    assert (summary.low, summary.high) == (-1e38, 1e38)


def test_data_that_cannot_be_read(tmp_path: Path) -> None:
    assert look(str(tmp_path / "no.csv")).facts == [f"no data: {tmp_path / 'no.csv'} does not exist"]
    (tmp_path / "empty").mkdir()
    assert "holds no folders" in look(str(tmp_path / "empty")).summary.fault
    (tmp_path / "empty" / "cat").mkdir()
    assert "holds no samples: put some there" in look(str(tmp_path / "empty")).summary.fault


def picture(path: Path, size: tuple[int, int] = (4, 3), colour: Any = 7) -> None:
    path.parent.mkdir(parents=True, exist_ok=True)
    Image.new("L", size, colour).save(path)


def test_images_are_counted_and_some_are_opened(tmp_path: Path) -> None:
    for at in range(6):
        picture(tmp_path / ("cat" if at % 3 else "dog") / f"{at}.png", colour=10 * at)
    found = look(str(tmp_path), scale="0..255 to 0..1")
    assert found.facts == [
        "6 samples of shape 1 x 3 x 4, uint8, values 0 to 0.196078",
        "2 classes: cat (4), dog (2)",
        "labels: the names of the folders",
    ]
    picture(tmp_path / "dog" / "large.png", (9, 9))
    (tmp_path / "dog" / "broken.png").write_bytes(b"no image")
    (tmp_path / "owl").mkdir()
    found = look(str(tmp_path))
    assert found.facts[0] == "8 samples of different shapes, uint8, values 0 to 50"
    assert odd(found) == ["some folders hold no image", "some images are broken"]


def test_folders_of_domains_are_not_taken_for_classes_unseen(tmp_path: Path) -> None:
    for domain in ("art", "photo"):
        for name in ("cat", "dog"):
            picture(tmp_path / domain / name / "1.png")
    assert odd(look(str(tmp_path))) == ["folders look like domains or parts, not like classes"]
    assert odd(look(str(tmp_path / "art"))) == []
    picture(tmp_path / "art" / "beside.png")
    assert odd(look(str(tmp_path))) == []


def test_what_others_read_holds_no_value_and_no_name(tmp_path: Path) -> None:
    for common, odd_ones in ((119, "nearly all labels are the same"), (60, "some classes have one sample only")):
        rows = [[*pixels, f"secret{at // common + at // 119}"] for at, pixels in enumerate(PIXELS)]
        told = look(csv(tmp_path, rows)).summary.shared(())
        assert "secret" not in str(told)
        assert [text.partition(";")[0] for text in told.warnings] == [odd_ones]
