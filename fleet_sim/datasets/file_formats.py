"""Data sets in files: NPZ (read and written), folders of images by domain, MNIST's IDX format, and torchvision's."""

from __future__ import annotations

import gzip
import pickle
import zlib
from collections.abc import Mapping
from dataclasses import dataclass, replace
from pathlib import Path
from typing import TYPE_CHECKING, Any

import msgspec
import numpy as np
from numpy.typing import NDArray

from coordinator.models.torchvision_models import torchvision_datasets
from fleet_sim.datasets.data_set import Found
from sojourn.data.column_names import FEATURE_NAMES
from sojourn.data.images import common_input
from sojourn.data.npz import TEST, Arrays, content_in, holds_pair, open_npz, pair_for
from sojourn.data.samples import Content, content_of
from sojourn.data.source import DataSettings, read_content
from sojourn.errors import DataError
from sojourn.protocol.spec import InputSpec

if TYPE_CHECKING:
    from fleet_sim.datasets.data_set import DataSet


_USERS = ("users", "users_train", "w_train")
_DOMAINS = ("domains", "domains_train", "d_train")


def read_npz(path: Path, classes: tuple[str, ...] = ()) -> Found:
    """Read an NPZ file; `classes` name its labels unless the file does. Pickled objects are never loaded."""
    with open_npz(path) as file:
        pair = pair_for(file, "train")
        labelled = holds_pair(file, pair)
        parted = pair != TEST and (holds_pair(file, TEST) if labelled else TEST[0] in file and pair[0] != TEST[0])
        train = content_in(file, str(path), pair)
        test = content_in(file, f"{path} (test part)", TEST) if parted else None
        users, domains = _first(file, _USERS), _first(file, _DOMAINS)
    return Found(_named(train, classes), test and _named(test, classes), users, domains)


def _named(content: Content, classes: tuple[str, ...]) -> Content:
    return replace(content, names=content.names or classes)


def _first(file: Arrays, keys: tuple[str, ...]) -> NDArray[np.generic] | None:
    return next((file[key] for key in keys if key in file), None)


def as_arrays(data: DataSet) -> dict[str, NDArray[np.generic]]:
    """Return the arrays of the file, by name.

    Windows of series become series with the length of one window.
    """
    if data.kind == "tokens":
        return {"x": np.concatenate([data.x_test, data.y_test[:, -1:]], axis=1)}
    if data.kind == "forecast":
        named = {"channels": np.array(data.channels)} if data.channels else {}
        return {"x": _series(data), **named}
    classes = {"classes": np.array(data.classes)} if data.classes else {}
    names = {"target_names": np.array(data.names)} if data.names else {}
    columns = {FEATURE_NAMES: np.array(data.columns)} if data.columns and data.x_test.ndim == 2 else {}
    return {"x": data.x_test, "y": data.y_test, **classes, **names, **columns}


def _series(data: DataSet) -> NDArray[np.generic]:
    """Return past and future values; channels without predictions are 0 in the future part, which is not read."""
    seen = data.x_test.reshape(len(data.x_test), -1, data.x_test.shape[-1])
    to_come = np.zeros((len(seen), data.y_test.shape[1], seen.shape[2]), np.float32)
    predicted = [data.channels.index(name) for name in data.names if name in data.channels]
    to_come[:, :, predicted or slice(None)] = data.y_test
    return np.concatenate([seen, to_come], axis=1)


def read_domains(root: Path, names: list[str], settings: DataSettings, wanted: InputSpec | None) -> Found:
    """Read all images of these domains with their domain's number, for a split by domain."""
    each = [msgspec.structs.replace(settings, path=str(root / name), scale=None) for name in names]
    size = wanted or common_input(settings)
    contents = [read_content(domain, "train", size) for domain in each]
    which = [content.label_index for content in contents]  # all domains have the same classes, in the same order
    whole = replace(
        contents[0],
        source=str(root),
        x=np.concatenate([content.x for content in contents]),
        label_index=np.concatenate(which),
        skipped=tuple(text for content in contents for text in content.skipped),
    )
    return Found(whole, domains=np.repeat(np.arange(len(names)), [len(part) for part in which]))


_UNSIGNED_BYTES = b"\x00\x00\x08"
_PARTS = {
    "train": ("train-images-idx3-ubyte", "train-labels-idx1-ubyte"),
    "test": ("t10k-images-idx3-ubyte", "t10k-labels-idx1-ubyte"),
}


def is_there(folder: Path) -> bool:
    """Return whether a folder contains all four files."""
    return all(_file(folder, name) is not None for part in _PARTS.values() for name in part)


