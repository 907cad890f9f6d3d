"""What data is taken for, and what looks odd about it: every mistake is named, and honest data is not doubted."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import numpy as np
import pytest
from PIL import Image

from sojourn.data.source import DataSettings
from sojourn.data.summary import survey
from sojourn.protocol.task import Window
from tests.sojourn.data.tasks import form_of

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


def test_a_quantity_is_told_with_its_range(tmp_path: Path) -> None:
    y = np.arange(30) / 4
    found = look(npz(tmp_path, x=NUMBERS, y=y))
    assert found.facts[1:] == ["1 quantity: 0 to 7.25", "targets: the array y"]
    assert odd(found) == []
    assert found.classes == ()
    two = look(npz(tmp_path, x=NUMBERS, y=np.stack([y, 1 - y], axis=1), target_names=np.array(["load", "heat"])))
    assert two.facts[1] == "2 quantities: load 0 to 7.25, heat -6.25 to 1"
    assert two.summary.shared(()).lines()[1] == "2 quantities"
    assert two.summary.shared(("range",)).lines()[1] == "2 quantities: 0 to 7.25, -6.25 to 1"
    assert two.summary.shared(("classes",)).lines()[1] == "2 quantities: load, heat"


def test_columns_that_the_owner_names_are_quantities(tmp_path: Path) -> None:
    found = look(csv(tmp_path, [[at, 2 * at % 7, at % 3] for at in range(20)], ["a", "kw", "b"]), targets=("kw",))
    assert found.facts == [
        "20 samples of shape 2, float32, values 0 to 19",
        "1 quantity: kw 0 to 6",
        "targets: columns that data.targets names",
    ]


def test_labels_with_fractions_are_told_as_a_quantity_and_how_it_is_predicted(tmp_path: Path) -> None:
    found = look(csv(tmp_path, [[at % 5, at % 4, at / 8] for at in range(20)], ["a", "b", "label"]))
    assert found.facts[1] == "1 quantity: 0 to 2.375"
    assert odd(found) == ["labels are numbers with fractions, as of a measurement"]
    assert 'a job with [task] kind = "regression" predicts them as they are' in found.summary.warnings[0]


def test_a_target_that_is_always_the_same(tmp_path: Path) -> None:
    found = look(npz(tmp_path, x=NUMBERS, y=np.full(30, 0.5)))
    assert odd(found) == ["a target is always the same"]
    assert "'column 1' is 0.5 in all of 30 samples" in found.warnings[0]


def test_a_series_is_told_with_its_gaps(tmp_path: Path) -> None:
    rows = [[m, t, t % 5, m] for m in (1, 2) for t in range(40) if t != 30]
    found = look(csv(tmp_path, rows, ["m", "t", "v", "w"]), time="t", series="m")
    (fact,) = found.facts
    assert fact.startswith("78 steps of 2 channels in 2 series, float32, values 0 to 4; 2 gaps, the longest stretch")
    assert fact.endswith("without one has 30 steps")
    assert found.warnings == ("left out: windows over 2 gaps in time",)
    assert found.summary.shared(()).lines()[0].startswith("78 steps of 2 channels in 2 series, float32; 2 gaps")


def test_a_channel_that_may_be_the_time(tmp_path: Path) -> None:
    rows = [["a", t, t % 5] for t in range(40)]
    assert odd(look(csv(tmp_path, rows, ["m", "t", "v"]), series="m")) == ["a channel only rises, as time does"]


def test_text_is_told_by_its_size(tmp_path: Path) -> None:
    (tmp_path / "a.txt").write_bytes(b"hello")
    assert look(str(tmp_path / "a.txt")).facts == ["5 bytes of text"]
    (tmp_path / "b.txt").write_bytes(b"world!")
    assert look(str(tmp_path), format="text").facts == ["11 bytes of text in 2 files"]


def test_data_without_labels_is_no_fault(tmp_path: Path) -> None:
    found = look(npz(tmp_path, x=NUMBERS))
    assert not found.summary.fault
    assert found.facts[1].startswith("labels: no array 'y', only x; an NPZ with arrays x and y is needed")
    for at in range(3):
        picture(tmp_path / "flat" / f"{at}.png", colour=at)
    flat = look(str(tmp_path / "flat"))
    assert flat.facts[0] == "3 samples of shape 1 x 3 x 4, uint8, values 0 to 2"
    assert flat.summary.class_count == 0
    (tmp_path / "flat" / "targets.csv").write_text("file,age\n0.png,3\n1.png,5\n", encoding="utf-8")
    assert look(str(tmp_path / "flat")).facts[:2] == [
        "2 samples of shape 1 x 3 x 4, uint8, values 0 to 1",
        "2 classes: 3 (1), 5 (1)",
    ]


def test_data_is_looked_at_for_a_task_where_one_is_known(tmp_path: Path) -> None:
    path = csv(tmp_path, [[at % 7, at % 5, at % 3] for at in range(20)], ["a", "b", "load"])
    settings = DataSettings(path=path)
    whole = survey(settings, form_of("regression", (2,), names=("load",)).task or None)
    assert whole.facts[1] == "1 quantity: load 0 to 2"
    assert whole.classes == ()
    assert (
        "no column 'heat'" in survey(settings, form_of("regression", (2,), names=("heat",)).task or None).summary.fault
    )
    window = form_of("forecast", (4, 3), window=Window(4, 1)).task or None
    assert survey(settings, window).facts[0].startswith("20 steps of 3 channels, float32, values 0 to 6; 0 gaps")
    beyond = form_of("forecast", (40, 3), window=Window(40, 1)).task or None
    assert "a window needs 40 that are seen" in survey(settings, beyond).summary.fault
    whole_numbers = npz(tmp_path, x=NUMBERS, y=np.arange(30))
    found = survey(DataSettings(path=whole_numbers), form_of("regression", (2,)).task or None)
    assert (found.facts[1], found.warnings) == ("1 quantity: 0 to 29", ())
