"""CSV files: one sample per row, numbers in all columns but the label's."""

from __future__ import annotations

import csv
from array import array
from contextlib import contextmanager
from pathlib import Path
from typing import TYPE_CHECKING

import numpy as np

from sojourn.data.labels import NAMED
from sojourn.data.samples import Content
from sojourn.errors import DataError

if TYPE_CHECKING:
    from collections.abc import Iterator

    from numpy.typing import NDArray

    from sojourn.data.source import DataSettings

_DELIMITERS = ",;\t"


def read_csv(settings: DataSettings) -> Content:
    """What a CSV file holds; rows that are ragged or hold no number where one is due are left out and said."""
    with _rows(settings.path) as rows:
        return _read(rows, settings)


def read_features(settings: DataSettings, features: int) -> NDArray[np.float32]:
    """The numbers of every row, to predict from; in a file with one column more that one is the label, and left out."""
    with _rows(settings.path) as rows:
        head = next(rows, [])
        if len(head) not in (features, features + 1):
            raise DataError(f"{settings.path} has {len(head)} columns, the model expects {features} numbers")
        labelled = len(head) > features
        at, headed = _label_column(head, settings) if labelled else (None, not all(map(_is_number, head)))
        values = array("f")
        for line, row in enumerate(_from(head, rows, headed), start=2 if headed else 1):
            cells = [cell for place, cell in enumerate(row) if place != at]
            if row and (len(row) != len(head) or not all(map(_is_number, cells))):
                raise DataError(f"{settings.path}, line {line}: {features} numbers are expected")
            values.extend(map(float, cells))
    return np.frombuffer(values, dtype=np.float32).reshape(-1, features)


@contextmanager
def _rows(path: str) -> Iterator[Iterator[list[str]]]:
    try:
        with Path(path).open(encoding="utf-8-sig", newline="") as file:
            first = file.readline()
            file.seek(0)
            yield csv.reader(file, delimiter=max(_DELIMITERS, key=first.count))
    except (OSError, UnicodeDecodeError, csv.Error) as error:
        raise DataError(f"{path} cannot be read as CSV: {error}") from error


def _read(rows: Iterator[list[str]], settings: DataSettings) -> Content:
    head = next(rows, None)
    if head is None:
        raise DataError(f"{settings.path} is empty")
    at, headed = _label_column(head, settings)
    features, labels, which, faults = array("f"), dict[str, int](), array("q"), list[str]()
    for line, row in enumerate(_from(head, rows, headed), start=2 if headed else 1):
        if not row:
            continue
        try:
            values = _numbers(row, at, len(head))
        except ValueError as error:
            faults.append(f"line {line}: {error}")
            continue
        features.extend(values)
        which.append(labels.setdefault(row[at].strip(), len(labels)))
    more = [f"{len(faults) - NAMED} more faulty rows"] if len(faults) > NAMED else []
    x = np.frombuffer(features, dtype=np.float32).reshape(len(which), len(head) - 1)
    # Labels that are all integers may mean anything; `named` asks what.
    meant = tuple(int(label) for label in labels) if all(map(_is_integer, labels)) else tuple(labels)
    which_each = np.array(which, dtype=np.int64)
    return Content(settings.path, x, meant, which_each, settings.class_names, (*faults[:NAMED], *more))


def _from(head: list[str], rows: Iterator[list[str]], headed: bool) -> Iterator[list[str]]:
    if not headed:
        yield head
    yield from rows


def _label_column(head: list[str], settings: DataSettings) -> tuple[int, bool]:
    """Where the labels stand, and whether the first row is a header."""
    names = [name.strip() for name in head]
    if len(names) < 2:
        raise DataError(f"{settings.path} has {len(names)} column(s): a label and at least one number are needed")
    if settings.label is not None and settings.label not in names:
        raise DataError(f"{settings.path} has no column {settings.label!r}, only {', '.join(names[:20])}")
    wanted = settings.label or "label"
    if wanted in names:
        return names.index(wanted), True
    return len(names) - 1, not all(_is_number(name) for name in names[:-1])


def _numbers(row: list[str], at: int, columns: int) -> list[float]:
    if len(row) != columns:
        raise ValueError(f"{len(row)} columns instead of {columns}")
    if not row[at].strip():
        raise ValueError("no label")
    cells = row[:at] + row[at + 1 :]
    wrong = next((cell for cell in cells if cell.strip() and not _is_number(cell)), None)
    if wrong is not None:
        raise ValueError(f"{wrong[:40]!r} is not a number")
    # An empty cell is a missing value: NaN, which is left out and said later.
    return [float(cell) if cell.strip() else float("nan") for cell in cells]


def _is_number(text: str) -> bool:
    try:
        float(text)
    except ValueError:
        return False
    return True


def _is_integer(text: str) -> bool:
    return text.isdecimal() and str(int(text)) == text
