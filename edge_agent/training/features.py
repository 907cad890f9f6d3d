"""Features of a device's samples: made once with a kit's trunk, kept on the disk, and trained on from then on.

A file is a head of 64 bytes and then a row of float32 for each sample. The head says which samples it is of, by their
content, and a sum over the rows: whatever else the file is, damaged or of other data, it is made anew. Where there is
no room the trunk is run each time, with the same result.
"""

from __future__ import annotations

import hashlib
import logging
import zlib
from dataclasses import dataclass, replace
from math import prod
from typing import TYPE_CHECKING, Any

import numpy as np
import onnxruntime

from edge_agent.limits.readings import free_disk
from edge_agent.training.cage import LARGEST_FILE
from sojourn.store.files import written_beside

if TYPE_CHECKING:
    from pathlib import Path

    from numpy.typing import NDArray

    from edge_agent.training.descent import Batches, Prepared, Progress
    from edge_agent.training.feature_folder import FeatureFolder
    from sojourn.data.samples import Samples
    from sojourn.model.graphs import Graphs

SPARE = 64
"""Megabytes that are left free on the disk where the owner has not said how many must be."""
_FORM = b"sojourn-feature1"
_HEAD = 64
_BLOCK = 1 << 22
log = logging.getLogger(__name__)


@dataclass(frozen=True)
class FeatureSamples:
    """Samples as their features."""

    features: NDArray[np.float32]
    y: NDArray[Any]

    def __len__(self) -> int:
        """How many samples there are."""
        return len(self.y)

    def batch(self, index: NDArray[np.int64], dtype: str) -> tuple[NDArray[np.generic], NDArray[Any]]:
        """The features of the samples with these numbers, and their class numbers; features are always float32."""
        del dtype
        return self.features[index], self.y[index]


@dataclass(frozen=True)
class TrunkSamples:
    """Samples that go through the trunk each time they are asked for."""

    samples: Batches
    graphs: Graphs

    @property
    def y(self) -> NDArray[Any]:
        """What every sample is compared with."""
        return self.samples.y

    def __len__(self) -> int:
        """How many samples there are."""
        return len(self.samples)

    def batch(self, index: NDArray[np.int64], dtype: str) -> tuple[NDArray[np.generic], NDArray[Any]]:
        """The features of the samples with these numbers, and their class numbers."""
        x, y = self.samples.batch(index, dtype)
        return self.graphs.features(x), y


class _NotKeptError(Exception):
    """Features are not kept here, for this reason."""


@dataclass(frozen=True)
class FeatureFiles:
    """Where features are kept, and how many megabytes they must leave free on the disk."""

    folder: FeatureFolder
    free: int | None = None

    def samples(self, prepared: Prepared, kit: bytes, mark: str, progress: Progress) -> FeatureSamples:
        """The features that are kept of the samples, or else made now."""
        self.folder.sweep()
        path, shape = self.folder.path(kit, mark), (len(prepared.samples), *prepared.kit.taken.shape)
        found = _read(path, prepared.content, shape)
        if found is None:
            self.folder.forget(kit)
            self._check_room(_HEAD + prod(shape) * np.dtype(np.float32).itemsize)
            try:
                _write(path, prepared, progress)
            except OSError as error:
                raise _NotKeptError(f"{path} cannot be written: {error.strerror}") from error
            found = _read(path, prepared.content, shape)
        if found is None:
            raise _NotKeptError(f"{path} does not hold what was written to it")
        return FeatureSamples(found, prepared.samples.y)

    def _check_room(self, size: int) -> None:
        room = self.folder.room()
        if size > room:
            raise _NotKeptError(
                f"they take {_megabytes(size)} MB, and of limits.feature_disk = {self.folder.most} MB are left "
                f"{_megabytes(max(0, room))}"
            )
        if size > LARGEST_FILE:
            raise _NotKeptError(f"they take {_megabytes(size)} MB, and no file may take over {LARGEST_FILE >> 20} MB")
        free, wanted = free_disk(self.folder.folder), SPARE if self.free is None else self.free
        if free is not None and free - size / (1 << 20) < wanted:
            raise _NotKeptError(
                f"they take {_megabytes(size)} MB, and of the disk's {free:.0f} MB that are free {wanted} must stay so"
            )


def with_features(
    prepared: Prepared, files: FeatureFiles | None, kit: bytes, mark: str, progress: Progress
) -> Prepared:
    """The same with features in place of samples: kept ones where that is possible, else made each time.

    kit: its digest; mark: the state of the data when the samples were read.
    """
    each_time, warnings = TrunkSamples(prepared.samples, prepared.graphs), prepared.warnings
    if files is None:
        return replace(prepared, samples=each_time)
    try:
        return replace(prepared, samples=files.samples(prepared, kit, mark, progress))
    except _NotKeptError as error:
        told = f"features of samples are not kept, so every epoch runs the whole model: {error}"
        return replace(prepared, samples=each_time, warnings=(*warnings, told))


def content_of(samples: Samples) -> bytes:
    """A digest of what features are made of: the samples, and the program that makes them."""
    known = hashlib.blake2b(f"{onnxruntime.__version__} {samples.x.dtype} {samples.x.shape}".encode(), digest_size=32)
    step = max(1, _BLOCK // max(1, samples.x[:1].nbytes))
    for at in range(0, len(samples), step):
        known.update(np.ascontiguousarray(samples.x[at : at + step]).data)
    return known.digest()


def _write(path: Path, prepared: Prepared, progress: Progress) -> None:
    """Make the features of one sample after another; the file is there when all are."""
    samples, dtype = prepared.samples, prepared.kit.input.dtype
    progress(0, len(samples))
    with written_beside(path, mode=0o600, sync=False) as file:
        file.write(bytes(_HEAD))
        check = 0
        for at in range(len(samples)):
            row = prepared.graphs.features(samples.batch(np.array([at]), dtype)[0]).astype("<f4").tobytes()
            check = zlib.crc32(row, check)
            file.write(row)
            progress(at + 1, len(samples))
        file.seek(0)
        file.write(_head(prepared.content, check))
    log.info("features of %d samples are kept (%s MB)", len(samples), _megabytes(path.stat().st_size))


def _read(path: Path, content: bytes, shape: tuple[int, ...]) -> NDArray[np.float32] | None:
    """The features, as they are on the disk; None where they are not, or are damaged or of other samples."""
    try:
        if path.stat().st_size != _HEAD + prod(shape) * np.dtype(np.float32).itemsize:
            return None
        found = np.memmap(path, "<f4", "r", _HEAD, shape).view(np.ndarray)
        with path.open("rb") as file:
            head = file.read(_HEAD)
    except (OSError, ValueError):
        return None
    return found if head == _head(content, _check(found)) else None


def _check(features: NDArray[np.float32]) -> int:
    check, step = 0, max(1, _BLOCK // max(1, features[:1].nbytes))
    for at in range(0, len(features), step):
        check = zlib.crc32(features[at : at + step].data, check)
    return check


def _head(content: bytes, check: int) -> bytes:
    return (_FORM + content + check.to_bytes(4, "little")).ljust(_HEAD, b"\0")


def _megabytes(size: int) -> str:
    return f"{size / (1 << 20):.1f}"
