"""Images with quantities, with several labels, and without labels."""

from __future__ import annotations

import tracemalloc
from typing import TYPE_CHECKING, Any

import numpy as np
import pytest
from PIL import Image

from sojourn.data.source import DataSettings, load_data, read_content
from sojourn.data.summary import survey
from sojourn.errors import DataError
from tests.sojourn.data.tasks import form_of
from tests.sojourn.data.test_data import kit

if TYPE_CHECKING:
    from pathlib import Path

    from sojourn.data.samples import Samples

AGE = form_of("regression", (1, 2, 2), (1,), names=("age",))
SEVERAL = form_of("multilabel", (1, 2, 2), (2,), classes=("red", "big"))
PUMP = form_of("reconstruction", (1, 2, 2), normal=("good",))


def pictures(folder: Path, *names: str) -> None:
    """Write images whose pixels are all ten times their position in the list."""
    for at, name in enumerate(names):
        (folder / name).parent.mkdir(parents=True, exist_ok=True)
        Image.new("L", (2, 2), 10 * at).save(folder / name)


def load(folder: Path, form: Any, listed: str | None = None, part: Any = "train", **settings: Any) -> Samples:
    if listed is not None:
        (folder / "targets.csv").write_text(listed, encoding="utf-8")
    return load_data(DataSettings(path=str(folder), **settings), form, part)


def first(samples: Samples) -> list[int]:
    return samples.x[:, 0, 0, 0].tolist()  # type: ignore[no-any-return]


@pytest.mark.parametrize(
    ("targets", "settings"),
    [
        ("file,age\nb.png,3.5\nsub/c.png,7\n", {}),
        ("age,image\n3.5,b.png\n7,sub/c.png\n", {}),
        ("b,who,years\nb.png,me,3.5\nsub/c.png,you,7\n", {"targets": ("years",)}),
        ("file,note,age\nb.png,text is no matter,3.5\nsub/c.png,,7\n", {}),
    ],
)
def test_list_gives_the_target_of_each_image(tmp_path: Path, targets: str, settings: Any) -> None:
    pictures(tmp_path, "a.png", "b.png", "sub/c.png")
    samples = load(tmp_path, AGE, targets, **settings)
    assert first(samples) == [10, 20]
    assert samples.y.tolist() == [[3.5], [7]]


def test_several_labels_per_image_are_read(tmp_path: Path) -> None:
    pictures(tmp_path, "a.png", "b.png")
    assert load(tmp_path, SEVERAL, "file,big,red\na.png,1,0\nb.png,1,1\n").y.tolist() == [[0, 1], [1, 1]]
    assert load(tmp_path, SEVERAL, "file,label\na.png,big\nb.png,red|big\n").y.tolist() == [[0, 1], [1, 1]]


def test_rows_without_image_and_broken_images_are_skipped(tmp_path: Path) -> None:
    pictures(tmp_path / "in", "a.png", "b.png")
    pictures(tmp_path, "outside.png")
    (tmp_path / "in" / "broken.png").write_bytes(b"no image")
    rows = "a.png,1\nnone.png,2\n../outside.png,3\nbroken.png,4\nb.png,\ntargets.csv,5\n"
    samples = load(tmp_path / "in", AGE, "file,age\n" + rows)
    assert samples.y.tolist() == [[1]]
    assert samples.skipped[0] == "3 rows of targets.csv without an image: 'none.png', '../outside.png', 'targets.csv'"
    assert samples.skipped[1].startswith("broken image broken.png: ")
    assert samples.skipped[2] == "1 samples whose target is missing, NaN or infinite"


def test_regression_on_images_requires_a_list(tmp_path: Path) -> None:
    pictures(tmp_path, "cat/a.png")
    for form in (AGE, SEVERAL):
        with pytest.raises(DataError, match=r"has no targets\.csv: add a CSV file with a column `file`"):
            load(tmp_path, form)
    with pytest.raises(DataError, match=r"no column 'age', which the job predicts, only 'file', 'size'"):
        load(tmp_path, AGE, "file,size\ncat/a.png,3\n")


