"""Reads torchvision's data sets that are already on disk."""

from __future__ import annotations

import pickle
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import numpy as np

from coordinator.models.torchvision_models import torchvision_datasets
from fleet_sim.datasets.data_set import Found
from sojourn.data.samples import content_of
from sojourn.errors import DataError

if TYPE_CHECKING:
    from collections.abc import Mapping
    from pathlib import Path

    from numpy.typing import NDArray


@dataclass(frozen=True)
class TorchvisionSet:
    """A class of torchvision.datasets: its folder below the root, and the arguments that select its two parts."""

    kind: str
    below: str
    train: Mapping[str, Any]
    test: Mapping[str, Any] | None


_FLAG: tuple[Mapping[str, Any], Mapping[str, Any]] = ({"train": True}, {"train": False})
_SPLIT: tuple[Mapping[str, Any], Mapping[str, Any]] = ({"split": "train"}, {"split": "test"})
SETS = {
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
