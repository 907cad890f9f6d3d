"""Data summaries and warnings: each mistake is reported, and valid data causes no warning."""

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

    from sojourn.protocol.data_summary import DataSurvey

RANDOM = np.random.default_rng(5)
ROWS = 120
DIGITS = np.arange(ROWS) % 10
PIXELS = RANDOM.integers(1, 16, (ROWS, 9))
PIXELS[:, 0] = 0
PIXELS[:, -1] = np.where(np.arange(ROWS) % 12 == 0, PIXELS[:, -1], 0)
"""Values like in images of digits: the last pixel is nearly always 0."""
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
    """Return the warnings without details, after a check that the shared summary has the same ones."""
    words = [text.partition(" (")[0] for text in found.warnings]
    assert [text.partition("; to do")[0] for text in found.summary.warnings] == words
    return words


FIRST, LAST = np.column_stack([DIGITS, PIXELS]), np.column_stack([PIXELS, DIGITS])


def test_csv_summary_lists_samples_classes_and_label_column(tmp_path: Path) -> None:
    found = look(csv(tmp_path, LAST, [*NAMES, "digit"]), class_names=tuple("abcdefghij"))
    assert found.facts == [
        "120 samples of shape 9, float32, values 0 to 15",
        "10 classes: " + ", ".join(f"{letter} (12)" for letter in "abcdefghij"),
        "labels: column 'digit', the last of 10 columns, because none is named label, labels, class, target or y",
    ]
    assert odd(found) == []


@pytest.mark.parametrize("few", [slice(None), DIGITS == 4, (DIGITS == 3) | (DIGITS == 8)])
def test_named_label_column_raises_no_warning(tmp_path: Path, few: Any) -> None:
    assert odd(look(csv(tmp_path, LAST[few], [*NAMES, "label"]))) == []
    assert odd(look(csv(tmp_path, FIRST[few]), label="first")) == []


def test_labels_in_first_column_are_suggested(tmp_path: Path) -> None:
    found = look(csv(tmp_path, FIRST))
    assert odd(found)[0] == "labels look like values or pixels"
    assert found.warnings[0].endswith('the first column looks like labels: set data.label = "first" (--label first)')
    assert look(csv(tmp_path, FIRST), label="first").summary.class_count == 10


def test_first_column_labels_are_suggested_if_last_is_constant(tmp_path: Path) -> None:
    found = look(csv(tmp_path, np.column_stack([DIGITS, PIXELS[:, :8], np.zeros(ROWS, int)])))
    assert odd(found) == ["nearly all labels are the same"]
    assert "(--label first)" in found.summary.warnings[0]


