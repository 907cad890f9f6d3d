"""Data settings, and the entry points that read data in any format."""

from __future__ import annotations

import re
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING, Literal, NamedTuple, Protocol

import msgspec

from sojourn.errors import DataError
from sojourn.protocol.spec import InputSpec, TableSpec
from sojourn.protocol.task import TaskSpec
from sojourn.settings import validated

if TYPE_CHECKING:
    import numpy as np
    from numpy.typing import NDArray

    from sojourn.data.samples import Content, Samples


_NUMBER = r"([-+]?(?:\d+\.?\d*|\.\d+)(?:[eE][-+]?\d+)?)"
_FORM = re.compile(rf"\s*{_NUMBER}\s*\.\.\s*{_NUMBER}\s+to\s+{_NUMBER}\s*\.\.\s*{_NUMBER}\s*")
_WHOLE = re.compile(r"(?<![\d.])(\d+)\.\.")
_BLOCK = 1024


class Scaling(NamedTuple):
    """The linear map that takes `low` to `new_low` and `high` to `new_high`."""

    low: float
    high: float
    new_low: float
    new_high: float


def parse_scaling(text: str) -> Scaling:
    """Parse a scaling such as "0..255 to 0..1"; raise ValueError for other text."""
    # "0..1": without a space, the pattern would read the first dot as part of the number.
    found = _FORM.fullmatch(_WHOLE.sub(r"\1 ..", text))
    made = Scaling(*map(float, found.groups())) if found else None
    if made is None or made.low == made.high or made.new_low == made.new_high:
        raise ValueError(
            f'{text[:80]!r} is not a scale: write the old and the new range, such as "0..255 to 0..1" (0 stays 0, 255 '
            "becomes 1)"
        )
    return made


def scaled(x: NDArray[np.generic], scaling: Scaling) -> NDArray[np.float32]:
    """Return the values on the new scale, as float32."""
    import numpy as np  # noqa: PLC0415  # reading settings must not import numpy

    low, high, new_low, new_high = scaling
    out = np.empty(x.shape, np.float32)
    # Block by block: a whole dataset as float64 would take eight times its size.
    for at in range(0, len(x), _BLOCK):
        wide = x[at : at + _BLOCK].astype(np.float64)
        out[at : at + _BLOCK] = (wide - low) / (high - low) * (new_high - new_low) + new_low
    return out


# This module does not import numpy, so that the agent process can describe its data; the training worker reads it.


Format = Literal["npz", "images", "csv", "text"]
Purpose = Literal["train", "test"]
"""The purpose of samples, which selects the arrays of an NPZ file."""
_ZIP = b"PK\x03\x04"
_SUFFIXES: dict[str, Format] = {".npz": "npz", ".csv": "csv", ".txt": "text"}


class Form(Protocol):
    """The required form of samples: a job's kit or a release's card."""

    @property
    def input(self) -> InputSpec:
        """The shape and type of one sample."""

    @property
    def classes(self) -> tuple[str, ...]:
        """The class names, in order."""

    @property
    def task(self) -> TaskSpec | None:
        """The task, or None for a classification."""

    @property
    def table(self) -> TableSpec | None:
        """The column names of a sample that is a row of a table, or None."""


class DataSettings(msgspec.Struct, frozen=True, forbid_unknown_fields=True, kw_only=True):
    """The location of the data and how to read it."""

    path: str
    """An NPZ, CSV or text file, or a folder with a folder of images for each class. Example: `"photos"`."""
    format: Literal["auto"] | Format = "auto"
    """The data format; `auto` detects it from the file name and the first bytes."""
    x: str | None = None
    """The array of an NPZ file with the samples; by default `x_train`, `x` or `x_test`. Example: `"images"`."""
    y: str | None = None
    """The array of an NPZ file with the labels; by default `y_train`, `y` or `y_test`. Example: `"labels"`."""
    label: str | int | None = None
    """The label column of a CSV file: its name, its number (1 is the first), `"first"` or `"last"`; by default the
    column named label, labels, class, target or y, otherwise the last one. Example: `"species"`."""
    header: bool | None = None
    """Whether the first row of a CSV file is a header; by default it is if it is not all numbers. Example:
    `true`."""
    scale: str | None = None
    """Converts values to another scale; by default they are not changed. Example: `"0..255 to 0..1"`."""
    class_names: tuple[str, ...] = ()
    """The class names of the integer labels 0, 1, ... of an NPZ or CSV file, if the file does not contain them.
    Example: `["cat", "dog"]`."""
    targets: tuple[str | int, ...] = ()
    """The target columns of a CSV file, by name or number, in the job's order; by default those with the names that the
    job lists. Example: `["temp_c", "load_kw"]`."""
    target_scale: str | None = None
    """Converts targets to another scale or unit, as `scale` does for the values of samples. Example:
    `"32..212 to 0..100"`."""
    ignore: tuple[str | int, ...] = ()
    """Columns of a CSV file, by name or number, that are not read. Example: `["id", "remark"]`."""
    time: str | int | None = None
    """The column of a CSV file with the time of each row, as a number or as 2026-05-01 12:30. Rows of a series are
    sorted by it, and a jump is a gap. By default, rows are in order and without gaps. Example: `"time"`."""
    series: str | int | None = None
    """The column of a CSV file that identifies the series, such as the machine. Example: `"machine"`."""

    def __post_init__(self) -> None:
        for scale in (self.scale, self.target_scale):
            if scale is not None:
                parse_scaling(scale)