def test_reconstruction_reads_flat_and_class_folders(tmp_path: Path) -> None:
    pictures(tmp_path / "flat", "a.png", "b.png")
    assert first(load(tmp_path / "flat", PUMP)) == [0, 10]
    pictures(tmp_path / "named", "good/a.png", "good/b.png", "scratch/c.png")
    samples = load(tmp_path / "named", PUMP)
    assert first(samples) == [0, 10]
    assert samples.skipped == ("1 samples labelled as faulty: 'scratch'",)
    tested = load(tmp_path / "named", PUMP, part="test")
    assert tested.y.tolist() == [0, 0, 1]


def test_image_size_is_detected_without_settings(tmp_path: Path) -> None:
    pictures(tmp_path, "a.png", "b.png")
    content = read_content(DataSettings(path=str(tmp_path)), "test", task=PUMP.task or None)
    assert content.x.shape == (2, 1, 2, 2)
    assert content.label_index.tolist() == [-1, -1]


def test_images_are_rejected_for_tasks_that_do_not_use_them(tmp_path: Path) -> None:
    pictures(tmp_path, "a.png")
    for kind, what in (("forecast", "series"), ("tokens", "text")):
        with pytest.raises(DataError, match=f"is a folder of images, but the job needs {what}"):
            load(tmp_path, form_of(kind, (1, 2, 2)))
    with pytest.raises(DataError, match="has no folders: put the images of each class into a folder"):
        load(tmp_path, kit())
    (tmp_path / "none").mkdir()
    with pytest.raises(DataError, match="has no folders"):
        load(tmp_path / "none", PUMP)


def test_pixels_and_targets_follow_list_order(tmp_path: Path) -> None:
    names = [f"{at}.png" for at in range(20)]
    pictures(tmp_path, *names)
    order = np.random.default_rng(1).permutation(20)
    rows = "".join(f"{at}.png,{at}\n" for at in order)
    samples = load(tmp_path, AGE, "file,age\n" + rows)
    assert (samples.y[:, 0] * 10).tolist() == first(samples) == (10 * order).tolist()


def test_skipped_images_are_reported(tmp_path: Path) -> None:
    pictures(tmp_path, "loose.png", "cat/a.png", "dog/b.png", "other.JPG")
    for name in ("cat/phone.HEIC", "cat/phone-2.heic", "dog/camera.nef"):
        (tmp_path / name).write_bytes(b"")
    found = survey(DataSettings(path=str(tmp_path)))
    assert found.summary.samples == 2
    assert [text.partition(" (")[0] for text in found.warnings[:2]] == [
        "images of formats that Sojourn does not read are skipped",
        "images outside the class folders are skipped",
    ]
    assert "3 files (2 .heic, 1 .nef)); to do: convert them to JPEG or PNG" in found.warnings[0]
    assert "2 images directly in" in found.warnings[1]
    assert found.warnings[1].endswith("'loose.png', 'other.JPG'); to do: move each to its class folder")
    assert read_content(DataSettings(path=str(tmp_path)), "train", kit().input).warnings


def test_folder_with_only_skipped_images_is_rejected_with_reason(tmp_path: Path) -> None:
    for name in ("cat/phone.heic", "dog/phone.heic"):
        (tmp_path / name).parent.mkdir()
        (tmp_path / name).write_bytes(b"")
    assert (
        "2 files (2 .heic)); to do: convert them to JPEG or PNG"
        in survey(DataSettings(path=str(tmp_path))).summary.fault
    )
    with pytest.raises(DataError, match=r"2 files \(2 \.heic\); to do: convert them"):
        load_data(DataSettings(path=str(tmp_path)), kit())


def test_survey_of_large_photos_uses_little_memory(tmp_path: Path) -> None:
    photo = Image.new("RGB", (3000, 2000), (10, 20, 200))
    photo.paste((255, 255, 255), (0, 0, 1500, 1000))
    for at in range(4):
        (tmp_path / f"{at % 2}").mkdir(exist_ok=True)
        photo.save(tmp_path / f"{at % 2}" / f"{at}.jpg")
    tracemalloc.start()
    try:
        found = survey(DataSettings(path=str(tmp_path))).summary
        _, peak = tracemalloc.get_traced_memory()
    finally:
        tracemalloc.stop()
    assert (found.samples, found.shape) == (4, (3, 2000, 3000))
    assert found.high == 255
    assert peak < 4 << 20
