"""CSV files: one sample per row, numbers in all columns but the label's."""

from __future__ import annotations

import csv
from array import array
from contextlib import contextmanager
from pathlib import Path
from typing import TYPE_CHECKING, TextIO

import numpy as np

from sojourn.data.csv_columns import columns_of, is_headed, is_number
from sojourn.data.labels import NAMED
from sojourn.data.samples import Content
from sojourn.errors import DataError

if TYPE_CHECKING:
    from collections.abc import Iterator

    from numpy.typing import NDArray

    from sojourn.data.labels import Labels
    from sojourn.data.source import DataSettings

_DELIMITERS = ",;\t"


def read_csv(settings: DataSettings) -> Content:
    """What a CSV file holds; rows that are ragged or hold no number where one is due are left out and said."""
    with _rows(settings.path) as rows:
        return _read(rows, settings)


def read_features(settings: DataSettings, features: int, text: TextIO | None = None) -> NDArray[np.float32]:
    """The numbers of every row, to predict from; in a file with one column more that one is the label, and left out.

    text: what is read instead of the file.
    """
    with _rows(settings.path, text) as rows:
        head = next(rows, [])
        if len(head) not in (features, features + 1):
            raise DataError(
                f"{settings.path} has {len(head)} columns, the model expects {features} numbers, or these and a label"
            )
        columns = columns_of(head, settings) if len(head) > features else None
        at, headed = (columns.at, columns.headed) if columns else (None, is_headed(head, settings))
        values = array("f")
        for line, row in enumerate(_from(head, rows, headed), start=2 if headed else 1):
            cells = [cell for place, cell in enumerate(row) if place != at]
            if row and (len(row) != len(head) or not all(map(is_number, cells))):
                raise DataError(f"{settings.path}, line {line}: {features} numbers are expected")
            values.extend(map(float, cells))
    return np.frombuffer(values, dtype=np.float32).reshape(-1, features)


@contextmanager
def _rows(path: str, text: TextIO | None = None) -> Iterator[Iterator[list[str]]]:
    try:
        with text or Path(path).open(encoding="utf-8-sig", newline="") as file:
            first = file.readline()
            file.seek(0)
            yield csv.reader(file, delimiter=max(_DELIMITERS, key=first.count))
    except (OSError, UnicodeDecodeError, csv.Error) as error:
        raise DataError(f"{path} cannot be read as CSV: {error}") from error


def _read(rows: Iterator[list[str]], settings: DataSettings) -> Content:
    head = next(rows, None)
    if head is None:
        raise DataError(f"{settings.path} is empty")
    columns = columns_of(head, settings)
    at, headed = columns.at, columns.headed
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
    meant, which_each = _meant(tuple(labels), np.array(which, dtype=np.int64))
    skipped, why = (*faults[:NAMED], *more), columns.why
    return Content(
        settings.path, x, meant, which_each, settings.class_names, skipped, why, columns.guessed, columns.doubts
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


def _numbers(row: list[str], at: int, columns: int) -> list[float]:
    if len(row) != columns:
        raise ValueError(f"{len(row)} columns instead of {columns}")
    if not row[at].strip():
        raise ValueError("no label")
    cells = row[:at] + row[at + 1 :]
    wrong = next((cell for cell in cells if cell.strip() and not is_number(cell)), None)
    if wrong is not None:
        raise ValueError(f"{wrong[:40]!r} is not a number")
    # An empty cell is a missing value: NaN, which is left out and said later.
    return [float(cell) if cell.strip() else float("nan") for cell in cells]


def _whole(label: str) -> int | None:
    """The number that a label is, if it is a whole one without sign; "3.0", as some programs write 3, is one too."""
    digits, _, zeros = label.partition(".")
    return int(digits) if digits.isdecimal() and str(int(digits)) == digits and not zeros.strip("0") else None
