"""Labelled data on this machine: where it is, and how it becomes samples of a job.

This module stays without numpy, so that the agent itself can describe its data; reading comes with the training worker.
"""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING, Literal, Protocol

import msgspec

from sojourn.data.scaling import scaled, scaling_of
from sojourn.errors import DataError
from sojourn.settings import validated

if TYPE_CHECKING:
    import numpy as np
    from numpy.typing import NDArray

    from sojourn.data.samples import Content, Samples
    from sojourn.protocol.spec import InputSpec, TableSpec
    from sojourn.protocol.task import TaskSpec

Format = Literal["npz", "images", "csv", "text"]
Purpose = Literal["train", "test"]
"""What samples are for: it decides which arrays of an NPZ file are taken."""
_ZIP = b"PK\x03\x04"
_SUFFIXES: dict[str, Format] = {".npz": "npz", ".csv": "csv", ".txt": "text"}


class Form(Protocol):
    """What samples must fit: the kit of a job, or the card of a release."""

    @property
    def input(self) -> InputSpec:
        """The shape and type of one sample."""

    @property
    def classes(self) -> tuple[str, ...]:
        """The names of the classes, in their order."""

    @property
    def task(self) -> TaskSpec | msgspec.UnsetType:
        """What is learnt, where it is no plain classification."""

    @property
    def table(self) -> TableSpec | msgspec.UnsetType:
        """The columns of a sample by name, where it is a row of a table."""


class DataSettings(msgspec.Struct, frozen=True, forbid_unknown_fields=True, kw_only=True):
    """Where the data is and how to read it."""

    path: str
    """An NPZ or CSV file, a text, or a folder with a folder of images for each class. Example: `"photos"`."""
    format: Literal["auto"] | Format = "auto"
    """What it is; `auto` goes by its name, and by a file's first bytes."""
    x: str | None = None
    """The array of an NPZ file that has the samples; unless told `x_train`, `x` or `x_test`. Example: `"images"`."""
    y: str | None = None
    """The array of an NPZ file that has the labels; unless told `y_train`, `y` or `y_test`. Example: `"labels"`."""
    label: str | int | None = None
    """The label column of a CSV file: its name, its number (1 is the first), `"first"` or `"last"`; unless told the
    column named label, class, target or y, or else the last one. Example: `"species"`."""
    header: bool | None = None
    """Whether the first row of a CSV file names its columns; unless told, it does if it is not all numbers. Example:
    `true`."""
    scale: str | None = None
    """Brings values to another scale; unless told, they stay as they are. Example: `"0..255 to 0..1"`."""
    class_names: tuple[str, ...] = ()
    """What the integer labels 0, 1, ... of an NPZ or CSV file mean, if the file does not say it itself. Example:
    `["cat", "dog"]`."""
    targets: tuple[str | int, ...] = ()
    """The columns of a CSV file, by name or number, with what jobs predict, in the order in which they list it; unless
    told those that are called as in the job. Example: `["temp_c", "load_kw"]`."""
    target_scale: str | None = None
    """Brings what is predicted to another scale or unit, as `scale` does with the values of samples. Example:
    `"32..212 to 0..100"`."""
    ignore: tuple[str | int, ...] = ()
    """Columns of a CSV file, by name or number, that are not read. Example: `["id", "remark"]`."""
    time: str | int | None = None
    """The column of a CSV file with the time of each row, as a number or as 2026-05-01 12:30: the rows of a series are
    put in its order, and where it makes a jump is a gap. Unless told, rows are in order and without gaps. Example:
    `"time"`."""
    series: str | int | None = None
    """The column of a CSV file that tells several series apart, such as machines. Example: `"machine"`."""

    def __post_init__(self) -> None:
        for scale in (self.scale, self.target_scale):
            if scale is not None:
                scaling_of(scale)


def read_as(path: str, **flags: object) -> DataSettings:
    """The settings that flags of a command mean for a file."""
    return validated({"path": path} | {key: it for key, it in flags.items() if it is not None}, DataSettings, "flags")


