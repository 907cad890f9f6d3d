"""CSV files: one sample, or one step of a series, per row; numbers in all columns but the label's."""

from __future__ import annotations

import csv
import logging
import shlex
from array import array
from contextlib import contextmanager
from dataclasses import dataclass, field, replace
from math import prod
from pathlib import Path
from typing import TYPE_CHECKING, TextIO

import msgspec
import numpy as np

from sojourn.data.column_names import FoundColumns, no_names, places_of
from sojourn.data.csv_columns import Asked, columns_left, columns_of, has_names, is_headed, is_number
from sojourn.data.labels import NAMED, shorten
from sojourn.data.samples import Content, no_labels
from sojourn.data.series import Timeline, in_time, time_of
from sojourn.errors import DataError

if TYPE_CHECKING:
    from collections.abc import Iterator

    from numpy.typing import NDArray

    from sojourn.data.csv_columns import CsvColumns
    from sojourn.data.labels import Labels
    from sojourn.data.source import DataSettings, Form

log = logging.getLogger(__name__)
_DELIMITERS = ",;\t"
_LOOKED_AT = 50
"""Rows by which a column of text is known."""
_MAY_BE_EMPTY = ("multilabel", "reconstruction")
"""Kinds of tasks in which a sample without a label means something: that it has none of them."""


def read_csv(settings: DataSettings, asked: Asked | None = None, text: TextIO | None = None) -> Content:
    """What a CSV file holds; rows that are ragged or hold no number where one is due are left out and said.

    text: what is read instead of the file.
    """
    with _rows(settings.path, text) as rows:
        return _read(rows, settings, asked or Asked())[0]


def read_table(settings: DataSettings, asked: Asked) -> tuple[Content, list[str]]:
    """What a CSV file holds, and of a list of images the file that each row names."""
    with _rows(settings.path) as rows:
        return _read(rows, settings, asked)


def read_features(settings: DataSettings, form: Form, text: TextIO | None = None) -> NDArray[np.float32]:
    """The numbers of every row, to predict from; labels and targets, where a file has them, are left out.

    text: what is read instead of the file.
    """
    wanted = prod(form.input.shape)
    with _rows(settings.path, text) as rows:
        head = next(rows, [])
        settings = _as_far_as_there(settings, [name.strip() for name in head])
        places, headed = _places(head, settings, form, wanted)
        values = array("f")
        for line, row in enumerate(_from(head, rows, headed), start=2 if headed else 1):
            cells = [row[place] for place in places] if len(row) == len(head) else []
            if row and not (cells and all(map(is_number, cells))):
                raise DataError(f"{settings.path}, line {line}: {wanted} numbers are expected")
            values.extend(map(float, cells))
    return np.frombuffer(values, dtype=np.float32).reshape(-1, wanted)


def _as_far_as_there(settings: DataSettings, names: list[str]) -> DataSettings:
    """The settings without columns to leave out that a file does not have: it may hold less than one to train on."""

    def there(each: str | int | None) -> bool:
        return not isinstance(each, str) or each in names or each.isdecimal() or each in ("first", "last")

    found: DataSettings = msgspec.structs.replace(
        settings,
        ignore=tuple(each for each in settings.ignore if there(each)),
        time=settings.time if there(settings.time) else None,
        series=settings.series if there(settings.series) else None,
    )
    return found


