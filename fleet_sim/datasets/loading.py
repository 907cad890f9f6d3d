"""Finds data sets by name or path."""

from __future__ import annotations

import os
from collections.abc import Callable, Iterator
from dataclasses import dataclass, replace
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING

import msgspec
import numpy as np

from coordinator.jobs.data import digits_split
from coordinator.jobs.settings import DIGITS, JobData
from coordinator.jobs.settings_tables import TaskSettings
from coordinator.jobs.task_data import task_from_settings
from fleet_sim.datasets import file_formats
from fleet_sim.datasets.built_in_sets import MADE
from fleet_sim.datasets.data_set import DataSet, Found, in_order
from fleet_sim.datasets.file_formats import TORCHVISION_SETS, read_domains, read_npz, read_torchvision
from sojourn.data.column_names import in_job_order
from sojourn.data.images import domains_of
from sojourn.data.samples import content_of
from sojourn.data.source import DataSettings, on_scale, read_content
from sojourn.errors import ConfigError, DataError
from sojourn.protocol.spec import InputSpec, TableSpec
from sojourn.protocol.task import TaskSpec, Window

if TYPE_CHECKING:
    from fleet_sim.datasets.built_in_sets import MadeSet

FOLDER = "SOJOURN_DATA"
"""The environment variable that names the folder of data sets."""
_USUAL = "data"
"""The usual folder of torchvision's users, searched if the variable is not set."""
_DIGITS = tuple(str(digit) for digit in range(10))
_DEBIAN = Path("/usr/share/datasets")


@dataclass(frozen=True)
class KnownDataSet:
    """A data set known by name: its classes, alternative file names, and how to obtain it."""

    classes: tuple[str, ...] = ()
    files: tuple[str, ...] = ()
    idx: bool = False
    get: str = ""


@dataclass(frozen=True)
class _Place:
    """A possible location of a set, with functions to check and to read it."""

    path: Path
    there: Callable[[Path], bool]
    read: Callable[[], Found]


_KNOWN = {
    "cifar10": KnownDataSet(
        ("airplane", "automobile", "bird", "cat", "deer", "dog", "frog", "horse", "ship", "truck"), ("cifar-10",)
    ),
    "fashion-mnist": KnownDataSet(
        ("T-shirt/top", "Trouser", "Pullover", "Dress", "Coat", "Sandal", "Shirt", "Sneaker", "Bag", "Ankle boot"),
        idx=True,
        get="apt install dataset-fashion-mnist (Debian, Ubuntu), or ",
    ),
    "kmnist": KnownDataSet(("o", "ki", "su", "tsu", "na", "ha", "ma", "ya", "re", "wo"), idx=True),
    "mnist": KnownDataSet(_DIGITS, idx=True),
    "office-caltech-10": KnownDataSet(files=("office_caltech10_64",)),
    **{name: KnownDataSet() for name in TORCHVISION_SETS if name != "cifar10"},
}
NAMES = (DIGITS, *MADE, *sorted(_KNOWN))


def _unscaled(path: str) -> DataSettings:
    return DataSettings(path=path)


def load(
    name: str,
    folder: Path | None = None,
    *,
    seed: int = 0,
    how: Callable[[str], DataSettings] = _unscaled,
    wanted: InputSpec | None = None,
    task: TaskSettings | None = None,
    data: JobData | None = None,
) -> DataSet:
    """Return a data set by its name, or by the path of an NPZ or CSV file, an image folder, or a folder of IDX files.

    Names are searched in `folder`, by default in the folder named by SOJOURN_DATA, or in ./data. `seed` selects the
    fifth of the samples used for testing if a set has no test part. For paths, `how` sets how a device would read the
    file, and `wanted` the size of images; by default all must have the same size. `task` and `data` are a job's
    settings; by default those of the named set, otherwise classification.
    """
    if (made := made_set(name)) is not None:
        return _made(made, seed, task)
    spec = None if task is None or task.plain else task_from_settings(task)
    own, found = _find(name, folder, how, wanted, spec, data.listed_columns if data else None)
    return in_order(own, _scaled(found, how(name)), seed, task, data)


def made_set(name: str) -> MadeSet | None:
    """Return the generated set of that name, if there is one."""
    return next((made for known, made in MADE.items() if _plain(known) == _plain(name)), None)


def _made(made: MadeSet, seed: int, task: TaskSettings | None) -> DataSet:
    if made.kind == "forecast" and task is not None and task.kind == made.kind:
        return made.make(seed, Window(task.steps or made.task["steps"], task.horizon, task.stride))
    data = made.make(seed)
    if task is None or task.kind == data.kind:
        return data
    if task.kind != "reconstruction":
        raise ConfigError(f"the task of {data.name} is {data.kind}, but task.kind is {task.kind!r}: omit it")
    y, y_test = (np.zeros(len(part), np.int64) for part in (data.x_train, data.x_test))
    return replace(data, y_train=y, y_test=y_test, classes=(), names=(), window=None, kind="reconstruction")