def read_folder(folder: Path, classes: tuple[str, ...] = ()) -> Found:
    """Read the four files of a folder."""
    x, y = (_read(folder, name) for name in _PARTS["train"])
    x_test, y_test = (_read(folder, name) for name in _PARTS["test"])
    test = content_of(x_test, y_test, classes, f"{folder} (test part)")
    return Found(content_of(x, y, classes, str(folder)), test)


def _file(folder: Path, name: str) -> Path | None:
    """Return the file with that name; some sources write a dot before `idx`."""
    names = [name + end for name in (name, name.replace("-idx", ".idx")) for end in ("", ".gz")]
    return next((folder / name for name in names if (folder / name).is_file()), None)


def _read(folder: Path, name: str) -> NDArray[np.uint8]:
    path = _file(folder, name)
    if path is None:
        raise DataError(f"{folder}: neither {name} nor {name}.gz exists")
    try:
        content = gzip.decompress(path.read_bytes()) if path.suffix == ".gz" else path.read_bytes()
    except (OSError, EOFError, zlib.error) as error:
        raise DataError(f"{path} cannot be read: {error}") from error
    axes = content[3] if len(content) > 3 else 0
    start = 4 + 4 * axes
    if content[:3] != _UNSIGNED_BYTES or len(content) < start:
        raise DataError(f"{path} is not an IDX file of bytes")
    shape = tuple(int(size) for size in np.frombuffer(content, ">u4", axes, 4))
    if len(content) - start != int(np.prod(shape, dtype=np.int64)):
        raise DataError(f"{path} has a wrong length: its header states {shape}, {len(content) - start} bytes follow")
    return np.frombuffer(content, np.uint8, offset=start).reshape(shape)


@dataclass(frozen=True)
class TorchvisionSet:
    """A class of torchvision.datasets: its folder below the root, and the arguments that select its two parts."""

    kind: str
    below: str
    train: Mapping[str, Any]
    test: Mapping[str, Any] | None


_FLAG: tuple[Mapping[str, Any], Mapping[str, Any]] = ({"train": True}, {"train": False})
_SPLIT: tuple[Mapping[str, Any], Mapping[str, Any]] = ({"split": "train"}, {"split": "test"})
TORCHVISION_SETS = {
    "cifar10": TorchvisionSet("CIFAR10", "cifar-10-batches-py", *_FLAG),
    "cifar100": TorchvisionSet("CIFAR100", "cifar-100-python", *_FLAG),
    "emnist": TorchvisionSet(
        "EMNIST", "EMNIST/raw", {"split": "balanced", "train": True}, {"split": "balanced", "train": False}
    ),
    "eurosat": TorchvisionSet("EuroSAT", "eurosat/2750", {}, None),
    "qmnist": TorchvisionSet("QMNIST", "QMNIST/raw", *_FLAG),
    "semeion": TorchvisionSet("SEMEION", "semeion.data", {}, None),
    "stl10": TorchvisionSet("STL10", "stl10_binary", *_SPLIT),
    "svhn": TorchvisionSet("SVHN", "train_32x32.mat", *_SPLIT),
    "usps": TorchvisionSet("USPS", "usps.bz2", *_FLAG),
}
"""The sets with one label per image, and images of one size."""


def read_torchvision(root: Path, which: TorchvisionSet) -> Found:
    """Read a set below a root folder, as torchvision does."""
    train = _part(root, which, which.train)
    test = _part(root, which, which.test) if which.test is not None else None
    classes = tuple(str(name) for name in getattr(train, "classes", ()))
    source = f"{root} (torchvision's {which.kind})"
    return Found(
        content_of(*_arrays(train, root), classes, source),
        content_of(*_arrays(test, root), classes, f"{source} (test part)") if test else None,
    )


def _part(root: Path, which: TorchvisionSet, wanted: Mapping[str, Any]) -> Any:
    try:
        return getattr(torchvision_datasets(), which.kind)(str(root), download=False, **wanted)
    except (RuntimeError, OSError, EOFError, ValueError, KeyError, pickle.UnpicklingError) as error:
        raise DataError(
            f"{root / which.below} is not a valid folder of torchvision's {which.kind}: files are missing or damaged "
            f"({type(error).__name__}); download the set again"
        ) from error


def _arrays(part: Any, root: Path) -> tuple[NDArray[np.generic], NDArray[np.generic]]:
    images, labels = [], []
    for image, label in (part[at] for at in range(len(part))):
        images.append(np.asarray(image))
        labels.append(int(label))
        if images[-1].shape != images[0].shape:
            raise DataError(
                f"{root}: images differ in size ({images[0].shape}, {images[-1].shape}); convert them to one size in "
                "an NPZ file with arrays x and y, and use its path"
            )
    return np.stack(images), np.array(labels, np.int64)