def read_as(path: str, **flags: object) -> DataSettings:
    """Return the settings for a file from a command's flags."""
    return validated({"path": path} | {key: it for key, it in flags.items() if it is not None}, DataSettings, "flags")


def format_of(settings: DataSettings) -> Format:
    """Return the format of the data, from the settings, the path, or the first bytes of the file."""
    path = Path(settings.path)
    try:
        folder = path.is_dir()
        if not folder and not path.exists():
            raise DataError(f"{path} does not exist")
    except OSError as error:
        raise DataError(f"{path} cannot be accessed: {error.strerror}") from error
    if settings.format == "auto":
        found = "images" if folder else _SUFFIXES.get(path.suffix.lower()) or _by_content(path)
        if found is None:
            raise DataError(f"{path} does not end in .npz, .csv or .txt: set data.format, or rename the file")
        return found
    if settings.format != "text" and folder != (settings.format == "images"):
        raise DataError(f"{path} is a {'folder' if folder else 'file'}, which cannot be {settings.format!r} data")
    return settings.format


def describe(settings: DataSettings) -> str:
    """Describe the data in a few words for the device's birth message, without reading it."""
    try:
        return f"{format_of(settings)} {Path(settings.path).name}"
    except DataError as error:
        return f"no data: {error}"


def load_data(settings: DataSettings, form: Form, part: Purpose = "train") -> Samples:
    """Read the samples that fit a job or a release."""
    from sojourn.data.samples import fit  # noqa: PLC0415  # imports numpy

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
    """Read the content of the data; images are resized to `wanted`, or must all have the same size.

    Only the listed classes of an image folder are read, which saves time.
    task: determines the role of columns; None means classification. table: the job's columns, matched by name.
    """
    # Imported here: these modules import numpy, and images imports Pillow.
    match format_of(settings):
        case "npz":
            from sojourn.data.column_names import in_job_order  # noqa: PLC0415
            from sojourn.data.npz import read_npz  # noqa: PLC0415

            content = in_job_order(read_npz(settings, part), table)
        case "csv":
            from sojourn.data.csv import read_csv  # noqa: PLC0415
            from sojourn.data.csv_columns import ReadRequest  # noqa: PLC0415

            content = read_csv(settings, ReadRequest(task, classes, wanted, table=table))
        case "images":
            from sojourn.data.images import common_input, read_images  # noqa: PLC0415

            content = read_images(settings, wanted or common_input(settings, task), classes, task)
        case "text":
            if task.kind != "tokens" if task else wanted is not None:
                raise DataError(f'{settings.path} is text, which only a job with [task] kind = "tokens" can train on')
            from sojourn.data.samples import read_text  # noqa: PLC0415

            content = read_text(settings)
    if settings.target_scale and content.targets is not None:
        content = replace(content, targets=scaled(content.targets, parse_scaling(settings.target_scale)))
    return replace(content, x=on_scale(content.x, settings)) if settings.scale else content


def on_scale(x: NDArray[np.generic], settings: DataSettings) -> NDArray[np.generic]:
    """Return the values on the configured scale; other types are returned as they are and rejected later."""
    return scaled(x, parse_scaling(settings.scale)) if settings.scale and x.dtype.kind in "buif" else x


def _by_content(path: Path) -> Format | None:
    try:
        with path.open("rb") as file:
            return "npz" if file.read(len(_ZIP)) == _ZIP else None
    except OSError as error:
        raise DataError(f"{path} cannot be read: {error.strerror}") from error