def _find(
    name: str,
    folder: Path | None,
    how: Callable[[str], DataSettings],
    wanted: InputSpec | None,
    task: TaskSpec | None = None,
    table: TableSpec | None = None,
) -> tuple[str, Found]:
    """Return the set's canonical name, and the contents of its source."""
    if _plain(name) == DIGITS:
        source = "scikit-learn's digits"
        train, test = (content_of(*digits_split(train=train), _DIGITS, source) for train in (True, False))
        return DIGITS, Found(train, test)
    if name.endswith((".npz", ".csv", ".txt")) or os.sep in name:
        path = Path(name).expanduser()
        return path.stem, _by_path(path, how(str(path)), wanted, task, table)
    where = folder or Path(os.environ.get(FOLDER) or _USUAL).expanduser()
    own = next((known for known in _KNOWN if _plain(name) in _names(known)), name)
    for place in _places(own, where):
        if place.there(place.path):
            return own, place.read()
    raise DataError(_absent(own, where))


def _scaled(found: Found, settings: DataSettings) -> Found:
    """Return the samples on the requested scale."""
    test = found.test and replace(found.test, x=on_scale(found.test.x, settings))
    return replace(found, train=replace(found.train, x=on_scale(found.train.x, settings)), test=test)


def _by_path(
    path: Path, settings: DataSettings, wanted: InputSpec | None, task: TaskSpec | None, table: TableSpec | None
) -> Found:
    text = path.suffix == ".txt" or (task is not None and task.kind == "tokens" and path.is_dir())
    if path.is_dir() and not text:
        if file_formats.is_there(path):
            return file_formats.read_folder(path, settings.class_names)
        if not any(each.is_dir() for each in path.iterdir()):
            raise DataError(f"{path} is a folder without the four IDX files and without folders of images")
        if domains := domains_of(path):
            return read_domains(path, list(domains), settings, wanted)
    if path.is_dir() or path.suffix.lower() == ".csv" or text:
        unscaled = msgspec.structs.replace(settings, scale=None)  # done for all sources in one place
        unscaled = msgspec.structs.replace(unscaled, format="text") if text else unscaled
        return Found(read_content(unscaled, "train", wanted, task=task, table=table))
    found = read_npz(path, settings.class_names)
    return replace(found, train=in_job_order(found.train, table), test=found.test and in_job_order(found.test, table))


def _places(name: str, folder: Path) -> Iterator[_Place]:
    """Return the possible locations of a set, in order of preference."""
    known = _KNOWN.get(name, KnownDataSet())
    for path in _alike(name, folder, ".npz"):
        yield _Place(path, Path.is_file, partial(read_npz, path, known.classes))
    below = _alike(name, folder)
    if known.idx:
        for path in (each for one in (*below, _DEBIAN / name) for each in (one / "raw", one)):
            yield _Place(path, file_formats.is_there, partial(file_formats.read_folder, path, known.classes))
    if torchvision := TORCHVISION_SETS.get(name):
        for root in (folder, *below):
            yield _Place(root / torchvision.below, Path.exists, partial(read_torchvision, root, torchvision))


def _alike(name: str, folder: Path, suffix: str = "") -> list[Path]:
    """Return the entries of a folder with this name, ignoring dashes and case; at least one."""
    there = sorted(folder.iterdir()) if folder.is_dir() else []
    alike = [path for path in there if path.suffix == suffix and _plain(path.stem) in _names(name)]
    return alike or [folder / f"{name}{suffix}"]


def _names(name: str) -> list[str]:
    return [_plain(each) for each in (name, *_KNOWN.get(name, KnownDataSet()).files)]


def _plain(name: str) -> str:
    return "".join(letter for letter in name.lower() if letter.isalnum())


def _absent(name: str, folder: Path) -> str:
    looked = ", ".join(str(place.path) for place in _places(name, folder))
    names = ", ".join(NAMES)
    torchvisions = name in TORCHVISION_SETS or _KNOWN.get(name, KnownDataSet()).idx
    files = f"{name}.npz (arrays x and y){' or torchvision files' if torchvisions else ''}"
    what = f"{name} is not on this machine" if name in NAMES else f"there is no data set {name!r}"
    how = _KNOWN.get(name, KnownDataSet()).get
    do = f"{how}put {files} into the folder that {FOLDER} names, or use the path of an NPZ"
    return f"{what}; searched {looked}. To fix this: {do}. Known names: {names}"
