"""Data sets from disk in every supported format."""

from __future__ import annotations

import bz2
import gzip
import io
import pickle
import subprocess
import sys
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from PIL import Image

from coordinator.jobs.data import digits_split
from coordinator.models import torchvision_models
from coordinator.models.torchvision_models import torchvision_datasets
from fleet_sim.datasets import FOLDER, NAMES, load
from fleet_sim.datasets.built_in_sets import MADE
from sojourn.errors import DataError

X = np.arange(20, dtype=np.float32).reshape(10, 2)
Y = np.array([0, 1, 2, 0, 1, 2, 0, 1, 2, 0])


@pytest.fixture(autouse=True)
def nowhere(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Hide all data sets of this machine."""
    monkeypatch.setattr("fleet_sim.datasets.loading._DEBIAN", tmp_path / "debian")
    monkeypatch.delenv(FOLDER, raising=False)
    monkeypatch.chdir(tmp_path)


def npz(path: Path, **arrays: Any) -> str:
    np.savez(path, **arrays)
    return str(path)


def test_digits_are_split_as_for_a_job() -> None:
    data = load("digits")
    for x, y, train in ((data.x_train, data.y_train, True), (data.x_test, data.y_test, False)):
        want_x, want_y = digits_split(train=train)
        assert np.array_equal(x, want_x)
        assert np.array_equal(y, want_y)
    assert (data.name, data.x_train.shape, data.classes) == ("digits", (1437, 1, 8, 8), tuple("0123456789"))


# --- NPZ


def test_npz_with_all_arrays_is_read(tmp_path: Path) -> None:
    arrays = {"x_test": X[:4], "y_test": Y[:4], "classes": ["a", "b", "c"]}
    path = npz(tmp_path / "own.npz", x=X, y=Y, users=np.arange(10) // 2, domains=["s", "n"] * 5, **arrays)
    data = load(path)
    assert data.name == "own"
    assert np.array_equal(data.x_train, X)
    assert np.array_equal(data.y_train, Y)
    assert np.array_equal(data.x_test, X[:4])
    assert np.array_equal(data.y_test, Y[:4])
    assert data.classes == ("a", "b", "c")
    assert data.users is not None
    assert data.users.tolist() == [0, 0, 1, 1, 2, 2, 3, 3, 4, 4]
    assert data.domains is not None
    assert data.domains.tolist() == [1, 0] * 5
    assert data.y_train.dtype == data.y_test.dtype == data.users.dtype == data.domains.dtype == np.int64


def test_a_fifth_is_held_out_when_there_is_no_test_part(tmp_path: Path) -> None:
    path = npz(tmp_path / "own.npz", x=X, y=Y, users=np.arange(10) + 100)
    one, again, other = (load(path, seed=seed) for seed in (0, 0, 1))
    assert (len(one.y_train), len(one.y_test)) == (8, 2)
    assert sorted([*one.x_train[:, 0], *one.x_test[:, 0]]) == X[:, 0].tolist()
    assert one.users is not None
    assert np.array_equal(one.x_train[:, 0], 2 * (one.users - 100))
    assert np.array_equal(one.y_train, Y[one.users - 100])
    assert np.array_equal(one.x_test, again.x_test)
    assert not np.array_equal(one.x_test, other.x_test)


@pytest.mark.parametrize(
    ("labels", "classes", "want", "names"),
    [
        ([5, 9, 5, 7], None, [0, 2, 0, 1], ("5", "7", "9")),
        ([10.0, 9.0, 9.0, 2.0], None, [2, 1, 1, 0], ("2", "9", "10")),
        (["cat", "ape", "cat", "ape"], None, [1, 0, 1, 0], ("ape", "cat")),
        ([b"cat", b"ape", b"cat", b"ape"], ["cat", "dog", "ape"], [0, 2, 0, 2], ("cat", "dog", "ape")),
        ([[1], [0], [1], [2]], ["cat", "dog", "ape"], [1, 0, 1, 2], ("cat", "dog", "ape")),
    ],
)
def test_labels_become_class_numbers(
    labels: list[Any], classes: list[str] | None, want: list[int], names: tuple[str, ...], tmp_path: Path
) -> None:
    more = {} if classes is None else {"classes": classes}
    data = load(npz(tmp_path / "own.npz", x=X[:4], y=labels, x_test=X[:4], y_test=labels, **more))
    assert (data.y_train.tolist(), data.y_test.tolist(), data.classes) == (want, want, names)


@pytest.mark.parametrize(
    ("x", "shape", "dtype"),
    [
        (np.zeros((10, 4, 5), np.uint8), (1, 4, 5), np.uint8),
        (np.zeros((10, 4, 5, 3), np.uint8), (3, 4, 5), np.uint8),
        (np.zeros((10, 3, 4, 5), np.float64), (3, 4, 5), np.float32),
        (np.zeros((10, 6), np.int32), (6,), np.float32),
        (np.zeros((10, 4, 5), np.int64), (4, 5), np.int64),
    ],
)
def test_samples_are_shaped_for_the_graph(x: Any, shape: tuple[int, ...], dtype: Any, tmp_path: Path) -> None:
    data = load(npz(tmp_path / "own.npz", x=x, y=Y))
    assert data.x_train.shape == (8, *shape)
    assert data.x_test.shape == (2, *shape)
    assert data.x_train.dtype == data.x_test.dtype == dtype


def test_channels_move_with_their_pixels(tmp_path: Path) -> None:
    x = np.random.default_rng(1).integers(0, 256, (10, 4, 5, 3), dtype=np.uint8)
    data = load(npz(tmp_path / "own.npz", x=x, y=Y, x_test=x, y_test=Y))
    assert np.array_equal(data.x_train[7, 2], x[7, :, :, 2])


def test_writers_and_packed_images_are_found_by_name(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    images = np.random.default_rng(1).integers(0, 256, (5, 4, 4, 3), dtype=np.uint8)
    strips = []
    for some in (images[:3], images[3:]):
        strip = io.BytesIO()
        Image.fromarray(some.reshape(-1, 4, 3)).save(strip, "WEBP", lossless=True, exact=True)
        strips.append(strip.getvalue())
    ends = np.cumsum([0, *map(len, strips)])
    packed = {"webp": np.frombuffer(b"".join(strips), np.uint8), "webp_off": ends, "webp_shape": [5, 4, 4, 3]}
    arrays = {f"{part}_{key}": value for part in ("x_train", "x_test") for key, value in packed.items()}
    arrays |= {"y_train": np.arange(5), "y_test": np.arange(5), "d_train": [0, 0, 1, 1, 2]}
    folder = tmp_path / "sets"
    folder.mkdir()
    npz(folder / "office_caltech10_64.npz", class_names=list("abcde"), **arrays)
    npz(folder / "mnist.npz", x_train=np.zeros((10, 28, 28), np.uint8), y_train=Y, w_train=np.array([7] * 10, np.int16))
    monkeypatch.setenv(FOLDER, str(folder))
    office, mnist = load("office-caltech-10"), load("MNIST")
    assert np.array_equal(office.x_train, images.transpose(0, 3, 1, 2))
    assert np.array_equal(office.x_test, office.x_train)
    assert office.classes == tuple("abcde")
    assert office.domains is not None
    assert office.domains.tolist() == [0, 0, 1, 1, 2]
    assert (mnist.name, mnist.x_train.shape, mnist.classes) == ("mnist", (8, 1, 28, 28), tuple("0123456789"))
    assert mnist.users is not None
    assert mnist.users.tolist() == [7] * 8


@pytest.mark.parametrize("file", ["fashion-mnist.npz", "Fashion_MNIST.npz", "FashionMNIST.npz"])
def test_data_set_name_ignores_case_and_separators(file: str, tmp_path: Path) -> None:
    npz(tmp_path / file, x=np.zeros((10, 2, 2), np.uint8), y=Y)
    data = load("fashion_mnist", tmp_path)
    assert (data.name, data.classes[9]) == ("fashion-mnist", "Ankle boot")


def test_any_npz_in_the_folder_can_be_named(tmp_path: Path) -> None:
    (tmp_path / "data").mkdir()
    npz(tmp_path / "data" / "sensors.npz", x=X, y=Y)
    assert load("sensors").classes == ("0", "1", "2")


def test_given_folder_takes_precedence_over_the_variable(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    for name in ("one", "other"):
        (tmp_path / name).mkdir()
        npz(tmp_path / name / "own.npz", x=X, y=Y, classes=[f"{name}{at}" for at in range(3)])
    monkeypatch.setenv(FOLDER, str(tmp_path / "one"))
    assert load("own").classes[0] == "one0"
    assert load("own", tmp_path / "other").classes[0] == "other0"


@pytest.mark.parametrize(
    ("arrays", "message"),
    [
        ({"x": X}, r"has no array 'y' \(found: x\); an NPZ file with arrays x and y is required"),
        (
            {"x_webp": X, "y": Y},
            r"has no array 'x_webp_off' \(found: x_webp, y\); WebP strips need",
        ),
        ({"x": X, "y": Y[:4]}, r"x has the shape \(10, 2\) and y \(4,\): one label for each sample is required"),
        ({"x": X[:0], "y": Y[:0]}, "has no samples"),
        ({"x": X[:1], "y": Y[:1]}, "a single sample cannot be split"),
        ({"x": X.astype(str), "y": Y}, "samples of type <U32, but the model expects float32"),
        ({"x": X, "y": Y + 0.5}, "labels of type float64 such as 0.5: they must be names or whole"),
        ({"x": X, "y": Y, "classes": ["a", "b"]}, "has the label 2, but only 2 class names"),
        ({"x": X, "y": Y - 1, "classes": ["a", "b", "c"]}, "has the label -1, but only 3 class names"),
        ({"x": X, "y": Y, "classes": ["a", "b", "a"]}, "has duplicate class names"),
        ({"x": X, "y": ["d"] * 10, "classes": ["a", "b"]}, "the label 'd' is not one of its classes a, b"),
        ({"x": X, "y": Y, "x_test": X[:, :1], "y_test": Y}, r"shape \(2,\), test samples \(1,\)"),
        ({"x": X, "y": Y, "users": np.arange(9)}, r"10 samples have users or domains of shape \(9,\)"),
        ({"x": X, "y": np.array([{}] * 10)}, "cannot be read as NPZ: Object arrays cannot be loaded"),
    ],
)
def test_inconsistent_npz_arrays_are_refused(arrays: dict[str, Any], message: str, tmp_path: Path) -> None:
    with pytest.raises(DataError, match=message) as caught:
        load(npz(tmp_path / "own.npz", **arrays))
    assert "own.npz" in str(caught.value)


def test_non_finite_samples_are_skipped_and_reported(tmp_path: Path) -> None:
    x = np.where(np.isin(X, (4, 9)), np.nan, X)
    path = npz(tmp_path / "own.npz", x=x, y=Y, x_test=x[:3], y_test=Y[:3], users=np.arange(10))
    data = load(path)
    kept = [0, 1, 3, 5, 6, 7, 8, 9]
    assert data.users is not None
    assert (data.users.tolist(), data.y_train.tolist()) == (kept, Y[kept].tolist())
    assert np.array_equal(data.x_train, X[kept])
    assert data.y_test.tolist() == [0, 1]
    assert data.skipped == (
        "2 samples with NaN or infinite values",
        "test part: 1 samples with NaN or infinite values",
    )


def test_damaged_file_and_single_array_are_refused(tmp_path: Path) -> None:
    path = Path(npz(tmp_path / "own.npz", x=X, y=Y))
    path.write_bytes(path.read_bytes()[:100])
    with pytest.raises(DataError, match="cannot be read as NPZ"):
        load(str(path))
    with path.open("wb") as file:
        np.save(file, X)
    with pytest.raises(DataError, match="is a single array"):
        load(str(path))


# --- IDX


def idx(path: Path, array: np.ndarray, *, packed: bool = True) -> None:
    content = bytes([0, 0, 8, array.ndim]) + np.array(array.shape, ">u4").tobytes() + array.astype(np.uint8).tobytes()
    path.with_name(path.name + ".gz" * packed).write_bytes(gzip.compress(content) if packed else content)


def idx_folder(folder: Path, *, packed: bool = True) -> np.ndarray:
    images = np.random.default_rng(1).integers(0, 256, (10, 4, 3), dtype=np.uint8)
    folder.mkdir(parents=True)
    for part, start in (("train", 0), ("t10k", 7)):
        idx(folder / f"{part}-images-idx3-ubyte", images[start:], packed=packed)
        idx(folder / f"{part}-labels-idx1-ubyte", Y[start:], packed=packed)
    return images


@pytest.mark.parametrize(
    ("folder", "name"),
    [
        ("debian/fashion-mnist", "fashion-mnist"),
        ("data/FashionMNIST/raw", "fashion-mnist"),
        ("data/fashion-mnist", "fashion-mnist"),
        ("data/MNIST/raw", "mnist"),
        ("data/KMNIST/raw", "kmnist"),
        ("elsewhere/mine", "elsewhere/mine"),
    ],
)
@pytest.mark.parametrize("packed", [True, False])
def test_idx_files_are_found_and_read(folder: str, name: str, packed: bool, tmp_path: Path) -> None:
    images = idx_folder(tmp_path / folder, packed=packed)
    data = load(name)
    assert np.array_equal(data.x_train, images[:, None])
    assert np.array_equal(data.x_test, images[7:, None])
    assert data.y_train.tolist() == Y.tolist()
    assert data.y_test.tolist() == Y[7:].tolist()
    assert data.x_train.dtype == np.uint8


def test_damaged_idx_files_are_refused(tmp_path: Path) -> None:
    folder = tmp_path / "data" / "mnist"
    idx_folder(folder, packed=False)
    path = folder / "train-images-idx3-ubyte"
    whole = path.read_bytes()
    for content, message in (
        (whole[:-1], r"has a wrong length: its header states \(10, 4, 3\), 119 bytes follow"),
        (b"\x00\x00\x0d" + whole[3:], "is not an IDX file of bytes"),
        (b"", "is not an IDX file of bytes"),
        (whole[:6], "is not an IDX file of bytes"),
    ):
        path.write_bytes(content)
        with pytest.raises(DataError, match=message):
            load("mnist")
    path.rename(path.with_suffix(".gz"))
    with pytest.raises(DataError, match="cannot be read: Not a gzipped file"):
        load("mnist")


# --- torchvision


def test_torchvision_can_be_imported_twice() -> None:
    assert torchvision_datasets() is torchvision_datasets()
    assert torchvision_datasets().CIFAR10.base_folder == "cifar-10-batches-py"


def test_one_import_makes_torchvision_importable() -> None:
    program = "import coordinator.models.torchvision_fix, torchvision; print(torchvision.ops.nms.__name__)"
    done = subprocess.run([sys.executable, "-c", program], capture_output=True, text=True, check=False)
    assert (done.stdout, done.returncode) == ("nms\n", 0), done.stderr


def test_operators_are_declared_only_if_torchvision_lacks_them(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (tmp_path / "_C.so").write_bytes(b"no library")
    assert not torchvision_models._compiled.__wrapped__(tmp_path)
    monkeypatch.setattr("torch.ops.load_library", lambda _: None)
    assert torchvision_models._compiled.__wrapped__(tmp_path)
    monkeypatch.setattr(torchvision_models, "_compiled", lambda _: True)
    monkeypatch.setattr(torchvision_models, "_declared", lambda: pytest.fail("declared twice"))
    assert torchvision_datasets() is not None


@pytest.mark.parametrize("root", ["data", "data/usps"])
def test_usps_is_read_from_torchvision_files(root: str, tmp_path: Path) -> None:
    pixels = np.where(np.random.default_rng(1).random((6, 256)) < 0.5, -1, 1)
    (tmp_path / root).mkdir(parents=True)
    for name, some in (("usps.bz2", slice(0, 6)), ("usps.t.bz2", slice(4, 6))):
        lines = [
            " ".join([str(label + 1), *(f"{at}:{value}" for at, value in enumerate(row, 1))])
            for label, row in list(enumerate(pixels))[some]
        ]
        (tmp_path / root / name).write_bytes(bz2.compress("\n".join(lines).encode()))
    data = load("usps")
    assert np.array_equal(data.x_train, np.where(pixels > 0, 255, 0).reshape(6, 1, 16, 16))
    assert np.array_equal(data.x_test, data.x_train[4:])
    assert (data.y_train.tolist(), data.y_test.tolist()) == ([0, 1, 2, 3, 4, 5], [4, 5])


def test_cifar100_is_read_from_torchvision_files(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    # torchvision verifies checksums, which the test's files do not match.
    monkeypatch.setattr(f"{torchvision_datasets().__name__}.cifar.check_integrity", lambda *_: True)
    images = np.random.default_rng(1).integers(0, 256, (6, 3 * 32 * 32), dtype=np.uint8)
    folder = tmp_path / "data" / "cifar-100-python"
    folder.mkdir(parents=True)
    for name, some in (("train", slice(0, 6)), ("test", slice(3, 6))):
        content = {"data": images[some], "fine_labels": list(range(6))[some]}
        (folder / name).write_bytes(pickle.dumps(content))
    (folder / "meta").write_bytes(pickle.dumps({"fine_label_names": [f"thing-{at}" for at in range(100)]}))
    data = load("cifar100")
    assert np.array_equal(data.x_train, images.reshape(6, 3, 32, 32))
    assert np.array_equal(data.x_test, images.reshape(6, 3, 32, 32)[3:])
    assert (data.y_test.tolist(), len(data.classes), data.classes[7]) == ([3, 4, 5], 100, "thing-7")


def eurosat(folder: Path, sizes: list[int]) -> None:
    for kind in ("Forest", "River"):
        (folder / "eurosat" / "2750" / kind).mkdir(parents=True)
        for at, size in enumerate(sizes):
            image = Image.new("RGB", (size, size), (at, 0, 0))
            image.save(folder / "eurosat" / "2750" / kind / f"{kind}_{at}.png")


def test_torchvision_set_without_test_part_is_split(tmp_path: Path) -> None:
    eurosat(tmp_path, [4] * 5)
    data = load("eurosat", tmp_path)
    assert (data.classes, data.x_train.shape, len(data.y_test)) == (("Forest", "River"), (8, 3, 4, 4), 2)


def test_images_of_different_sizes_are_refused(tmp_path: Path) -> None:
    eurosat(tmp_path, [4, 4, 5])
    with pytest.raises(
        DataError, match=r"images differ in size \(\(4, 4, 3\), \(5, 5, 3\)\); convert them to one size"
    ):
        load("eurosat", tmp_path)


def test_damaged_torchvision_files_are_refused(tmp_path: Path) -> None:
    (tmp_path / "cifar-10-batches-py").mkdir()
    with pytest.raises(DataError, match="is not a valid folder of torchvision's CIFAR10: files are missing or damaged"):
        load("cifar10", tmp_path)


# --- missing data sets


def test_missing_known_set_names_searched_places_and_remedy(tmp_path: Path) -> None:
    with pytest.raises(DataError) as caught:
        load("fashion-mnist", tmp_path)
    output = str(caught.value)
    assert output.startswith("fashion-mnist is not on this machine; searched ")
    for place in ("fashion-mnist.npz", "fashion-mnist/raw", "fashion-mnist", "debian/fashion-mnist"):
        assert f"{tmp_path / place}" in output
    assert "apt install dataset-fashion-mnist" in output
    assert FOLDER in output
    assert all(name in output for name in NAMES)


@pytest.mark.parametrize("name", [name for name in NAMES if name not in ("digits", *MADE)])
def test_every_known_set_can_be_missing(name: str, tmp_path: Path) -> None:
    with pytest.raises(DataError, match=f"{name} is not on this machine"):
        load(name, tmp_path / "none")


@pytest.mark.parametrize(
    ("name", "message"),
    [
        (
            "fashion",
            "there is no data set 'fashion'; searched .*fashion.npz.*Known names: digits, diabetes, .*, cifar10",
        ),
        ("none.npz", "none.npz does not exist"),
        ("./none", "none does not exist"),
        ("./", "is a folder without the four IDX files"),
    ],
)
def test_unknown_data_set_name_is_an_error(name: str, message: str) -> None:
    with pytest.raises(DataError, match=message):
        load(name)
