"""Reader of CSV files: one sample, or one step of a series, per row."""

from __future__ import annotations

import csv
import logging
import shlex
from array import array
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field, replace
from math import prod
from pathlib import Path
from typing import TextIO

import msgspec
import numpy as np
from numpy.typing import NDArray

from sojourn.data.column_names import ColumnNames, column_positions, missing_names_error
from sojourn.data.csv_columns import (
    CsvColumns,
    ReadRequest,
    columns_left,
    detect_header,
    find_columns,
    has_column_names,
    is_number,
)
from sojourn.data.labels import MAX_LISTED, Labels, shorten
from sojourn.data.samples import Content, no_labels
from sojourn.data.series import Timeline, parse_time, sort_by_time
from sojourn.data.source import DataSettings, Form
from sojourn.errors import DataError

log = logging.getLogger(__name__)
_DELIMITERS = ",;\t"
_MAX_FAULTY_ROWS = 50
"""At most this many unreadable rows are kept, to detect columns of text."""
_OPTIONAL_LABELS = ("multilabel", "reconstruction")
"""Task kinds in which an empty label is valid: the sample has none of the labels."""


def read_csv(settings: DataSettings, request: ReadRequest, text: TextIO | None = None) -> Content:
    """Read a CSV file; rows with the wrong number of columns or without a required number are skipped and reported.

    text: read this stream instead of the file.
    """
    with _rows(settings.path, text) as rows:
        return _read(rows, settings, request)[0]


def read_table(settings: DataSettings, request: ReadRequest) -> tuple[Content, list[str]]:
    """Read a CSV file; for a list of images, also return the file name of each row."""
    with _rows(settings.path) as rows:
        return _read(rows, settings, request)


def read_features(settings: DataSettings, form: Form, text: TextIO | None = None) -> NDArray[np.float32]:
    """Read the features of every row for prediction, without labels and targets.

    text: read this stream instead of the file.
    """
    wanted = prod(form.input.shape)
    with _rows(settings.path, text) as rows:
        head = next(rows, [])
        settings = _drop_missing_columns(settings, [name.strip() for name in head])
        places, has_header = _feature_positions(head, settings, form, wanted)
        values = array("f")
        for line, row in enumerate(_data_rows(head, rows, has_header), start=2 if has_header else 1):
            cells = [row[place] for place in places] if len(row) == len(head) else []
            if row and not (cells and all(map(is_number, cells))):
                raise DataError(f"{settings.path}, line {line}: expected {wanted} numbers")
            values.extend(map(float, cells))
    return np.frombuffer(values, dtype=np.float32).reshape(-1, wanted)


def _drop_missing_columns(settings: DataSettings, names: list[str]) -> DataSettings:
    """Drop settings of columns that this file lacks: it may have fewer columns than a training file."""

    def exists(each: str | int | None) -> bool:
        return not isinstance(each, str) or each in names or each.isdecimal() or each in ("first", "last")

    found: DataSettings = msgspec.structs.replace(
        settings,
        ignore=tuple(each for each in settings.ignore if exists(each)),
        time=settings.time if exists(settings.time) else None,
        series=settings.series if exists(settings.series) else None,
    )
    return found


def _feature_positions(
    head: list[str], settings: DataSettings, form: Form, wanted: int
) -> tuple[tuple[int, ...], bool]:
    """Return the positions of a sample's features, and whether the first row is a header."""
    table = form.table or None
    request = ReadRequest(form.task or None, form.classes, form.input, table=table)
    names = [name.strip() for name in head]
    if table and has_column_names(names, settings, request):
        return column_positions(table.columns, names, settings.path), True
    if table and not table.by_position:
        raise missing_names_error(settings.path, table, "add a header line with these names")
    left = columns_left(head, settings)
    if len(left) == wanted:
        return left, detect_header([head[at] for at in left], settings)
    columns = find_columns(head, settings, request) if len(left) > 1 else None
    if columns is None or len(columns.features) != wanted:
        target = "a label" if not form.task else "the targets"
        raise DataError(
            f"{settings.path} has {len(head)} columns; the model expects {wanted} numbers, optionally with {target}"
        )
    return columns.features, columns.has_header


@contextmanager
def _rows(path: str, text: TextIO | None = None) -> Iterator[Iterator[list[str]]]:
    try:
        with text or Path(path).open(encoding="utf-8-sig", newline="") as file:
            first = file.readline()
            file.seek(0)
            yield csv.reader(file, delimiter=max(_DELIMITERS, key=first.count))
    except (OSError, UnicodeDecodeError, csv.Error) as error:
        raise DataError(f"{path} cannot be read as CSV: {error}") from error