@pytest.mark.parametrize(
    ("labels", "what"),
    [
        (np.arange(ROWS), "nearly every sample has a different label, as if labels were ids"),
        (np.arange(ROWS) % 40 * 1000, "labels look like measurements"),
        ([f"{value % 7 / 8:.3f}" for value in range(ROWS)], "labels are numbers with fractions, like measurements"),
        (["no"] * (ROWS - 10) + ["yes"] * 10, "nearly all labels are the same"),
        ([["Cat", "cat", "dog"][at % 3] for at in range(ROWS)], "class names differ only in case or spaces"),
        (["cat", "dog"] * (ROWS // 2 - 1) + ["cat", "owl"], "some classes have only one sample"),
    ],
)
def test_implausible_labels_raise_a_warning(tmp_path: Path, labels: Iterable[Any], what: str) -> None:
    rows = [[*pixels, label] for pixels, label in zip(PIXELS, labels, strict=True)]
    assert odd(look(csv(tmp_path, rows, [*NAMES, "label"]))) == [what]


def test_misread_header_raises_a_warning(tmp_path: Path) -> None:
    counted = csv(tmp_path, LAST, [str(at) for at in range(10)])
    assert odd(look(counted))[0] == "the first row looks like a header, but is read as data"
    assert look(counted, header=True).summary.samples == ROWS
    broken = csv(tmp_path, LAST, ["1", "2", "?", "4", "5", "6", "7", "8", "9", "3"])
    assert odd(look(broken)) == ["the first row is read as a header, but most of it is numbers"]
    assert look(broken, header=False).warnings == ("skipped: line 1: '?' is not a number",)


def test_row_number_column_raises_a_warning(tmp_path: Path) -> None:
    rows = np.column_stack([np.arange(ROWS), LAST])
    assert odd(look(csv(tmp_path, rows, ["", *NAMES, "digit"]))) == [
        "the first column counts the rows and is used as a feature"
    ]


@pytest.mark.parametrize(
    ("x", "what"),
    [
        (np.ones((30, 2, 2)), "all samples are identical"),
        (np.where(NUMBERS == 7, np.nan, NUMBERS), "values are missing, NaN or infinite"),
    ],
)
def test_uninformative_values_raise_a_warning(tmp_path: Path, x: Any, what: str) -> None:
    assert odd(look(npz(tmp_path, x=x, y=np.arange(30) % 3))) == [what]


def test_range_is_clipped_to_largest_transmittable_value(tmp_path: Path) -> None:
    x = np.array([[1e300], [-1e300], [np.inf]])
    summary = look(npz(tmp_path, x=x, y=np.arange(3) % 2)).summary
    assert (summary.low, summary.high) == (-1e38, 1e38)


def test_unreadable_data_is_reported_as_fault(tmp_path: Path) -> None:
    assert look(str(tmp_path / "no.csv")).facts == [f"no data: {tmp_path / 'no.csv'} does not exist"]
    (tmp_path / "empty").mkdir()
    assert "has no folders" in look(str(tmp_path / "empty")).summary.fault
    (tmp_path / "empty" / "cat").mkdir()
    assert "has no samples: add some" in look(str(tmp_path / "empty")).summary.fault


def picture(path: Path, size: tuple[int, int] = (4, 3), colour: Any = 7) -> None:
    path.parent.mkdir(parents=True, exist_ok=True)
    Image.new("L", size, colour).save(path)


def test_image_summary_counts_images_and_broken_ones(tmp_path: Path) -> None:
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
    assert odd(found) == ["some folders contain no image", "some images are broken"]


def test_domain_folders_raise_a_warning(tmp_path: Path) -> None:
    for domain in ("art", "photo"):
        for name in ("cat", "dog"):
            picture(tmp_path / domain / name / "1.png")
    assert odd(look(str(tmp_path))) == ["folders look like domains or splits, not like classes"]
    assert odd(look(str(tmp_path / "art"))) == []
    picture(tmp_path / "art" / "loose.png")
    assert odd(look(str(tmp_path))) == []


def test_shared_summary_contains_no_values_or_names(tmp_path: Path) -> None:
    for common, odd_ones in ((119, "nearly all labels are the same"), (60, "some classes have only one sample")):
        rows = [[*pixels, f"secret{at // common + at // 119}"] for at, pixels in enumerate(PIXELS)]
        shared = look(csv(tmp_path, rows)).summary.shared(())
        assert "secret" not in str(shared)
        assert [text.partition(";")[0] for text in shared.warnings] == [odd_ones]


def test_quantity_summary_shows_range(tmp_path: Path) -> None:
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


def test_columns_named_as_targets_are_quantities(tmp_path: Path) -> None:
    found = look(csv(tmp_path, [[at, 2 * at % 7, at % 3] for at in range(20)], ["a", "kw", "b"]), targets=("kw",))
    assert found.facts == [
        "20 samples of shape 2, float32, values 0 to 19",
        "1 quantity: kw 0 to 6",
        "targets: columns set by data.targets",
    ]


def test_fractional_labels_suggest_a_regression_job(tmp_path: Path) -> None:
    found = look(csv(tmp_path, [[at % 5, at % 4, at / 8] for at in range(20)], ["a", "b", "label"]))
    assert found.facts[1] == "1 quantity: 0 to 2.375"
    assert odd(found) == ["labels are numbers with fractions, like measurements"]
    assert 'a job with [task] kind = "regression" predicts them directly' in found.summary.warnings[0]


def test_constant_target_raises_a_warning(tmp_path: Path) -> None:
    found = look(npz(tmp_path, x=NUMBERS, y=np.full(30, 0.5)))
    assert odd(found) == ["a target is constant"]
    assert "'column 1' is 0.5 in all 30 samples" in found.warnings[0]


def test_series_summary_reports_gaps(tmp_path: Path) -> None:
    rows = [[m, t, t % 5, m] for m in (1, 2) for t in range(40) if t != 30]
    found = look(csv(tmp_path, rows, ["m", "t", "v", "w"]), time="t", series="m")
    (fact,) = found.facts
    assert fact.startswith("78 steps of 2 channels in 2 series, float32, values 0 to 4; 2 gaps, the longest stretch")
    assert fact.endswith("without one has 30 steps")
    assert found.warnings == ("skipped: windows over 2 gaps in time",)
    assert found.summary.shared(()).lines()[0].startswith("78 steps of 2 channels in 2 series, float32; 2 gaps")


def test_monotonic_channel_is_reported_as_possible_time(tmp_path: Path) -> None:
    rows = [["a", t, t % 5] for t in range(40)]
    assert odd(look(csv(tmp_path, rows, ["m", "t", "v"]), series="m")) == ["a channel only increases, like time"]


def test_text_summary_reports_size(tmp_path: Path) -> None:
    (tmp_path / "a.txt").write_bytes(b"hello")
    assert look(str(tmp_path / "a.txt")).facts == ["5 bytes of text"]
    (tmp_path / "b.txt").write_bytes(b"world!")
    assert look(str(tmp_path), format="text").facts == ["11 bytes of text in 2 files"]


def test_missing_labels_are_not_a_fault(tmp_path: Path) -> None:
    found = look(npz(tmp_path, x=NUMBERS))
    assert not found.summary.fault
    assert found.facts[1].startswith("labels: no array 'y' (found: x); an NPZ file with arrays x and y is required")
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


def test_known_task_changes_the_summary(tmp_path: Path) -> None:
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
    assert "a window needs 40 input steps" in survey(settings, beyond).summary.fault
    whole_numbers = npz(tmp_path, x=NUMBERS, y=np.arange(30))
    found = survey(DataSettings(path=whole_numbers), form_of("regression", (2,)).task or None)
    assert (found.facts[1], found.warnings) == ("1 quantity: 0 to 29", ())
