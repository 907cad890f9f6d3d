"""A release of an ONNX file that was made elsewhere, with the samples that its owner gives."""

from __future__ import annotations

from typing import TYPE_CHECKING

import numpy as np

from coordinator.jobs.data import public_data
from coordinator.jobs.settings import JobData, JobSettings
from coordinator.releases.adopting import ROWS, adopt, made_up
from coordinator.releases.making import COMPARED, Material, make
from sojourn.data.npz_arrays import array_of, open_npz
from sojourn.errors import ConfigError, DataError

if TYPE_CHECKING:
    from pathlib import Path

    from coordinator.jobs.data import PublicData
    from coordinator.releases.adopting import Adopted
    from coordinator.releases.file import ReleaseFile
    from coordinator.releases.making import Wanted

EXEMPLARS = 10
"""Of each class, where there are that many: they calibrate and are not tested on."""


def from_file(path: Path, wanted: Wanted, samples: Path | None, names: tuple[str, ...] | None) -> ReleaseFile:
    """A release of the model in a file."""
    try:
        data = path.read_bytes()
    except OSError as error:
        raise DataError(f"{path} cannot be read: {error.strerror}") from error
    adopted = adopt(data, str(path))
    if names is not None and (len(names) != adopted.classes or len(set(names)) != len(names)):
        raise ConfigError(f"{len(names)} class names were given, and {path} needs {adopted.classes} different ones")
    if samples is None and wanted.encoding == "int8":
        raise ConfigError("int8 needs --samples: some calibrate it, others tell what it costs")
    numbers = tuple(str(number) for number in range(adopted.classes))
    given = _read(samples, adopted, names, numbers) if samples else None
    classes = names or (given.classes if given else numbers)
    shown, test = (given.exemplars, given.test) if given else (None, None)
    rows = shown.arrays()[0][:COMPARED] if shown else made_up(adopted.input, ROWS)
    words = f"tested on {len(test.y):,} samples of {samples.name}" if samples and test else "no samples were given"
    about = {"model": path.name[:2000], "data": words}
    return make(Material(adopted.graph, adopted.input, classes, shown, test), wanted, rows, None, about)


def _read(path: Path, adopted: Adopted, names: tuple[str, ...] | None, numbers: tuple[str, ...]) -> PublicData:
    """The samples, as a job's test set is read; labels are names of classes, or their numbers."""
    with open_npz(path) as file:
        key = "y_test" if "x_test" in file else "y"
        labels = array_of(path, file, key)
        own = tuple(str(name) for name in file["classes"]) if "classes" in file else None
    by_name = own is not None or labels.dtype.kind in "US"
    classes = (names or own or tuple(str(name) for name in np.unique(labels))) if by_name else numbers
    if len(classes) != adopted.classes:
        raise DataError(f"{path} has {len(classes)} classes, and the model {adopted.classes}: give --class-names")
    present = len(np.unique(labels))
    if len(labels) < 2 * present or not present:
        raise DataError(f"{path} has {len(labels)} samples of {present} classes: two of each are needed")
    data = JobData(
        test=str(path), classes=classes, input=adopted.input.shape, dtype=adopted.input.dtype,
        exemplars_per_class=max(1, min(EXEMPLARS, len(labels) // (2 * present))),
    )  # fmt: skip
    return public_data(JobSettings(name="release", data=data))