def _places(head: list[str], settings: DataSettings, form: Form, wanted: int) -> tuple[tuple[int, ...], bool]:
    """The columns with the numbers of a sample, and whether the first row names them."""
    table = form.table or None
    asked = Asked(form.task or None, form.classes, form.input, table=table)
    names = [name.strip() for name in head]
    if table and has_names(names, settings, asked):
        return places_of(table.columns, names, settings.path), True
    if table and not table.by_position:
        raise no_names(settings.path, table, "add a header line with these names")
    left = columns_left(head, settings)
    if len(left) == wanted:
        return left, is_headed([head[at] for at in left], settings)
    columns = columns_of(head, settings, asked) if len(left) > 1 else None
    if columns is None or len(columns.features) != wanted:
        also = "a label" if not form.task else "what is predicted"
        raise DataError(
            f"{settings.path} has {len(head)} columns, the model expects {wanted} numbers, or these and {also}"
        )
    return columns.features, columns.headed


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
    """What was read so far, as compact as arrays are."""

    features: array[float] = field(default_factory=lambda: array("f"))
    targets: array[float] = field(default_factory=lambda: array("d"))
    labels: dict[str, int] = field(default_factory=dict)
    which: array[int] = field(default_factory=lambda: array("q"))
    time: array[float] = field(default_factory=lambda: array("d"))
    machines: dict[str, int] = field(default_factory=dict)
    machine: array[int] = field(default_factory=lambda: array("q"))
    files: list[str] = field(default_factory=list)
    faults: list[str] = field(default_factory=list)
    faulty: list[list[str]] = field(default_factory=list)
    """The first rows that could not be read."""
    rows: int = 0

    def add(self, row: list[str], columns: CsvColumns, *, label_needed: bool) -> None:
        """Take a row, all of it or nothing; ValueError says what is wrong with it."""
        if len(row) != len(columns.names):
            raise ValueError(f"{len(row)} columns instead of {len(columns.names)}")
        label = "" if columns.at is None else row[columns.at].strip()
        if columns.at is not None and label_needed and not label:
            raise ValueError("no label")
        values, targets = ([_number(row[at]) for at in places] for places in (columns.features, columns.targets))
        if columns.time is not None:
            self.time.append(time_of(row[columns.time]))
        if columns.series is not None:
            self.machine.append(self.machines.setdefault(row[columns.series].strip(), len(self.machines)))
        if columns.file is not None:
            self.files.append(row[columns.file].strip())
        if columns.at is not None:
            self.which.append(self.labels.setdefault(label, len(self.labels)))
        self.features.extend(values)
        self.targets.extend(targets)
        self.rows += 1

    def miss(self, row: list[str], line: int, fault: str, columns: CsvColumns, *, broken: bool) -> None:
        """Note a row that cannot be read; in a series without times it is missing from its place."""
        self.faults.append(f"line {line}: {fault}")
        if len(self.faulty) < _LOOKED_AT:
            self.faulty.append(row)
        if broken and columns.time is None:
            self.features.extend([float("nan")] * len(columns.features))
            if columns.series is not None:
                self.machine.append(self.machine[-1] if self.machine else -1)
            self.rows += 1


def _read(rows: Iterator[list[str]], settings: DataSettings, asked: Asked) -> tuple[Content, list[str]]:
    head = next(rows, None)
    if head is None:
        raise DataError(f"{settings.path} is empty")
    columns = columns_of(head, settings, asked)
    if columns.extra:
        extra = shorten(columns.names[at] for at in columns.extra)
        log.info("%s: the job does not use the columns %s", settings.path, extra)
    series = _is_series(columns, settings, asked)
    if not series:
        columns = replace(columns, time=None, series=None)  # they say nothing of a sample that stands alone
    table, needed = _Table(), asked.kind not in _MAY_BE_EMPTY
    good = 0
    for line, row in enumerate(_from(head, rows, columns.headed), start=2 if columns.headed else 1):
        if not row:
            continue
        try:
            table.add(row, columns, label_needed=needed)
            good += 1
        except ValueError as error:
            table.miss(row, line, str(error), columns, broken=series)
    if not good:
        _check_text(table.faulty, columns, settings, asked)
    content = replace(_content(table, columns, settings), table=_named(columns, asked))
    return (_series_of(content, table, columns, asked) if series else content), table.files


def _named(columns: CsvColumns, asked: Asked) -> FoundColumns | None:
    """The columns that were read, by name; without a header there are no names."""
    if not columns.headed or asked.images:
        return None if asked.images else FoundColumns()
    label, time, series = (
        None if at is None else columns.names[at] for at in (columns.at, columns.time, columns.series)
    )
    return FoundColumns(tuple(columns.names[at] for at in columns.features), label, time, series)


def _is_series(columns: CsvColumns, settings: DataSettings, asked: Asked) -> bool:
    """Whether rows are steps of a series: for a forecast, or where nobody says more than which column is the time."""
    timed = columns.time is not None or columns.series is not None
    bare = asked.task is None and columns.at is None and not columns.targets and settings.label is None
    return asked.kind == "forecast" or (timed and bare)


