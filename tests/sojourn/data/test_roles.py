"""The device, the coordinator, the release tools and the simulation read a file identically."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, Literal

import numpy as np
import pytest
from PIL import Image

from coordinator.jobs.data import public_data
from coordinator.jobs.settings import JobData, JobSettings
from edge_agent.inference.inputs_and_outputs import read_inputs
from fleet_sim.datasets import load
from sojourn.data.samples import SampleForm
from sojourn.data.source import DataSettings, load_data
from sojourn.errors import DataError
from sojourn.protocol.spec import InputSpec

if TYPE_CHECKING:
    from collections.abc import Callable
    from pathlib import Path

    from numpy.typing import NDArray

CLASSES = ("ape", "bee", "cat")
NUMBERS = ("0", "1", "2")
WHICH = [0, 1, 2, 2, 1, 0, 0, 1, 2, 0, 1, 2]
Y = np.array(WHICH)
NAMES = np.array(CLASSES)[Y]
ROWS = len(Y)
FLAT = np.arange(ROWS * 12, dtype=np.uint8).reshape(ROWS, 12)
GREY = FLAT.reshape(ROWS, 4, 3)
COLOURS = np.arange(ROWS * 36, dtype=np.uint16).astype(np.uint8).reshape(ROWS, 4, 3, 3)
"""Images of height 4 and width 3 with 3 colours last."""


def write_csv(path: Path, labels: Any, rows: NDArray[Any] = FLAT, head: str = "") -> str:
    lines = [",".join([*map(str, row), str(label)]) for row, label in zip(rows, labels, strict=True)]
    path.write_text(head + "\n".join(lines) + "\n", encoding="utf-8")
    return str(path)


def write_images(folder: Path, images: NDArray[np.uint8]) -> str:
    for at, (image, name) in enumerate(zip(images, NAMES, strict=True)):
        (folder / name).mkdir(parents=True, exist_ok=True)
        Image.fromarray(image).save(folder / name / f"{at:02}.png")
    return str(folder)


def npz(**arrays: Any) -> Callable[[Path], str]:
    def write(folder: Path) -> str:
        np.savez(folder / "data.npz", **arrays)
        return str(folder / "data.npz")

    return write


FIRST_COLOURS = COLOURS.transpose(0, 3, 1, 2)
FILES: dict[str, tuple[Callable[[Path], str], tuple[int, ...], tuple[str, ...]]] = {
    "flat rows": (npz(x=FLAT, y=NAMES), (12,), CLASSES),
    "grey images": (npz(x=GREY, y=NAMES), (1, 4, 3), CLASSES),
    "grey images with a channel first": (npz(x=GREY[:, None], y=NAMES), (1, 4, 3), CLASSES),
    "grey images with a channel last": (npz(x=GREY[..., None], y=NAMES), (1, 4, 3), CLASSES),
    "colours last": (npz(x=COLOURS, y=NAMES), (3, 4, 3), CLASSES),
    "colours first": (npz(x=FIRST_COLOURS, y=NAMES), (3, 4, 3), CLASSES),
    "columns in memory": (npz(x=np.asfortranarray(COLOURS), y=NAMES), (3, 4, 3), CLASSES),
    "one number each": (npz(x=FLAT[:, 0], y=NAMES), (1,), CLASSES),
    "four axes": (npz(x=COLOURS.reshape(ROWS, 2, 2, 3, 3), y=NAMES), (2, 2, 3, 3), CLASSES),
    **{
        f"samples of {dtype}": (npz(x=GREY.astype(dtype), y=NAMES), (1, 4, 3), CLASSES)
        for dtype in ("bool", "int8", "int16", "uint16", "int32", "float16", "float32", "float64", ">f4", ">u2")
    },
    "bytes": (npz(x=FLAT, y=NAMES.astype("S")), (12,), CLASSES),
    "labels in a column": (npz(x=FLAT, y=NAMES[:, None]), (12,), CLASSES),
    "numbers": (npz(x=FLAT, y=Y), (12,), NUMBERS),
    "numbers as text": (npz(x=FLAT, y=Y.astype(str)), (12,), NUMBERS),
    "whole floats": (npz(x=FLAT, y=Y.astype(np.float32)), (12,), NUMBERS),
    "small numbers": (npz(x=FLAT, y=Y.astype(np.uint8)), (12,), NUMBERS),
    "truth": (npz(x=FLAT, y=Y > 0), (12,), ("0", "1")),
    "numbers from ten on": (npz(x=FLAT, y=Y * 5), (12,), ("0", "5", "10")),
    "text numbers from ten on": (npz(x=FLAT, y=(Y * 5).astype(str)), (12,), ("0", "5", "10")),
    "numbers with names": (npz(x=FLAT, y=Y, classes=np.array(CLASSES)), (12,), CLASSES),
    "numbers with names called otherwise": (npz(x=FLAT, y=Y, class_names=np.array(CLASSES)), (12,), CLASSES),
    "numbers with names in bytes": (npz(x=FLAT, y=Y, classes=np.array(CLASSES, "S")), (12,), CLASSES),
    "whole floats with names": (npz(x=FLAT, y=Y.astype(float), classes=np.array(CLASSES)), (12,), CLASSES),
    "names in another order": (npz(x=FLAT, y=2 - Y, classes=np.array(CLASSES[::-1])), (12,), CLASSES[::-1]),
    "a part for training only": (npz(x_train=FLAT, y_train=NAMES), (12,), CLASSES),
    "a part for testing only": (npz(x_test=FLAT, y_test=NAMES), (12,), CLASSES),
    "rows with NaN": (npz(x=np.where(FLAT == 13, np.nan, FLAT), y=NAMES), (12,), CLASSES),
    "rows beyond float32": (npz(x=np.where(FLAT == 13, 1e300, FLAT), y=NAMES), (12,), CLASSES),
    "CSV": (lambda folder: write_csv(folder / "data.csv", NAMES), (12,), CLASSES),
    "CSV with numbers": (lambda folder: write_csv(folder / "data.csv", Y), (12,), NUMBERS),
    "folders of grey images": (lambda folder: write_images(folder / "images", GREY), (1, 4, 3), CLASSES),
    "folders of coloured images": (lambda folder: write_images(folder / "images", COLOURS), (3, 4, 3), CLASSES),
}


def sorted_rows(x: NDArray[np.generic], y: NDArray[np.int64]) -> list[tuple[int, bytes]]:
    rows = np.ascontiguousarray(x, np.float32)
    return sorted((int(label), row.tobytes()) for row, label in zip(rows, y, strict=True))


def as_device(path: str, shape: tuple[int, ...], classes: tuple[str, ...], dtype: Any = "float32") -> Any:
    samples = load_data(DataSettings(path=path), SampleForm(InputSpec(shape, dtype), classes))
    assert samples.x.shape[1:] == shape
    return sorted_rows(samples.x, samples.y)


def as_coordinator(path: str, which: Literal["test", "exemplars"], **data: Any) -> tuple[Any, Any]:
    """Return the public part of the data and all its samples."""
    data |= {which: path, "by_position": True}
    public = public_data(JobSettings(name="job", data=JobData(exemplars_per_class=2, **data)))
    parts = [part.arrays() for part in (public.test, public.exemplars) if part is not None]
    return public, sorted_rows(*(np.concatenate(each) for each in zip(*parts, strict=True)))


def as_simulation(path: str) -> tuple[Any, Any]:
    data = load(path)
    x, y = np.concatenate([data.x_train, data.x_test]), np.concatenate([data.y_train, data.y_test])
    return data, sorted_rows(x, y)


@pytest.mark.parametrize(("write", "shape", "classes"), FILES.values(), ids=FILES.keys())
@pytest.mark.parametrize("which", ["test", "exemplars"])
def test_all_roles_read_a_file_identically(
    write: Callable[[Path], str], shape: tuple[int, ...], classes: tuple[str, ...], which: Any, tmp_path: Path
) -> None:
    path = write(tmp_path)
    device = as_device(path, shape, classes)
    public, coordinator = as_coordinator(path, which)
    data, simulation = as_simulation(path)
    assert (public.input.shape, public.classes) == (shape, classes)
    assert (data.x_train.shape[1:], data.classes) == (shape, classes)
    assert device == coordinator == simulation
    assert len(device) == ROWS - sum(int(text.split()[0]) for text in public.skipped)
    assert public.skipped == data.skipped


@pytest.mark.parametrize(
    ("x", "shape"),
    [(FLAT, (1, 4, 3)), (FLAT, (4, 3)), (GREY, (12,)), (GREY[..., None], (4, 3)), (COLOURS, (3, 4, 3))],
)
def test_all_roles_reshape_to_the_shape_of_the_job(
    x: NDArray[np.uint8], shape: tuple[int, ...], tmp_path: Path
) -> None:
    path = npz(x=x, y=NAMES)(tmp_path)
    public, coordinator = as_coordinator(path, "test", input=shape)
    assert public.input.shape == shape
    assert as_device(path, shape, CLASSES) == coordinator
    rows, _ = read_inputs(DataSettings(path=path), SampleForm(InputSpec(shape), CLASSES))
    assert sorted_rows(rows, Y) == coordinator


def test_all_roles_keep_int64_for_an_embedding(tmp_path: Path) -> None:
    path = npz(x=GREY.astype(np.int64), y=NAMES)(tmp_path)
    public, coordinator = as_coordinator(path, "test", dtype="int64")
    data, simulation = as_simulation(path)
    assert public.input == InputSpec((4, 3), "int64")
    assert public.test.dtype == "int64"
    assert data.x_train.dtype == np.int64
    assert as_device(path, (4, 3), CLASSES, "int64") == coordinator == simulation


def test_all_roles_skip_classes_the_job_does_not_list(tmp_path: Path) -> None:
    path = npz(x=FLAT, y=Y, classes=np.array(CLASSES))(tmp_path)
    listed = ("cat", "ape")
    public, coordinator = as_coordinator(path, "test", classes=listed)
    assert public.classes == listed
    assert as_device(path, (12,), listed) == coordinator
    assert len(coordinator) == 8
    assert public.skipped == ("4 samples of classes that the job does not list: 'bee'",)


def test_all_roles_skip_faulty_csv_rows(tmp_path: Path) -> None:
    path = write_csv(tmp_path / "data.csv", NAMES, head=",".join("abcdefghijkl") + ",label\n1,2,ape\n")
    public, coordinator = as_coordinator(path, "test")
    data, simulation = as_simulation(path)
    assert as_device(path, (12,), CLASSES) == coordinator == simulation
    assert public.skipped == data.skipped == ("line 2: 3 columns instead of 13",)


def test_all_roles_resize_images_to_the_size_of_the_job(tmp_path: Path) -> None:
    path = write_images(tmp_path / "images", COLOURS)
    Image.new("L", (9, 9), 77).save(tmp_path / "images" / "ape" / "other.png")
    public, coordinator = as_coordinator(path, "test", input=(1, 2, 2))
    assert public.classes == CLASSES
    assert as_device(path, (1, 2, 2), CLASSES) == coordinator
    for read in (lambda: as_coordinator(path, "test"), lambda: as_simulation(path)):
        with pytest.raises(DataError, match="all images must have the same size unless the job sets one"):
            read()


def test_all_roles_detect_format_of_a_file_without_suffix(tmp_path: Path) -> None:
    path = tmp_path / "shelf"
    npz(x=FLAT, y=NAMES)(tmp_path)
    (tmp_path / "data.npz").rename(path)
    _, coordinator = as_coordinator(str(path), "test")
    assert as_device(str(path), (12,), CLASSES) == coordinator == as_simulation(str(path))[1]


REFUSED: dict[str, tuple[dict[str, Any], str]] = {
    "labels with fractions": ({"x": FLAT, "y": Y + 0.5}, "must be names or whole numbers"),
    "fewer labels": ({"x": FLAT, "y": NAMES[:-1]}, "one label for each sample"),
    "several labels each": ({"x": FLAT, "y": np.eye(ROWS)}, "one label for each sample"),
    "text as samples": ({"x": FLAT.astype(str), "y": NAMES}, "samples of type <U"),
    "complex samples": ({"x": FLAT.astype(complex), "y": NAMES}, "samples of type complex128"),
    "no labels": ({"x": FLAT}, "has no array 'y'"),
    "nothing": ({"x": FLAT[:0], "y": NAMES[:0]}, "has no samples"),
    "numbers without a name": ({"x": FLAT, "y": Y, "classes": NAMES[:2]}, "the label 2, but only 2 class names"),
    "numbers below zero": ({"x": FLAT, "y": Y - 1, "classes": np.array(CLASSES)}, "the label -1, but only 3 class"),
    "names that are no text": ({"x": FLAT, "y": Y, "classes": np.arange(3)}, "class names of type int64"),
    "only pickle can read it": ({"x": FLAT, "y": np.array([{}] * ROWS)}, "cannot be read as NPZ"),
}


@pytest.mark.parametrize(("arrays", "message"), REFUSED.values(), ids=REFUSED.keys())
def test_all_roles_reject_a_file_with_the_same_message(arrays: dict[str, Any], message: str, tmp_path: Path) -> None:
    path = npz(**arrays)(tmp_path)
    errors = []
    for read in (
        lambda: as_device(path, (12,), CLASSES),
        lambda: as_coordinator(path, "test"),
        lambda: as_simulation(path),
    ):
        with pytest.raises(DataError, match=message) as caught:
            read()
        errors.append(str(caught.value))
    assert len(set(errors)) == 1


def test_all_roles_reject_floats_for_int64_input(tmp_path: Path) -> None:
    path = npz(x=FLAT.astype(np.float32), y=NAMES)(tmp_path)
    for read in (
        lambda: as_device(path, (12,), CLASSES, "int64"),
        lambda: as_coordinator(path, "test", dtype="int64"),
    ):
        with pytest.raises(DataError, match="samples of type float32, but the model expects int64"):
            read()
