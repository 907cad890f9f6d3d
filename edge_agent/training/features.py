"""Features of a device's samples: computed once with a kit's trunk, stored on the disk, and used for training.

A file has a header of 64 bytes, followed by a row of float32 for each sample. The header contains a digest of the
samples and a checksum of the rows; a damaged file, or one of other data, is written again. If features cannot be
stored, the trunk runs in every epoch, with the same result.
"""

from __future__ import annotations

import hashlib
import logging
import zlib
from dataclasses import dataclass, replace
from math import prod
from pathlib import Path
from typing import Any

import numpy as np
import onnxruntime
from numpy.typing import NDArray

from edge_agent.machine_readings import free_disk
from edge_agent.training.data_watch import FeatureFolder
from edge_agent.training.descent import Batches, Prepared, Progress
from edge_agent.training.sandbox import MAX_FILE_SIZE
from sojourn.data.samples import Samples
from sojourn.model.graphs import Graphs
from sojourn.store.files import open_atomic

DEFAULT_FREE_DISK = 64
"""Megabytes that must stay free on the disk if the owner has not set limits.free_disk."""
_FORM = b"sojourn-feature1"
_HEAD = 64
_BLOCK = 1 << 22
log = logging.getLogger(__name__)


@dataclass(frozen=True)
class FeatureSamples:
    """Samples represented by their features."""

    features: NDArray[np.float32]
    y: NDArray[Any]

    def __len__(self) -> int:
        """Return the number of samples."""
        return len(self.y)

    def batch(self, index: NDArray[np.int64], dtype: str) -> tuple[NDArray[np.generic], NDArray[Any]]:
        """Return the features (always float32) and the targets of the samples with these indices."""
        del dtype
        return self.features[index], self.y[index]


@dataclass(frozen=True)
class TrunkSamples:
    """Samples whose features are computed on every access."""

    samples: Batches
    graphs: Graphs

    @property
    def y(self) -> NDArray[Any]:
        """The target of every sample."""
        return self.samples.y

    def __len__(self) -> int:
        """Return the number of samples."""
        return len(self.samples)

    def batch(self, index: NDArray[np.int64], dtype: str) -> tuple[NDArray[np.generic], NDArray[Any]]:
        """Return the features and the targets of the samples with these indices."""
        x, y = self.samples.batch(index, dtype)
        return self.graphs.features(x), y


class _NotStoredError(Exception):
    """Features cannot be stored, for this reason."""


@dataclass(frozen=True)
class FeatureFiles:
    """The folder of features, and the megabytes that must stay free on the disk."""

    folder: FeatureFolder
    free: int | None = None

    def samples(self, prepared: Prepared, kit: bytes, mark: str, progress: Progress) -> FeatureSamples:
        """Return the stored features of the samples; compute and store them if they are missing."""
        self.folder.sweep()
        path, shape = self.folder.path(kit, mark), (len(prepared.samples), *prepared.kit.taken.shape)
        found = _read(path, prepared.content, shape)
        if found is None:
            self.folder.forget(kit)
            self._check_room(_HEAD + prod(shape) * np.dtype(np.float32).itemsize)
            try:
                _write(path, prepared, progress)
            except OSError as error:
                raise _NotStoredError(f"{path} cannot be written: {error.strerror}") from error
            found = _read(path, prepared.content, shape)
        if found is None:
            raise _NotStoredError(f"{path} cannot be read back after writing")
        return FeatureSamples(found, prepared.samples.y)

    def _check_room(self, size: int) -> None:
        room = self.folder.room()
        if size > room:
            raise _NotStoredError(
                f"they take {_megabytes(size)} MB, and {_megabytes(max(0, room))} MB are left of limits.feature_disk = "
                f"{self.folder.limit} MB"
            )
        if size > MAX_FILE_SIZE:
            raise _NotStoredError(
                f"they take {_megabytes(size)} MB, and a file may have at most {MAX_FILE_SIZE >> 20} MB"
            )
        free, wanted = free_disk(self.folder.folder), DEFAULT_FREE_DISK if self.free is None else self.free
        if free is not None and free - size / (1 << 20) < wanted:
            raise _NotStoredError(
                f"they take {_megabytes(size)} MB, and {wanted} MB of the {free:.0f} MB free on the disk must stay free"
            )


def with_features(
    prepared: Prepared, files: FeatureFiles | None, kit: bytes, mark: str, progress: Progress
) -> Prepared:
    """Replace the samples by their features: stored ones if possible, otherwise computed on every access.

    kit: the kit's digest; mark: the state of the data when the samples were read.
    """
    each_time, warnings = TrunkSamples(prepared.samples, prepared.graphs), prepared.warnings
    if files is None:
        return replace(prepared, samples=each_time)
    try:
        return replace(prepared, samples=files.samples(prepared, kit, mark, progress))
    except _NotStoredError as error:
        warning = f"features of samples are not stored, so every epoch runs the whole model: {error}"
        return replace(prepared, samples=each_time, warnings=(*warnings, warning))


def content_of(samples: Samples) -> bytes:
    """Return a digest of the samples and of the onnxruntime version that computes their features."""
    known = hashlib.blake2b(f"{onnxruntime.__version__} {samples.x.dtype} {samples.x.shape}".encode(), digest_size=32)
    step = max(1, _BLOCK // max(1, samples.x[:1].nbytes))
    for at in range(0, len(samples), step):
        known.update(np.ascontiguousarray(samples.x[at : at + step]).data)
    return known.digest()


def _write(path: Path, prepared: Prepared, progress: Progress) -> None:
    """Compute the features sample by sample; the file appears under its name when it is complete."""
    samples, dtype = prepared.samples, prepared.kit.input.dtype
    progress(0, len(samples))
    with open_atomic(path, mode=0o600, sync=False) as file:
        file.write(bytes(_HEAD))
        check = 0
        for at in range(len(samples)):
            row = prepared.graphs.features(samples.batch(np.array([at]), dtype)[0]).astype("<f4").tobytes()
            check = zlib.crc32(row, check)
            file.write(row)
            progress(at + 1, len(samples))
        file.seek(0)
        file.write(_head(prepared.content, check))
    log.info("features of %d samples stored (%s MB)", len(samples), _megabytes(path.stat().st_size))


def _read(path: Path, content: bytes, shape: tuple[int, ...]) -> NDArray[np.float32] | None:
    """Map the stored features; None if the file is missing, damaged, or of other samples."""
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