@dataclass
class _Table:
    """The rows read so far, stored in compact arrays."""

    features: array[float] = field(default_factory=lambda: array("f"))
    targets: array[float] = field(default_factory=lambda: array("d"))
    labels: dict[str, int] = field(default_factory=dict)
    label_index: array[int] = field(default_factory=lambda: array("q"))
    time: array[float] = field(default_factory=lambda: array("d"))
    machines: dict[str, int] = field(default_factory=dict)
    machine: array[int] = field(default_factory=lambda: array("q"))
    files: list[str] = field(default_factory=list)
    faults: list[str] = field(default_factory=list)
    faulty: list[list[str]] = field(default_factory=list)
    """The first rows that could not be read, up to `_MAX_FAULTY_ROWS`."""
    rows: int = 0

    def add(self, row: list[str], columns: CsvColumns, *, label_needed: bool) -> None:
        """Add a row; raise ValueError and add nothing if it cannot be read."""
        if len(row) != len(columns.names):
            raise ValueError(f"{len(row)} columns instead of {len(columns.names)}")
        label = "" if columns.label is None else row[columns.label].strip()
        if columns.label is not None and label_needed and not label:
            raise ValueError("no label")
        values, targets = ([_number(row[at]) for at in places] for places in (columns.features, columns.targets))
        if columns.time is not None:
            self.time.append(parse_time(row[columns.time]))
        if columns.series is not None:
            self.machine.append(self.machines.setdefault(row[columns.series].strip(), len(self.machines)))
        if columns.file is not None:
            self.files.append(row[columns.file].strip())
        if columns.label is not None:
            self.label_index.append(self.labels.setdefault(label, len(self.labels)))
        self.features.extend(values)
        self.targets.extend(targets)
        self.rows += 1

    def add_faulty(self, row: list[str], line: int, fault: str, columns: CsvColumns, *, broken: bool) -> None:
        """Record a row that cannot be read; a series without times gets a row of NaN in its place."""
        self.faults.append(f"line {line}: {fault}")
        if len(self.faulty) < _MAX_FAULTY_ROWS:
            self.faulty.append(row)
        if broken and columns.time is None:
            self.features.extend([float("nan")] * len(columns.features))
            if columns.series is not None:
                self.machine.append(self.machine[-1] if self.machine else -1)
            self.rows += 1


def _read(rows: Iterator[list[str]], settings: DataSettings, request: ReadRequest) -> tuple[Content, list[str]]:
    head = next(rows, None)
    if head is None:
        raise DataError(f"{settings.path} is empty")
    columns = find_columns(head, settings, request)
    if columns.extra:
        extra = shorten(columns.names[at] for at in columns.extra)
        log.info("%s: the job does not use the columns %s", settings.path, extra)
    series = _is_series(columns, settings, request)
    if not series:
        columns = replace(columns, time=None, series=None)  # single samples have no order
    table, needed = _Table(), request.kind not in _OPTIONAL_LABELS
    good = 0
    for line, row in enumerate(_data_rows(head, rows, columns.has_header), start=2 if columns.has_header else 1):
        if not row:
            continue
        try:
            table.add(row, columns, label_needed=needed)
            good += 1
        except ValueError as error:
            table.add_faulty(row, line, str(error), columns, broken=series)
    if not good:
        _check_text(table.faulty, columns, settings, request)
    content = replace(_content(table, columns, settings), table=_column_names(columns, request))
    return (_as_series(content, table, columns, request) if series else content), table.files


def _column_names(columns: CsvColumns, request: ReadRequest) -> ColumnNames | None:
    """Return the names of the columns that were read; empty without a header."""
    if not columns.has_header or request.images:
        return None if request.images else ColumnNames()
    label, time, series = (
        None if at is None else columns.names[at] for at in (columns.label, columns.time, columns.series)
    )
    return ColumnNames(tuple(columns.names[at] for at in columns.features), label, time, series)


def _is_series(columns: CsvColumns, settings: DataSettings, request: ReadRequest) -> bool:
    """Return whether rows are steps of a series: for a forecast, or if only time or series columns are set."""
    timed = columns.time is not None or columns.series is not None
    bare = request.task is None and columns.label is None and not columns.targets and settings.label is None
    return request.kind == "forecast" or (timed and bare)


