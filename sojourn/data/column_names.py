"""Columns by name: the places of a job's columns in a table, and rows that a program gives by name."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace
from typing import TYPE_CHECKING, NamedTuple

import numpy as np

from sojourn.data.labels import NAMED, shorten
from sojourn.errors import DataError
from sojourn.protocol.limits import LABEL
from sojourn.protocol.spec import MOST_COLUMNS, TableSpec

if TYPE_CHECKING:
    from collections.abc import Collection, Sequence

    from numpy.typing import NDArray

    from sojourn.data.samples import Content
    from sojourn.protocol.task import TaskSpec

FEATURE_NAMES = "feature_names"
"""The array of an NPZ file that names the columns of its samples."""


class FoundColumns(NamedTuple):
    """What a file calls its columns, as it does; no columns where it has no names for them."""

    columns: tuple[str, ...] = ()
    label: str | None = None
    time: str | None = None
    series: str | None = None


def places_of(
    columns: Sequence[str], names: Sequence[str], source: str, ignored: Collection[str] = ()
) -> tuple[int, ...]:
    """The place of each of the job's columns among the names of a table."""
    at: dict[str, int] = {}
    twice = set[str]()
    for place, name in enumerate(names):
        if name in at:
            twice.add(name)
        at.setdefault(name, place)
    if missing := [name for name in columns if name not in at]:
        hidden = [name for name in missing if name in ignored]
        why = f"; data.ignore in the settings leaves out {_listed(hidden)}" if hidden else ""
        raise DataError(f"{source}: the table lacks {_columns(missing)}; it has {shorten(names)}{why}")
    if repeated := [name for name in dict.fromkeys(columns) if name in twice]:
        raise DataError(f"{source}: the table has {_columns(repeated)} twice: give each column its own name")
    return tuple(at[name] for name in columns)


def no_names(source: str, table: TableSpec, remedy: str) -> DataError:
    """The error for a table without column names."""
    if not table.columns:
        return DataError(
            f"{source}: the job does not name its columns, so the columns of this table cannot be checked: set "
            "columns = [...] under [data] in the job, or by_position = true if every table has the job's order"
        )
    return DataError(
        f"{source} has no column names, and the job matches columns by name ({shorten(table.columns)}): {remedy}, or "
        "set by_position = true under [data] in the job if every table has the job's order"
    )


def table_of(source: str, found: FoundColumns) -> TableSpec:
    """The columns of a job's own table as a kit carries them; DataError for names that a kit cannot carry."""
    if len(found.columns) > MOST_COLUMNS:
        raise DataError(f"{source} has {len(found.columns):,} columns; a job can name {MOST_COLUMNS:,}")
    for name in (*found.columns, found.label, found.time, found.series):
        if name == "":
            raise DataError(
                f"{source}: a column has no name. Name it in the header, or leave it out by its number (data.ignore)"
            )
        if name is not None and len(name) > LABEL:
            raise DataError(f"{source}: the column name {name[:40]!r}... is longer than {LABEL} characters: shorten it")
    places_of(found.columns, found.columns, source)  # each name once
    return TableSpec(*found)


def in_job_order(content: Content, table: TableSpec | None) -> Content:
    """Samples of an array with their columns in the job's order."""
    x, wanted = content.x, table.columns if table else ()
    own = content.table.columns if content.table else ()
    if table is None or not wanted or own == wanted or x.ndim < 2:
        return content
    if not own:
        if table.by_position or x.shape[-1] != len(wanted):
            return content
        raise no_names(content.source, table, f"name them in an array `{FEATURE_NAMES}` of the NPZ file")
    places = list(places_of(wanted, own, content.source))
    names = wanted if content.target_names == own else content.target_names  # of a series, the names of its channels
    return replace(content, x=x[..., places], target_names=names, table=FoundColumns(wanted))


def rows_by_name(rows: Sequence[object], table: TableSpec | None, task: TaskSpec | None) -> NDArray[np.float32]:
    """Rows that a program gives by name, with their columns in the model's order."""
    if table is None or not table.columns:
        raise DataError("the model does not name its columns: give the numbers of a sample as a list, in their order")
    known = {*table.columns, *(task.names if task else ()), table.label, table.time, table.series}
    values = np.empty((len(rows), len(table.columns)), np.float64)
    for at, row in enumerate(rows):
        where = f"row {at + 1}" if len(rows) > 1 else "the row"
        if not isinstance(row, Mapping):
            raise DataError(f"{where} has no column names, and other rows have some: give all rows by name")
        if missing := [name for name in table.columns if name not in row]:
            given = shorten(map(str, row)) if row else "none"
            raise DataError(f"{where} lacks {_columns(missing)}; it has {given}")
        if unknown := [str(name) for name in row if name not in known]:
            raise DataError(
                f"{where} has {_columns(unknown)}, which the model does not know: it takes {shorten(table.columns)}"
            )
        for place, name in enumerate(table.columns):
            value = row[name]
            if not isinstance(value, int | float | np.number | np.bool_):
                raise DataError(f"{where}: {name[:80]!r} is {str(value)[:40]!r}, and the model takes a number")
            try:
                values[at, place] = float(value)
            except OverflowError:
                values[at, place] = np.inf
    with np.errstate(over="ignore"):
        return values.astype(np.float32)


def _columns(names: Sequence[str]) -> str:
    return f"the column{'s' * (len(names) > 1)} {_listed(names)}"


def _listed(names: Sequence[str]) -> str:
    shown = [repr(name[:80]) for name in names[:NAMED]]
    if len(names) > NAMED:
        return f"{', '.join(shown)} and {len(names) - NAMED} more"
    return " and ".join((", ".join(shown[:-1]), shown[-1])) if len(shown) > 1 else shown[0]