def _content(table: _Table, columns: CsvColumns, settings: DataSettings) -> Content:
    faults = table.faults
    more = [f"{len(faults) - NAMED} more faulty rows"] if len(faults) > NAMED else []
    x = np.frombuffer(table.features, dtype=np.float32).reshape(table.rows, len(columns.features))
    labels: Labels = ()
    which = no_labels(table.rows)
    targets: NDArray[np.generic] | None = None
    if columns.at is not None:
        # Labels that are all integers may mean anything; `named` asks what.
        labels, which = _meant(tuple(table.labels), np.array(table.which, dtype=np.int64))
        if table.labels and all(map(is_number, table.labels)):
            targets = np.array([float(label) for label in table.labels])[np.array(table.which, dtype=np.int64)]
    elif columns.targets:
        targets = np.frombuffer(table.targets, dtype=np.float64).reshape(table.rows, len(columns.targets))
    return Content(
        settings.path,
        x,
        labels,
        which,
        settings.class_names,
        (*faults[:NAMED], *more),
        columns.why,
        columns.guessed,
        columns.doubts,
        targets,
        columns.target_names,
    )


def _series_of(content: Content, table: _Table, columns: CsvColumns, asked: Asked) -> Content:
    machine = np.array(table.machine, np.int64) if columns.series is not None else np.zeros(table.rows, np.int64)
    time = np.array(table.time) if columns.time is not None else None
    called = dict(zip(columns.predicted, asked.names, strict=False))
    names = tuple(called.get(at, columns.names[at]) for at in columns.features)
    return in_time(content, names, Timeline(machine, tuple(table.machines), time))


def _check_text(faulty: list[list[str]], columns: CsvColumns, settings: DataSettings, asked: Asked) -> None:
    """Whether a whole column is text, so that no row at all could be read."""
    rows = [row for row in faulty if len(row) == len(columns.names)]
    wanted = (*columns.features, *columns.targets)
    texts = [at for at in wanted if rows and all(row[at].strip() and not is_number(row[at]) for row in rows)]
    if not texts:
        return
    names = ", ".join(repr(columns.names[at][:40]) for at in texts[:NAMED])
    wanted_by_job = asked.table.columns if asked.table else ()
    if needed := [columns.names[at] for at in texts if columns.headed and columns.names[at] in wanted_by_job]:
        # No cell is quoted: operators read this.
        raise DataError(f"{settings.path}: the job takes numbers from {shorten(needed)}, and this table has text there")
    if columns.guessed and columns.headed:
        # The label is more likely to be one of these than the column that was taken for it.
        name = columns.names[texts[0]][:40]
        raise DataError(
            f"{settings.path}: {names} {'holds' if len(texts) == 1 else 'hold'} text where numbers are needed, and no "
            f'column is named as the label: if {name!r} is what jobs predict, set data.label = "{name}" (--label '
            f"{shlex.quote(name)}); leave out any other column of text with data.ignore (--ignore)"
        )
    ignore = ", ".join(f'"{columns.names[at][:40]}"' if columns.headed else str(at + 1) for at in texts[:NAMED])
    raise DataError(
        f"{settings.path}: {names} {'holds' if len(texts) == 1 else 'hold'} text where numbers are needed: leave it "
        f"out with data.ignore = [{ignore}], or make numbers of it; what tells when a row was is data.time, what tells "
        "machines apart data.series"
    )


def _meant(labels: tuple[str, ...], which: NDArray[np.int64]) -> tuple[Labels, NDArray[np.int64]]:
    """Labels that are all whole numbers as numbers, in which "3" and "3.0" are one; else as they are."""
    numbers = [number for label in labels if (number := _whole(label)) is not None]
    if len(numbers) < len(labels):
        return labels, which
    place = {number: at for at, number in enumerate(dict.fromkeys(numbers))}
    places = np.array([place[number] for number in numbers], dtype=np.int64)
    return tuple(place), places[which] if len(which) else which


def _from(head: list[str], rows: Iterator[list[str]], headed: bool) -> Iterator[list[str]]:
    if not headed:
        yield head
    yield from rows


def _number(cell: str) -> float:
    try:
        return float(cell)
    except ValueError:
        if cell.strip():
            raise ValueError(f"{cell[:40]!r} is not a number") from None
    return float("nan")  # a missing value, which is left out and said later


def _whole(label: str) -> int | None:
    """The number that a label is, if it is a whole one without sign; "3.0", as some programs write 3, is one too."""
    digits, _, zeros = label.partition(".")
    short = digits.isdecimal() and len(digits) < 19  # what is longer fits no int64, and means nothing
    return int(digits) if short and str(int(digits)) == digits and not zeros.strip("0") else None