def _content(table: _Table, columns: CsvColumns, settings: DataSettings) -> Content:
    faults = table.faults
    more = [f"{len(faults) - MAX_LISTED} more faulty rows"] if len(faults) > MAX_LISTED else []
    x = np.frombuffer(table.features, dtype=np.float32).reshape(table.rows, len(columns.features))
    labels: Labels = ()
    label_index = no_labels(table.rows)
    targets: NDArray[np.generic] | None = None
    if columns.label is not None:
        # Integer labels are numbers here; `labels.named` maps them to class names.
        labels, label_index = _integer_labels(tuple(table.labels), np.array(table.label_index, dtype=np.int64))
        if table.labels and all(map(is_number, table.labels)):
            targets = np.array([float(label) for label in table.labels])[np.array(table.label_index, dtype=np.int64)]
    elif columns.targets:
        targets = np.frombuffer(table.targets, dtype=np.float64).reshape(table.rows, len(columns.targets))
    return Content(
        settings.path,
        x,
        labels,
        label_index,
        settings.class_names,
        (*faults[:MAX_LISTED], *more),
        columns.label_source,
        columns.guessed,
        columns.warnings,
        targets,
        columns.target_names,
    )


def _as_series(content: Content, table: _Table, columns: CsvColumns, request: ReadRequest) -> Content:
    machine = np.array(table.machine, np.int64) if columns.series is not None else np.zeros(table.rows, np.int64)
    time = np.array(table.time) if columns.time is not None else None
    called = dict(zip(columns.predicted, request.names, strict=False))
    names = tuple(called.get(at, columns.names[at]) for at in columns.features)
    return sort_by_time(content, names, Timeline(machine, tuple(table.machines), time))


def _check_text(faulty: list[list[str]], columns: CsvColumns, settings: DataSettings, request: ReadRequest) -> None:
    """Raise DataError if a whole column is text, so that no row could be read."""
    rows = [row for row in faulty if len(row) == len(columns.names)]
    wanted = (*columns.features, *columns.targets)
    texts = [at for at in wanted if rows and all(row[at].strip() and not is_number(row[at]) for row in rows)]
    if not texts:
        return
    names = ", ".join(repr(columns.names[at][:40]) for at in texts[:MAX_LISTED])
    wanted_by_job = request.table.columns if request.table else ()
    if needed := [columns.names[at] for at in texts if columns.has_header and columns.names[at] in wanted_by_job]:
        # Do not quote cells: operators read this message.
        raise DataError(f"{settings.path}: the job needs numbers in {shorten(needed)}, but this table has text there")
    if columns.guessed and columns.has_header:
        # One of these columns is more likely the label than the guessed one.
        name = columns.names[texts[0]][:40]
        raise DataError(
            f"{settings.path}: {names} {'holds' if len(texts) == 1 else 'hold'} text where numbers are needed, and no "
            f'column is named like a label: if jobs predict {name!r}, set data.label = "{name}" (--label '
            f"{shlex.quote(name)}); exclude any other text column with data.ignore (--ignore)"
        )
    ignore = ", ".join(
        f'"{columns.names[at][:40]}"' if columns.has_header else str(at + 1) for at in texts[:MAX_LISTED]
    )
    raise DataError(
        f"{settings.path}: {names} {'holds' if len(texts) == 1 else 'hold'} text where numbers are needed: "
        f"exclude it with data.ignore = [{ignore}], or convert it to numbers; set a time column with data.time, and a "
        "column of machine names with data.series"
    )


def _integer_labels(labels: tuple[str, ...], label_index: NDArray[np.int64]) -> tuple[Labels, NDArray[np.int64]]:
    """Convert labels to integers if all are whole numbers ("3" and "3.0" are the same label); otherwise keep them."""
    numbers = [number for label in labels if (number := _parse_integer(label)) is not None]
    if len(numbers) < len(labels):
        return labels, label_index
    place = {number: at for at, number in enumerate(dict.fromkeys(numbers))}
    places = np.array([place[number] for number in numbers], dtype=np.int64)
    return tuple(place), places[label_index] if len(label_index) else label_index


def _data_rows(head: list[str], rows: Iterator[list[str]], has_header: bool) -> Iterator[list[str]]:
    if not has_header:
        yield head
    yield from rows


def _number(cell: str) -> float:
    try:
        return float(cell)
    except ValueError:
        if cell.strip():
            raise ValueError(f"{cell[:40]!r} is not a number") from None
    return float("nan")  # a missing value: the sample is skipped and reported later


def _parse_integer(label: str) -> int | None:
    """Return the value of a label that is an unsigned whole number ("3" or "3.0"), or None."""
    digits, _, zeros = label.partition(".")
    short = digits.isdecimal() and len(digits) < 19  # longer numbers do not fit into int64
    return int(digits) if short and str(int(digits)) == digits and not zeros.strip("0") else None
