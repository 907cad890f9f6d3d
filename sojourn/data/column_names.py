"""Matching of a job's columns by name, in tables and in rows that a program passes."""

from __future__ import annotations

from collections.abc import Collection, Mapping, Sequence
from dataclasses import replace
from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray

from sojourn.data.labels import MAX_LISTED, shorten
from sojourn.data.samples import Content
from sojourn.errors import DataError
from sojourn.protocol.limits import LABEL
from sojourn.protocol.spec import MOST_COLUMNS, TableSpec
from sojourn.protocol.task import TaskSpec

FEATURE_NAMES = "feature_names"
"""The array of an NPZ file with the names of the sample columns."""


class ColumnNames(NamedTuple):
    """The column names of a file, as it spells them; `columns` is empty if it has none."""

    columns: tuple[str, ...] = ()
    label: str | None = None
    time: str | None = None
    series: str | None = None


def column_positions(
    columns: Sequence[str], names: Sequence[str], source: str, ignored: Collection[str] = ()
) -> tuple[int, ...]:
    """Return the position of each of the job's columns in a table."""
    at: dict[str, int] = {}
    twice = set[str]()
    for place, name in enumerate(names):
        if name in at:
            twice.add(name)
        at.setdefault(name, place)
    if missing := [name for name in columns if name not in at]:
        hidden = [name for name in missing if name in ignored]
        why = f"; data.ignore in the settings excludes {_listed(hidden)}" if hidden else ""
        raise DataError(f"{source}: the table lacks {_columns(missing)}; it has {shorten(names)}{why}")
    if repeated := [name for name in dict.fromkeys(columns) if name in twice]:
        raise DataError(f"{source}: the table has {_columns(repeated)} twice: give each column a unique name")
    return tuple(at[name] for name in columns)


def missing_names_error(source: str, table: TableSpec, remedy: str) -> DataError:
    """Return the error for a table without column names."""
    if not table.columns:
        return DataError(
            f"{source}: the job does not name its columns, so the columns of this table cannot be checked: set "
            "columns = [...] under [data] in the job, or by_position = true if every table has the job's order"
        )
    return DataError(
        f"{source} has no column names, and the job matches columns by name ({shorten(table.columns)}): {remedy}, or "
        "set by_position = true under [data] in the job if every table has the job's order"
    )


def table_of(source: str, found: ColumnNames) -> TableSpec:
    """Return the columns of the job's own table for its kit; raise DataError for names that a kit cannot hold."""
    if len(found.columns) > MOST_COLUMNS:
        raise DataError(f"{source} has {len(found.columns):,} columns; a job can name {MOST_COLUMNS:,}")
    for name in (*found.columns, found.label, found.time, found.series):
        if name == "":
            raise DataError(
                f"{source}: a column has no name. Name it in the header, or exclude it by its number (data.ignore)"
            )
        if name is not None and len(name) > LABEL:
            raise DataError(f"{source}: the column name {name[:40]!r}... is longer than {LABEL} characters: shorten it")
    column_positions(found.columns, found.columns, source)  # names must be unique
    return TableSpec(*found)


def in_job_order(content: Content, table: TableSpec | None) -> Content:
    """Return an array's samples with the columns in the job's order."""
    x, wanted = content.x, table.columns if table else ()
    own = content.table.columns if content.table else ()
    if table is None or not wanted or own == wanted or x.ndim < 2:
        return content
    if not own:
        if table.by_position or x.shape[-1] != len(wanted):
            return content
        raise missing_names_error(content.source, table, f"name them in an array `{FEATURE_NAMES}` of the NPZ file")
    places = list(column_positions(wanted, own, content.source))
    names = wanted if content.target_names == own else content.target_names  # for a series: the names of its channels
    return replace(content, x=x[..., places], target_names=names, table=ColumnNames(wanted))


def rows_by_name(rows: Sequence[object], table: TableSpec | None, task: TaskSpec | None) -> NDArray[np.float32]:
    """Return rows that a program passes by name, with the columns in the model's order."""
    if table is None or not table.columns:
        raise DataError("the model has no column names: pass the numbers of a sample as a list, in the model's order")
    known = {*table.columns, *(task.names if task else ()), table.label, table.time, table.series}
    values = np.empty((len(rows), len(table.columns)), np.float64)
    for at, row in enumerate(rows):
        where = f"row {at + 1}" if len(rows) > 1 else "the row"
        if not isinstance(row, Mapping):
            raise DataError(f"{where} has no column names, but other rows do: pass all rows by name")
        if missing := [name for name in table.columns if name not in row]:
            given = shorten(map(str, row)) if row else "none"
            raise DataError(f"{where} lacks {_columns(missing)}; it has {given}")
        if unknown := [str(name) for name in row if name not in known]:
            raise DataError(
                f"{where} has {_columns(unknown)}, which the model does not use: its columns are "
                f"{shorten(table.columns)}"
            )
        for place, name in enumerate(table.columns):
            value = row[name]
            if not isinstance(value, int | float | np.number | np.bool_):
                raise DataError(f"{where}: {name[:80]!r} is {str(value)[:40]!r}, but the model needs a number")
            try:
                values[at, place] = float(value)
            except OverflowError:
                values[at, place] = np.inf
    with np.errstate(over="ignore"):
        return values.astype(np.float32)


def _columns(names: Sequence[str]) -> str:
    return f"the column{'s' * (len(names) > 1)} {_listed(names)}"


def _listed(names: Sequence[str]) -> str:
    shown = [repr(name[:80]) for name in names[:MAX_LISTED]]
    if len(names) > MAX_LISTED:
        return f"{', '.join(shown)} and {len(names) - MAX_LISTED} more"
    return " and ".join((", ".join(shown[:-1]), shown[-1])) if len(shown) > 1 else shown[0]
