"""Reading a device's data: label names, shapes and faulty files."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import numpy as np
import pytest
from PIL import Image

from sojourn.data.samples import shaped
from sojourn.data.source import DataSettings, describe, load_data
from sojourn.errors import DataError
from sojourn.protocol.spec import InputSpec, Kit, ModelSpec
from tests.sojourn.protocol.examples import kit_without_graphs

if TYPE_CHECKING:
    from pathlib import Path

    from sojourn.data.samples import Samples

X = np.arange(6 * 4, dtype=np.uint8).reshape(6, 2, 2)


def kit(classes: tuple[str, ...] = ("cat", "dog"), shape: tuple[int, ...] = (1, 2, 2), dtype: Any = "float32") -> Kit:
    return kit_without_graphs(ModelSpec(()), InputSpec(shape, dtype), classes)


def load(path: Path, of: Kit | None = None, **settings: Any) -> Samples:
    return load_data(DataSettings(path=str(path), **settings), of or kit())


def npz(folder: Path, **arrays: Any) -> Path:
    path = folder / "data.npz"
    np.savez(path, **arrays)
    return path


def text(folder: Path, content: str) -> Path:
    path = folder / "data.csv"
    path.write_text(content, encoding="utf-8")
    return path


def picture(path: Path, size: tuple[int, int] = (2, 2), mode: str = "L", colour: Any = 7) -> None:
    path.parent.mkdir(parents=True, exist_ok=True)
    Image.new(mode, size, colour).save(path)


def test_text_labels_are_mapped_by_name_and_not_by_order(tmp_path: Path) -> None:
    samples = load(npz(tmp_path, x=X, y=np.array(["dog", "cat", "dog", "cat", "cat", "dog"])))
    assert samples.y.tolist() == [1, 0, 1, 0, 0, 1]
    assert samples.x.dtype == np.uint8
    assert samples.x.shape == (6, 1, 2, 2)
    assert samples.skipped == ()


def test_byte_labels_and_other_array_keys_are_read(tmp_path: Path) -> None:
    path = npz(tmp_path, x_train=X, y_train=np.array([b"dog"] * 6))
    assert load(path).y.tolist() == [1] * 6
    path = npz(tmp_path, pixels=X, kinds=np.array(["cat"] * 6))
    assert load(path, x="pixels", y="kinds").y.tolist() == [0] * 6


@pytest.mark.parametrize("key", ["classes", "class_names"])
def test_integer_labels_use_class_names_in_the_file(tmp_path: Path, key: str) -> None:
    path = npz(tmp_path, x=X, y=np.array([0, 1, 2, 0, 1, 2]), **{key: np.array(["dog", "cat", "owl"])})
    samples = load(path)
    assert samples.y.tolist() == [1, 0, 1, 0]
    assert samples.x[:, 0, 0, 0].tolist() == [0, 4, 12, 16]
    assert samples.skipped == ("2 samples of classes that the job does not list: 'owl'",)


def test_configured_class_names_override_those_in_the_file(tmp_path: Path) -> None:
    path = npz(tmp_path, x=X, y=np.zeros(6), classes=np.array(["dog"]))
    assert load(path, class_names=("cat",)).y.tolist() == [0] * 6


def test_integers_match_classes_with_the_same_name(tmp_path: Path) -> None:
    path = npz(tmp_path, x=X, y=np.array([7, 3, 7, 3, 7, 9]))
    samples = load(path, kit(("7", "3")))
    assert samples.y.tolist() == [0, 1, 0, 1, 0]
    assert "'9'" in samples.skipped[0]


def test_integers_without_names_are_never_guessed(tmp_path: Path) -> None:
    path = npz(tmp_path, x=X, y=np.array([0, 1, 0, 1, 0, 1]))
    with pytest.raises(DataError, match="class_names"):
        load(path)
    with pytest.raises(DataError, match="label 1, but only 1 class names"):
        load(path, class_names=("cat",))


@pytest.mark.parametrize(
    ("found", "expected"),
    [((2, 3), (1, 2, 3)), ((2, 3, 1), (1, 2, 3)), ((6,), (1, 2, 3)), ((2, 3), (6,)), ((1, 2, 3), (2, 3))],
)
def test_unambiguous_reshape_keeps_element_order(found: tuple[int, ...], expected: tuple[int, ...]) -> None:
    x = np.arange(12).reshape(2, *found)
    assert shaped(x, expected, "f").ravel().tolist() == list(range(12))
    assert shaped(x, expected, "f").shape == (2, *expected)


def test_channels_last_become_channels_first() -> None:
    x = np.arange(2 * 4 * 5 * 3).reshape(2, 4, 5, 3)
    y = shaped(x, (3, 4, 5), "f")
    assert y.shape == (2, 3, 4, 5)
    assert (y[1, 2] == x[1, :, :, 2]).all()


@pytest.mark.parametrize(
    ("found", "expected"), [((3, 2), (1, 2, 3)), ((60,), (3, 4, 5)), ((4, 5), (3, 4, 5)), ((3, 5, 4), (3, 4, 5))]
)
def test_shape_mismatch_error_names_file_and_both_shapes(found: tuple[int, ...], expected: tuple[int, ...]) -> None:
    with pytest.raises(DataError) as error:
        shaped(np.zeros((2, *found)), expected, "file.npz")
    assert all(part in str(error.value) for part in ("file.npz", str(found), str(expected)))


def test_rows_with_nan_or_infinity_are_skipped_and_reported(tmp_path: Path) -> None:
    x = X.astype(np.float64)
    x[1, 0, 0], x[4, 1, 1] = np.nan, np.inf
    samples = load(npz(tmp_path, x=x, y=np.array(["cat", "dog"] * 3)))
    assert samples.y.tolist() == [0, 0, 1, 1]
    assert samples.x.dtype == np.float32
    assert samples.skipped == ("2 samples with NaN or infinite values",)


def test_batch_has_dtype_of_the_graph(tmp_path: Path) -> None:
    samples = load(npz(tmp_path, x=X, y=np.array(["cat", "dog"] * 3)))
    x, y = samples.batch(np.array([2, 1]), "float32")
    assert x.dtype == np.float32
    assert x.ravel().tolist() == [8, 9, 10, 11, 4, 5, 6, 7]
    assert y.tolist() == [0, 1]


@pytest.mark.parametrize(
    ("arrays", "message"),
    [
        ({"a": X}, "no array 'x' .found: a.; an NPZ file with arrays x and y is required; data.x and data.y"),
        ({"x": X, "y": np.array(["cat"] * 5)}, r"\(6, 2, 2\).*\(5,\)"),
        ({"x": X, "y": np.eye(6)}, r"\(6, 6\)"),
        ({"x": X, "y": np.full(6, 0.5)}, r'labels of type float64 such as 0\.5.*\[task\] kind = "regression"; or put'),
        ({"x": X}, "has no array 'y' .found: x.; an NPZ file with arrays x and y is required; data.x"),
        ({"x": X, "y": np.array([["cat"] * 2] * 6)}, r"\(6, 2, 2\) and y \(6, 2\): one label"),
        ({"x": X.astype(complex), "y": np.array(["cat"] * 6)}, "complex128"),
        ({"x": X, "y": np.array(["owl"] * 6)}, "no sample of the job's classes 'cat', 'dog'.*'owl'"),
        ({"x": X[:0], "y": np.array([], dtype=str)}, "no sample"),
        ({"x": X.astype(object), "y": np.array(["cat"] * 6)}, "cannot be read as NPZ"),
    ],
)
def test_npz_files_that_do_not_match_the_job_are_rejected(tmp_path: Path, arrays: dict[str, Any], message: str) -> None:
    with pytest.raises(DataError, match=message):
        load(npz(tmp_path, **arrays))


def test_float_samples_are_rejected_for_int64_input(tmp_path: Path) -> None:
    path = npz(tmp_path, x=X.astype(np.float32), y=np.array(["cat"] * 6))
    with pytest.raises(DataError, match="expects int64"):
        load(path, kit(dtype="int64"))


@pytest.mark.parametrize("content", [b"", b"no zip at all", b"PK\x03\x04 cut off"])
def test_broken_npz_files_are_rejected(tmp_path: Path, content: bytes) -> None:
    path = tmp_path / "data.npz"
    path.write_bytes(content)
    with pytest.raises(DataError, match="cannot be read as NPZ"):
        load(path)


def test_single_array_named_npz_is_rejected(tmp_path: Path) -> None:
    path = tmp_path / "data.npz"
    with path.open("wb") as file:
        np.save(file, X)
    with pytest.raises(DataError, match="is a single array"):
        load(path)


def test_npz_file_with_flipped_bytes_is_rejected(tmp_path: Path) -> None:
    path = npz(tmp_path, x=np.tile(X, (50, 1, 1)), y=np.array(["cat"] * 300))
    data = bytearray(path.read_bytes())
    data[400:420] = b"\xff" * 20
    path.write_bytes(data)
    with pytest.raises(DataError, match="cannot be read as NPZ"):
        load(path)


def test_csv_with_header_finds_label_column(tmp_path: Path) -> None:
    path = text(tmp_path, "a,label,b,c,d\n1,dog,2,3,4\n5,cat,6,7,8\n")
    samples = load(path)
    assert samples.y.tolist() == [1, 0]
    assert samples.x.ravel().tolist() == [1, 2, 3, 4, 5, 6, 7, 8]
    path = text(tmp_path, "kind;a;b;c;d\ncat;1;2;3;4\n")
    assert load(path, label="kind").y.tolist() == [0]


def test_csv_without_header_has_its_label_last(tmp_path: Path) -> None:
    assert load(text(tmp_path, "1,2,3,4,dog\n5,6,7,8,cat\n")).y.tolist() == [1, 0]


def test_csv_integer_labels_need_class_names(tmp_path: Path) -> None:
    path = text(tmp_path, "1,2,3,4,1\n5,6,7,8,0\n")
    with pytest.raises(DataError, match="class_names"):
        load(path)
    assert load(path, class_names=("dog", "cat")).y.tolist() == [0, 1]
    assert load(path, kit(("1", "0"))).y.tolist() == [0, 1]


def test_faulty_csv_rows_are_skipped_and_reported(tmp_path: Path) -> None:
    path = text(tmp_path, "a,b,c,d,label\n1,2,3,cat\n1,2,x,4,cat\n1,,3,4,cat\n1,2,3,4,\n\n1,2,3,4,dog\n")
    samples = load(path)
    assert samples.y.tolist() == [1]
    assert samples.skipped == (
        "line 2: 4 columns instead of 5",
        "line 3: 'x' is not a number",
        "line 5: no label",
        "1 samples with NaN or infinite values",
    )


def test_report_of_faulty_rows_is_truncated(tmp_path: Path) -> None:
    samples = load(text(tmp_path, "1,2,3,4,cat\n" + "1,cat\n" * 500))
    assert len(samples.skipped) == 11
    assert samples.skipped[-1] == "490 more faulty rows"


@pytest.mark.parametrize(("content", "message"), [("", "is empty"), ("a\n1\n", "1 column"), ("a,b\n", "no sample")])
def test_csv_files_that_do_not_match_the_job_are_rejected(tmp_path: Path, content: str, message: str) -> None:
    with pytest.raises(DataError, match=message):
        load(text(tmp_path, content))


def test_binary_file_is_rejected_as_csv(tmp_path: Path) -> None:
    path = tmp_path / "data.csv"
    path.write_bytes(b"\xff\xfe\x00\x01,")
    with pytest.raises(DataError, match="cannot be read as CSV"):
        load(path)


def test_csv_with_unknown_label_column_is_rejected(tmp_path: Path) -> None:
    with pytest.raises(DataError, match=r"no column 'kind', but 2 columns and the header a, b: data.label takes"):
        load(text(tmp_path, "a,b\n1,cat\n"), label="kind")


def test_image_folders_map_to_classes_by_folder_name(tmp_path: Path) -> None:
    picture(tmp_path / "dog" / "1.png", (10, 6), "RGB", (90, 90, 90))
    picture(tmp_path / "cat" / "deep" / "2.jpg", (2, 2), "L", 200)
    picture(tmp_path / "owl" / "3.png")
    (tmp_path / "dog" / "notes.txt").write_text("not an image", encoding="utf-8")
    samples = load(tmp_path)
    assert samples.y.tolist() == [0, 1]
    assert samples.x.shape == (2, 1, 2, 2)
    assert samples.x.dtype == np.uint8
    assert (samples.x[1] == 90).all()
    assert samples.skipped == ("folders of classes that the job does not list: 'owl'",)


def test_images_are_converted_to_the_colours_of_the_job(tmp_path: Path) -> None:
    picture(tmp_path / "cat" / "1.png", (4, 4), "RGB", (1, 2, 3))
    picture(tmp_path / "cat" / "2.png", (4, 4), "L", 9)
    samples = load(tmp_path, kit(shape=(3, 4, 5)))
    assert samples.x.shape == (2, 3, 4, 5)
    assert samples.x[:, :, 0, 0].tolist() == [[1, 2, 3], [9, 9, 9]]


def test_images_of_16_bits_keep_their_range(tmp_path: Path) -> None:
    (tmp_path / "cat").mkdir()
    Image.fromarray(np.full((2, 2), 0x4020, np.uint16)).save(tmp_path / "cat" / "1.png")
    assert (load(tmp_path).x == 0x40).all()


def test_broken_image_is_skipped_and_reported(tmp_path: Path) -> None:
    picture(tmp_path / "cat" / "1.png", (50, 50))
    picture(tmp_path / "dog" / "2.png", (50, 50))
    whole = (tmp_path / "cat" / "1.png").read_bytes()
    (tmp_path / "cat" / "0.png").write_bytes(whole[: len(whole) // 2])
    (tmp_path / "dog" / "3.jpg").write_bytes(b"")
    samples = load(tmp_path)
    assert samples.y.tolist() == [0, 1]
    assert [words.split(":")[0] for words in samples.skipped] == ["broken image cat/0.png", "broken image dog/3.jpg"]


def test_image_folders_that_do_not_match_the_job_are_rejected(tmp_path: Path) -> None:
    with pytest.raises(DataError, match="has no folders"):
        load(tmp_path)
    picture(tmp_path / "owl" / "1.png")
    with pytest.raises(DataError, match=r"no sample of the job's classes.*'owl'"):
        load(tmp_path)
    (tmp_path / "cat").mkdir()
    (tmp_path / "cat" / "1.png").write_bytes(b"broken")
    with pytest.raises(DataError, match=r"no sample.*cat/1\.png"):
        load(tmp_path)
    with pytest.raises(DataError, match=r"shape \(4,\)"):
        load(tmp_path, kit(shape=(4,)))


def test_describe_reports_format_without_reading_the_file(tmp_path: Path) -> None:
    path = tmp_path / "data.npz"
    assert describe(DataSettings(path=str(path))) == f"no data: {path} does not exist"
    path.write_bytes(b"broken")
    assert describe(DataSettings(path=str(path))) == "npz data.npz"
    assert describe(DataSettings(path=str(path), format="images")).startswith("no data: ")
    assert describe(DataSettings(path=str(tmp_path))) == f"images {tmp_path.name}"
    other = tmp_path / "data.bin"
    other.touch()
    assert "set data.format" in describe(DataSettings(path=str(other)))
    assert describe(DataSettings(path=str(other), format="csv")) == "csv data.bin"


def test_missing_path_is_reported(tmp_path: Path) -> None:
    with pytest.raises(DataError, match="does not exist"):
        load(tmp_path / "nothing.npz")