def format_of(settings: DataSettings) -> Format:
    """The format of the data, told by the settings, else by the path, else by a file's first bytes."""
    path = Path(settings.path)
    try:
        folder = path.is_dir()
        if not folder and not path.exists():
            raise DataError(f"{path} does not exist")
    except OSError as error:
        raise DataError(f"{path} cannot be looked at: {error.strerror}") from error
    if settings.format == "auto":
        found = "images" if folder else _SUFFIXES.get(path.suffix.lower()) or _by_content(path)
        if found is None:
            raise DataError(
                f"{path} ends neither in .npz nor in .csv or .txt: set `format` to what it is, or rename it"
            )
        return found
    if settings.format != "text" and folder != (settings.format == "images"):
        raise DataError(f"{path} is a {'folder' if folder else 'file'}, which cannot be {settings.format!r} data")
    return settings.format


def describe(settings: DataSettings) -> str:
    """The data in a few words for the device's birth, without reading it."""
    try:
        return f"{format_of(settings)} {Path(settings.path).name}"
    except DataError as error:
        return f"no data: {error}"


def load_data(settings: DataSettings, form: Form, part: Purpose = "train") -> Samples:
    """Read the samples that fit a job or a release."""
    from sojourn.data.samples import fit  # noqa: PLC0415  # numpy comes with it

    content = read_content(settings, part, form.input, form.classes, form.task or None, form.table or None)
    return fit(content, form, part)


def read_content(
    settings: DataSettings,
    part: Purpose,
    wanted: InputSpec | None = None,
    classes: tuple[str, ...] | None = None,
    task: TaskSpec | None = None,
    table: TableSpec | None = None,
) -> Content:
    """Read what the data holds; images are brought to the size that is `wanted`, or else must all have one size.

    Of an image folder only the listed classes are read, so that what a job does not need costs no time.
    task: which columns are read as what; without it, as for a classifier. table: the job's columns, which are matched
    by name.
    """
    content = _read(settings, part, wanted, classes, task, table)
    if settings.target_scale and content.targets is not None:
        content = replace(content, targets=scaled(content.targets, scaling_of(settings.target_scale)))
    return replace(content, x=on_scale(content.x, settings)) if settings.scale else content


def on_scale(x: NDArray[np.generic], settings: DataSettings) -> NDArray[np.generic]:
    """Values on the scale that the settings ask for; what are no numbers stays, and is refused later."""
    return scaled(x, scaling_of(settings.scale)) if settings.scale and x.dtype.kind in "buif" else x


def _read(
    settings: DataSettings,
    part: Purpose,
    wanted: InputSpec | None,
    classes: tuple[str, ...] | None,
    task: TaskSpec | None,
    table: TableSpec | None,
) -> Content:
    # Not at the top: numpy comes with these, and Pillow with images.
    match format_of(settings):
        case "npz":
            from sojourn.data.column_names import in_job_order  # noqa: PLC0415
            from sojourn.data.npz import read_npz  # noqa: PLC0415

            return in_job_order(read_npz(settings, part), table)
        case "csv":
            from sojourn.data.csv import read_csv  # noqa: PLC0415
            from sojourn.data.csv_columns import Asked  # noqa: PLC0415

            return read_csv(settings, Asked(task, classes, wanted, table=table))
        case "images":
            from sojourn.data.images import common_input, read_images  # noqa: PLC0415

            return read_images(settings, wanted or common_input(settings, task), classes, task)
        case "text":
            if task.kind != "tokens" if task else wanted is not None:
                raise DataError(f'{settings.path} is text, which only a job with [task] kind = "tokens" learns')
            from sojourn.data.tokens import read_text  # noqa: PLC0415

            return read_text(settings)


def _by_content(path: Path) -> Format | None:
    try:
        with path.open("rb") as file:
            return "npz" if file.read(len(_ZIP)) == _ZIP else None
    except OSError as error:
        raise DataError(f"{path} cannot be read: {error.strerror}") from error
