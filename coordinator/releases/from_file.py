"""Create a release from an ONNX file of another tool, with its owner's samples."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

import msgspec

from coordinator.jobs.data import PublicData, public_side
from coordinator.jobs.settings import JobData
from coordinator.jobs.settings_tables import TaskSettings
from coordinator.jobs.task_data import packed, task_data, task_from_settings
from coordinator.releases.adopting import ROWS, Adopted, adopt, generated_rows
from coordinator.releases.file import ReleaseFile
from coordinator.releases.making import COMPARED, Material, Wanted, make
from sojourn.data.column_names import table_of
from sojourn.data.labels import NO_LABELS, classes_of
from sojourn.data.samples import Content
from sojourn.data.source import DataSettings, read_content
from sojourn.errors import ConfigError, DataError
from sojourn.model.exemplars import Exemplars
from sojourn.protocol.spec import TableSpec
from sojourn.protocol.task import Strata, Target, TaskSpec

EXEMPLARS = 10
"""The maximum number of samples of each class that calibrate and are not tested on."""


def from_file(
    path: Path,
    wanted: Wanted,
    samples: DataSettings | None,
    names: tuple[str, ...] | None,
    targets: tuple[str, ...] | None = None,
) -> ReleaseFile:
    """Create a release of the model in a file: a classifier, or with `targets` a regression of these quantities."""
    try:
        data = path.read_bytes()
    except OSError as error:
        raise DataError(f"{path} cannot be read: {error.strerror}") from error
    if samples is None and wanted.encoding == "int8":
        raise ConfigError("int8 needs --samples: some to calibrate, others to measure the loss of quality")
    if targets is not None:
        return _regressor(path, adopt(data, str(path), "outputs"), wanted, samples, targets)
    adopted = adopt(data, str(path))
    if names is not None and (len(names) != adopted.classes or len(set(names)) != len(names)):
        raise ConfigError(f"{len(names)} class names were given, and {path} needs {adopted.classes} different ones")
    numbers = tuple(str(number) for number in range(adopted.classes))
    given = _read(samples, adopted, names, numbers) if samples else None
    classes = names or (given.classes if given else numbers)
    exemplars, test = (given.exemplars, given.test) if given else (None, None)
    rows = exemplars.arrays()[0][:COMPARED] if exemplars else generated_rows(adopted.input, ROWS)
    table = given.table if given else None
    about = _about(path, samples, test, given.skipped if given else ())
    material = Material(adopted.graph, adopted.input, classes, exemplars, test, table=table)
    return make(material, wanted, rows, None, about)


def _about(
    path: Path, samples: DataSettings | None, test: Exemplars | None, skipped: tuple[str, ...] = ()
) -> dict[str, str]:
    """Describe the model and its samples by the names of their files."""
    words = "no samples were given"
    if samples and test:
        words = f"tested on {len(test.y):,} samples of {Path(samples.path).name}"
    return {"model": path.name[:2000], "data": "; ".join((words, *skipped))[:2000]}


def _regressor(
    path: Path, adopted: Adopted, wanted: Wanted, samples: DataSettings | None, targets: tuple[str, ...]
) -> ReleaseFile:
    if len(targets) != adopted.classes or len(set(targets)) != len(targets):
        raise ConfigError(f"{len(targets)} targets were given, and {path} needs {adopted.classes} different ones")
    task = TaskSpec("regression", (len(targets),), Target((len(targets),)), Strata(1), targets)
    exemplars, test, table = None, None, None
    if samples is not None:
        settings = TaskSettings(kind="regression", targets=targets)
        content = read_content(samples, "test", adopted.input, None, task_from_settings(settings))
        data, table = JobData(input=adopted.input.shape, dtype=adopted.input.dtype), _table(content)
        found = task_data(settings, data, 0, content, None)
        exemplars, test = (
            packed(each, found.task, data.dtype, test=False) for each in (found.exemplars, found.test) if each
        )
        task = msgspec.structs.replace(found.task, loss="")
    rows = exemplars.arrays()[0][:COMPARED] if exemplars else generated_rows(adopted.input, ROWS)
    material = Material(adopted.graph, adopted.input, (), exemplars, test, task, table)
    return make(material, wanted, rows, None, _about(path, samples, test))


def _read(
    settings: DataSettings, adopted: Adopted, names: tuple[str, ...] | None, numbers: tuple[str, ...]
) -> PublicData:
    """Read the samples as a job's test set; labels are names of classes, or their numbers."""
    path, content = settings.path, read_content(settings, "test", adopted.input)
    if not content.labels:
        raise DataError(f"{path} has no labels for a test: {content.label_source or 'only numbers'}")
    by_name = bool(content.names) or any(isinstance(label, str) for label in content.labels)
    classes = (names or content.names or classes_of([content])) if by_name else numbers
    if len(classes) != adopted.classes:
        raise DataError(f"{path} has {len(classes)} classes, and the model has {adopted.classes}: set --class-names")
    samples, present = len(content.label_index), len(content.labels)
    if samples and not present:
        raise DataError(f"{path} has {content.label_source or NO_LABELS}: a test needs a class for each sample")
    if samples < 2 * present or not present:
        raise DataError(f"{path} has {samples} samples of {present} classes: two of each are needed")
    data = JobData(
        classes=classes,
        input=adopted.input.shape,
        dtype=adopted.input.dtype,
        exemplars_per_class=max(1, min(EXEMPLARS, samples // (2 * present))),
    )
    made = public_side(data, 0, content if by_name else replace(content, names=numbers), None)
    return replace(made, table=_table(content))


def _table(content: Content) -> TableSpec | None:
    """Return the columns of the samples by name, in the order of the model's input."""
    return table_of(content.source, content.table) if content.table and content.table.columns else None
