"""What the coordinator needs of a job's data: a test set, exemplars cut from it, class names, normalisation."""

from __future__ import annotations

from dataclasses import dataclass
from importlib.metadata import distribution
from typing import TYPE_CHECKING

import numpy as np

from coordinator.jobs.settings import DIGITS
from sojourn.data.npz_arrays import array_of, open_npz
from sojourn.errors import DataError
from sojourn.model.exemplars import Exemplars
from sojourn.protocol.spec import InputSpec
from sojourn.randomness import generator

if TYPE_CHECKING:
    from numpy.typing import NDArray

    from coordinator.jobs.settings import JobData, JobSettings


@dataclass(frozen=True)
class PublicData:
    """The public side of a job's data."""

    input: InputSpec
    classes: tuple[str, ...]
    mean: tuple[float, ...] | None
    std: tuple[float, ...] | None
    exemplars: Exemplars | None
    test: Exemplars | None


@dataclass(frozen=True)
class Labelled:
    """Samples as they were read, and what they were read from."""

    source: str
    x: NDArray[np.generic]
    y: NDArray[np.generic]
    classes: tuple[str, ...] | None


def public_data(job: JobSettings) -> PublicData:
    """Read what the job names; exemplars come from their own file, or are cut from the test set and never tested on."""
    data = job.data
    test = _read(data.test, train=False) if data.test else None
    shown = _read(data.exemplars, train=True) if data.exemplars else None
    classes = data.classes or (test and test.classes) or (shown and shown.classes) or _counted(test, shown)
    first = test or shown
    shape = data.input or _shape(first, data)
    if test and shown is None:
        test, shown = _cut(test, data.exemplars_per_class, job.seed)
    mean, std = (data.mean, data.std) if data.mean or data.std else normalisation(shown, shape, data)
    return PublicData(
        InputSpec(shape, data.dtype), classes, mean, std, _packed(shown, shape, classes, data),
        _packed(test, shape, classes, data),
    )  # fmt: skip


def digits() -> tuple[NDArray[np.float32], NDArray[np.int64]]:
    """Scikit-learn's digits: 1,797 images of 8x8, values 0 to 16."""
    # From its file: importing sklearn takes two seconds, and a job is prepared in a process of its own.
    path = distribution("scikit-learn").locate_file("sklearn/datasets/data/digits.csv.gz")
    rows = np.loadtxt(str(path), delimiter=",")
    return rows[:, :-1].reshape(-1, 1, 8, 8).astype(np.float32), rows[:, -1].astype(np.int64)


def digits_split(*, train: bool) -> tuple[NDArray[np.float32], NDArray[np.int64]]:
    """A fixed split of the digits: every fifth is for testing."""
    x, y = digits()
    tested = np.arange(len(y)) % 5 == 0
    return (x[~tested], y[~tested]) if train else (x[tested], y[tested])


def _read(name: str, *, train: bool) -> Labelled:
    if name == DIGITS:
        x, y = digits_split(train=train)
        return Labelled(name, x, y, tuple(str(digit) for digit in range(10)))
    with open_npz(name, "the coordinator's machine") as file:
        keys = ("x_train", "y_train") if train and "x_train" in file else ("x_test", "y_test")
        x_key, y_key = keys if keys[0] in file else ("x", "y")
        classes = tuple(str(one) for one in file["classes"]) if "classes" in file else None
        return Labelled(name, array_of(name, file, x_key), array_of(name, file, y_key), classes)


def _counted(*files: Labelled | None) -> tuple[str, ...]:
    """Class names from the labels themselves, where nobody gave any."""
    labels = [str(label) for each in files if each is not None for label in np.unique(each.y)]
    return tuple(sorted(set(labels), key=lambda name: (not name.isdigit(), int(name) if name.isdigit() else 0, name)))


def _shape(first: Labelled | None, data: JobData) -> tuple[int, ...]:
    if first is None:
        raise DataError("data.input is not given, and there is no file to take it from")
    shape = first.x.shape[1:]
    if data.dtype == "int64" or len(shape) in (0, 1):
        return tuple(int(size) for size in shape) or (1,)
    if len(shape) == 2:
        return (1, int(shape[0]), int(shape[1]))
    if len(shape) == 3 and shape[0] not in (1, 3) and shape[2] in (1, 3):
        return (int(shape[2]), int(shape[0]), int(shape[1]))
    return tuple(int(size) for size in shape)


def _cut(test: Labelled, each: int, seed: int) -> tuple[Labelled, Labelled]:
    """Some samples of each class as exemplars, the others for testing."""
    order = generator(seed, "exemplars").permutation(len(test.y))
    chosen = np.concatenate([order[test.y[order] == label][:each] for label in np.unique(test.y)])
    rest = np.setdiff1d(np.arange(len(test.y)), chosen)
    if not len(rest):
        raise DataError(
            f"{test.source}: {each} exemplars of each class leave nothing to test on; lower data.exemplars_per_class"
        )
    pick = [Labelled(test.source, test.x[at], test.y[at], test.classes) for at in (rest, np.sort(chosen))]
    return pick[0], pick[1]


def normalisation(
    shown: Labelled | None, shape: tuple[int, ...], data: JobData
) -> tuple[tuple[float, ...] | None, tuple[float, ...] | None]:
    """Mean and deviation of the exemplars by channel (images) or over all (flat data)."""
    if shown is None or data.dtype == "int64":
        return None, None
    x = _shaped(shown, shape).astype(np.float64)
    if len(shape) != 3:
        return (float(x.mean()),), (float(x.std()) or 1.0,)
    axes = (0, 2, 3)
    mean, std = x.mean(axis=axes), x.std(axis=axes)
    return tuple(float(m) for m in mean), tuple(float(s) or 1.0 for s in std)


def _shaped(samples: Labelled, shape: tuple[int, ...]) -> NDArray[np.generic]:
    found = samples.x.shape[1:]
    if found == shape:
        return samples.x
    if len(shape) == 3 and found == (shape[1], shape[2], shape[0]):
        return np.ascontiguousarray(samples.x.transpose(0, 3, 1, 2))
    if len(shape) == 3 and found == shape[1:] and shape[0] == 1:
        return samples.x[:, None]
    raise DataError(f"{samples.source}: samples have the shape {found}, the job expects {shape}")


def _packed(
    samples: Labelled | None, shape: tuple[int, ...], classes: tuple[str, ...], data: JobData
) -> Exemplars | None:
    if samples is None:
        return None
    x = _shaped(samples, shape)
    wanted = np.int64 if data.dtype == "int64" else np.uint8 if x.dtype == np.uint8 else np.float32
    return Exemplars.of(x.astype(wanted), _numbers(samples, classes))


def _numbers(samples: Labelled, classes: tuple[str, ...]) -> NDArray[np.int64]:
    """Labels as class numbers, by name."""
    number = {name: at for at, name in enumerate(classes)}
    own = samples.classes
    try:
        names = [own[int(label)] if own and not isinstance(label, str) else str(label) for label in samples.y.tolist()]
        return np.array([number[name] for name in names], np.int64)
    except (KeyError, IndexError, ValueError) as error:
        raise DataError(f"{samples.source}: the label {error} is none of the job's classes {classes}") from error
