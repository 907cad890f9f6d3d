"""Which column of a CSV file holds what, and whether its first row is a header: the one rule, and its doubts."""

from __future__ import annotations

from dataclasses import dataclass, replace
from math import prod
from typing import TYPE_CHECKING, NamedTuple

import msgspec

from sojourn.data.column_names import no_names, places_of
from sojourn.data.labels import shorten
from sojourn.data.samples import Doubt
from sojourn.errors import DataError

if TYPE_CHECKING:
    from collections.abc import Sequence

    from sojourn.data.source import DataSettings
    from sojourn.protocol.spec import InputSpec, TableSpec
    from sojourn.protocol.task import TaskSpec

LABELS = ("label", "labels", "class", "target", "y")
"""Names of a label column, in any letter case; the first of them that a header has is it. `y` only as the first or the
last column: between others it is a coordinate."""
FILES = ("file", "filename", "file_name", "image", "path", "name")
"""Names of the column that says of which image a row is; else it is the first one."""
_COUNTED = 4
"""So many numbers that count up may be a row of data; more look like the numbers of columns."""
_LABELLED = ("classification", "regression", "multilabel")
"""Kinds of tasks that need a column with what is predicted."""
_UNLABELLED = "no column named label, labels, class, target or y, and data.label names none"


class Asked(NamedTuple):
    """What a file is read for: a task (None: as for a classifier), the job's classes, and one sample of the job.

    images: whether each row tells of an image, whose file it names. table: the columns of the job's table, by name.
    """

    task: TaskSpec | None = None
    classes: tuple[str, ...] | None = None
    input: InputSpec | None = None
    images: bool = False
    table: TableSpec | None = None

    @property
    def of_job(self) -> bool:
        """Whether a job is known, so that its own names decide what is predicted."""
        return self.task is not None or self.classes is not None or self.table is not None

    @property
    def kind(self) -> str:
        """The kind of task."""
        return self.task.kind if self.task else "classification"

    @property
    def names(self) -> tuple[str, ...]:
        """What the job predicts, by name: quantities, channels, or the labels of which several may hold."""
        classes = self.classes if self.kind == "multilabel" else None
        return (self.task.names if self.task else ()) or classes or ()


@dataclass(frozen=True)
class CsvColumns:
    """Where the label stands, why there, whether anybody said so, whether the first row is a header; and the others.

    at: None where no column is a label. targets: the columns with quantities, or with 0 and 1 for each of several
    labels. time, series, file: what else a row says of itself. features: what is left, the values of a sample.
    predicted: of a series, the features that the owner names as what is to be forecast. extra: columns that the job
    does not use.
    """

    at: int | None
    why: str
    guessed: bool
    headed: bool
    doubts: tuple[Doubt, ...] = ()
    names: tuple[str, ...] = ()
    targets: tuple[int, ...] = ()
    target_names: tuple[str, ...] = ()
    time: int | None = None
    series: int | None = None
    file: int | None = None
    features: tuple[int, ...] = ()
    predicted: tuple[int, ...] = ()
    extra: tuple[int, ...] = ()


def columns_of(head: list[str], settings: DataSettings, asked: Asked | None = None) -> CsvColumns:
    """How the file is read, by its first row, what its owner says, and what it is read for."""
    asked = asked or Asked()
    names = [name.strip() for name in head]
    table = None if asked.images else asked.table
    named = table is not None and has_names(names, settings, asked)
    if table is not None and not named and not table.by_position:
        raise no_names(settings.path, table, "add a header line with these names")
    apart = _apart(names, settings, asked)
    left = [at for at in range(len(names)) if at not in apart.all]
    if table is not None and named:
        return replace(_by_names(names, left, settings, asked, table), time=apart.time, series=apart.series)
    if len(left) < 2 and len(names) < 2 and asked.kind in ("classification", "regression", "multilabel"):
        raise DataError(
            f"{settings.path} has {len(names)} column(s): a label and at least one number are needed, with a comma, a "
            "semicolon or a tab between them"
        )
    if not left:
        raise DataError(f"{settings.path}: no column is left to be read, all {len(names)} are left out")
    found, by_name = _found(names, left, settings, asked)
    rest = (at for at in left if at != found.at and at not in found.targets)
    features = () if asked.images else tuple(rest)
    if not features and not asked.images:
        raise DataError(f"{settings.path}: no column is left for the values of a sample, of {len(names)} columns")
    numbers = sum(is_number(names[at]) for at in features)
    by_name = by_name or apart.by_name or asked.images  # a list of images begins with what its columns are
    headed = settings.header if settings.header is not None else by_name or numbers < len(features)
    at = found.at if found.at is not None else found.targets[-1] if found.targets else None
    why = f"column {names[at][:40]!r}, {found.why}" if found.guessed and headed and at is not None and names[at] else ""
    doubts = () if settings.header is not None or by_name else _doubts(names, numbers, headed=headed)
    known = tuple(names) if headed else tuple(f"column {at + 1}" for at in range(len(names)))
    # Columns without a header have no name that another file could know them by.
    target_names = found.target_names or (tuple(names[at] for at in found.targets) if headed else ())
    return replace(
        found,
        why=why or found.why,
        headed=headed,
        doubts=doubts,
        names=known,
        target_names=target_names,
        time=apart.time,
        series=apart.series,
        file=apart.file,
        features=features,
    )


def has_names(names: list[str], settings: DataSettings, asked: Asked) -> bool:
    """Whether the first row of a file names columns, where the job names its own."""
    if asked.table is None or not asked.table.columns or settings.header is False:
        return False
    known = {*asked.table.columns, asked.table.label, *asked.names}
    return settings.header is True or bool(known.intersection(names)) or 2 * sum(map(is_number, names)) < len(names)


def _by_names(names: list[str], left: list[int], settings: DataSettings, asked: Asked, table: TableSpec) -> CsvColumns:
    """The columns of a job that names them, wherever they are in this file."""
    called = list(names)
    renamed = asked.kind == "forecast" and len(settings.targets) == len(asked.names)
    if renamed:  # what is predicted is among the values of a sample, perhaps by another name
        for given, wanted in zip(settings.targets, asked.names, strict=True):
            if wanted not in names:
                called[_column(given, names, settings, "targets")] = wanted
    hidden = {name for at, name in enumerate(names) if at not in left}
    features = tuple(left[at] for at in places_of(table.columns, [called[at] for at in left], settings.path, hidden))
    rest = [at for at in left if at not in features]
    found = CsvColumns(None, _UNLABELLED, guessed=False, headed=True)
    if rest and asked.kind not in ("forecast", "tokens"):
        found, _ = _found(names, rest, settings, asked)
    taken = {*found.targets, *(() if found.at is None else (found.at,))}
    unsure = found.guessed and (len(rest) > len(taken) or table.label is not None or bool(asked.names))
    if unsure or not taken.isdisjoint(features) or (not taken and asked.kind in _LABELLED):
        raise _lacks_target(names, settings, asked)
    return replace(
        found,
        headed=True,
        names=tuple(called),
        target_names=found.target_names or tuple(names[at] for at in found.targets),
        features=features,
        predicted=(),
        extra=tuple(at for at in rest if at not in taken),
    )


def _lacks_target(names: list[str], settings: DataSettings, asked: Asked) -> DataError:
    """The error for a table without the column that the job predicts."""
    label = asked.table.label if asked.table else None
    several = asked.kind in ("regression", "multilabel") and asked.names
    key = "data.targets (--target)" if several else "data.label (--label)"
    if not several and label is None:
        return DataError(
            f"{settings.path}: the job does not say which column holds the label; the table has {shorten(names)}: name "
            f"that column with {key}"
        )
    absent = [name for name in asked.names if name not in names] if several else [label]
    return DataError(
        f"{settings.path}: the table lacks the column {shorten(map(str, absent or asked.names))}, which the job "
        f"predicts; it has {shorten(names)}: if another column holds it, name that column with {key}"
    )


def columns_left(head: list[str], settings: DataSettings) -> tuple[int, ...]:
    """The columns that the owner does not leave out."""
    names = [name.strip() for name in head]
    apart = _apart(names, settings, Asked()).all if names else frozenset[int]()
    return tuple(at for at in range(len(names)) if at not in apart)


def is_headed(head: list[str], settings: DataSettings) -> bool:
    """Whether the first row of a file without labels is a header."""
    return settings.header if settings.header is not None else not all(map(is_number, head))


def is_number(text: str) -> bool:
    """Whether a cell is a number."""
    try:
        float(text)
    except ValueError:
        return False
    return True


class _Apart(NamedTuple):
    """Columns that are no values of a sample, whatever is learnt."""

    all: frozenset[int]
    time: int | None
    series: int | None
    file: int | None
    by_name: bool


def _apart(names: list[str], settings: DataSettings, asked: Asked) -> _Apart:
    settings = _as_job_names(names, settings, asked)
    wanted = [*settings.ignore, *(each for each in (settings.time, settings.series) if each is not None)]
    places = {each: _column(each, names, settings, "ignore, data.time or data.series") for each in wanted}
    file = None
    if asked.images:
        plain = [name.casefold() for name in names]
        file = next((plain.index(name) for name in FILES if name in plain), 0)
    time, series = (None if each is None else places[each] for each in (settings.time, settings.series))
    by_name = any(isinstance(each, str) and names[at] == each for each, at in places.items())
    return _Apart(frozenset({*places.values(), *([] if file is None else [file])}), time, series, file, by_name)


def _as_job_names(names: list[str], settings: DataSettings, asked: Asked) -> DataSettings:
    """The settings with the job's columns of times and of series, where the owner names none and the file has them."""
    if asked.table is None or settings.header is False or asked.kind != "forecast":
        return settings
    time, series = (name if name in names else None for name in (asked.table.time, asked.table.series))
    changed: DataSettings = msgspec.structs.replace(
        settings,
        time=time if settings.time is None else settings.time,
        series=series if settings.series is None else settings.series,
    )
    return changed


def _found(names: list[str], left: list[int], settings: DataSettings, asked: Asked) -> tuple[CsvColumns, bool]:
    """The label, or the targets, of what the file is read for; and whether the header names them."""
    nothing = CsvColumns(None, _UNLABELLED, guessed=False, headed=False)
    series = not asked.of_job and not settings.targets and (settings.time, settings.series) != (None, None)
    if asked.kind == "forecast" and settings.targets:
        places, by_name = _chosen(names, settings, asked)
        return replace(nothing, predicted=places), by_name
    if asked.kind in ("forecast", "tokens") or (series and settings.label is None):
        return nothing, False
    if asked.kind == "reconstruction":
        return _maybe_labelled(names, left, settings, asked, nothing)
    if asked.kind != "classification" or (settings.targets and not asked.of_job):
        several = _targets(names, left, settings, asked)
        if several is not None:
            return several
    at, why, by_name = _label(names, left, settings, asked)
    guessed = settings.label is None and not by_name
    if asked.kind == "regression":
        told = asked.names if len(asked.names) == 1 else ()
        return CsvColumns(None, why, guessed, headed=False, targets=(at,), target_names=told), by_name
    return CsvColumns(at, why, guessed, headed=False), by_name


def _targets(names: list[str], left: list[int], settings: DataSettings, asked: Asked) -> tuple[CsvColumns, bool] | None:
    """The columns of quantities or of several labels; None where one column is the label, as for a classifier."""
    wanted = asked.names
    # The job's names come first: one device serves jobs that predict different columns of the same table.
    if wanted and set(wanted) <= {names[at] for at in left} and settings.header is not False:
        places = tuple(next(at for at in left if names[at] == name) for name in wanted)
        return CsvColumns(None, "columns by their names", False, False, targets=places, target_names=wanted), True
    if settings.targets:
        places, by_name = _chosen(names, settings, asked)
        found = CsvColumns(None, "columns that data.targets names", guessed=False, headed=False, targets=places)
        return replace(found, target_names=wanted if len(wanted) == len(places) else ()), by_name
    if asked.kind == "multilabel":
        return None  # the labels stand in one column, each with those that hold
    count = len(wanted) or (prod(asked.task.target.shape) if asked.task and asked.task.target else 1)
    if count == 1 and (settings.label is not None or not wanted or _named(names, left) is not None):
        return None
    if wanted and not _all_numbers(names) and settings.header is not False:
        absent = shorten(name for name in wanted if name not in names)
        raise DataError(
            f"{settings.path} has no column {absent}, which the job predicts, only {shorten(names)}: name the columns "
            "that hold it with data.targets"
        )
    if count >= len(left):
        raise DataError(f"{settings.path} has {len(left)} columns, and {count} of them would be what the job predicts")
    why = f"the last {count} of {len(names)} columns" if count > 1 else f"the last of {len(names)} columns"
    return CsvColumns(None, why, True, False, targets=tuple(left[-count:]), target_names=wanted), False


def _chosen(names: list[str], settings: DataSettings, asked: Asked) -> tuple[tuple[int, ...], bool]:
    """The columns that the owner names for what the job predicts, and whether it is the header that names them."""
    wanted, given = asked.names, settings.targets
    if wanted and len(wanted) != len(given):
        raise DataError(
            f"data.targets names {len(given)} columns of {settings.path}, and the job predicts {shorten(wanted)}: name "
            "one for each, in this order"
        )
    places = tuple(_column(each, names, settings, "targets") for each in given)
    if len(set(places)) < len(places):
        raise DataError(f"data.targets names a column of {settings.path} twice")
    return places, any(names[at] == each for at, each in zip(places, given, strict=True))


def _maybe_labelled(
    names: list[str], left: list[int], settings: DataSettings, asked: Asked, nothing: CsvColumns
) -> tuple[CsvColumns, bool]:
    """A label where one is named, or where one column more is there than a sample has values; else there is none."""
    of_job = asked.table is not None and asked.table.label in [names[at] for at in left]
    named = settings.label is not None or (settings.header is not False and _named(names, left) is not None) or of_job
    more = asked.table is None and asked.input is not None and len(left) == prod(asked.input.shape) + 1
    if not named and not more:
        return nothing, False
    at, why, by_name = _label(names, left, settings, asked)
    return CsvColumns(at, why, not named, headed=False), by_name


def _column(wanted: str | int, names: list[str], settings: DataSettings, key: str) -> int:
    if isinstance(wanted, str) and wanted in names and settings.header is not False:
        return names.index(wanted)
    place = _place(str(wanted).strip(), len(names) - 1)
    if place is None:
        raise _absent(wanted, names, settings, f"data.{key}")
    return place


def _label(names: list[str], left: list[int], settings: DataSettings, asked: Asked) -> tuple[int, str, bool]:
    """The label's place, why it is there, and whether the header names it."""
    wanted, last = settings.label, len(names) - 1
    of_job = asked.table.label if asked.table else None
    if of_job is not None and settings.header is not False and of_job in (names[at] for at in left):
        place = next(at for at in left if names[at] == of_job)
        return place, f"column {of_job!r} ({place + 1} of {len(names)}), as the job names it", True
    if wanted is None:
        at = None if settings.header is False else _named(names, left)
        if at is not None:
            return at, f"column {names[at]!r} ({at + 1} of {len(names)}), by its name", True
        others = f"{', '.join(LABELS[:-1])} or {LABELS[-1]}"
        which = "the last of" if left[-1] == last else f"column {left[-1] + 1}, the last that is not left out, of"
        return left[-1], f"{which} {len(names)} columns, as none is named {others}", False
    if isinstance(wanted, str) and wanted in names and settings.header is not False:
        at = names.index(wanted)
        return at, f"column {wanted!r} ({at + 1} of {len(names)}), as data.label says", True
    chosen = _place(str(wanted).strip(), last)
    if chosen is None:
        raise _absent(wanted, names, settings, "data.label")
    return chosen, f"column {chosen + 1} of {len(names)}, as data.label says", False


def _all_numbers(names: Sequence[str]) -> bool:
    """Whether a first row is one of data."""
    return all(map(is_number, names))


def _absent(wanted: str | int, names: list[str], settings: DataSettings, key: str) -> DataError:
    headed = not _all_numbers(names[:-1])  # one that is no header may hold what nobody else should read
    some = ", ".join(name[:40] for name in names[:20])
    shown = f"the header {some}{' ...' if len(names) > 20 else ''}" if headed else "no header"
    return DataError(
        f"{settings.path} has no column {wanted!r}, but {len(names)} columns and {shown}: {key} takes a name "
        f'in the header, "first", "last", or a number from 1 to {len(names)}'
    )


def _named(names: list[str], left: list[int]) -> int | None:
    """The place of the column that is called like labels are."""
    plain = [name.casefold() for name in names]
    places = (plain.index(name) for name in LABELS if name in plain)
    return next((at for at in places if at in left and (plain[at] != "y" or at in (0, len(names) - 1))), None)


def _place(wanted: str, last: int) -> int | None:
    if wanted in ("first", "last") and last >= 0:
        return 0 if wanted == "first" else last
    return int(wanted) - 1 if wanted.isdecimal() and len(wanted) < 10 and 1 <= int(wanted) <= last + 1 else None


def _doubts(names: list[str], numbers: int, *, headed: bool) -> tuple[Doubt, ...]:
    if headed and 2 * numbers > len(names):
        odd = next((name for name in names if not is_number(name)), "")
        return (
            Doubt(
                "the first row was taken for a header, and most of it is numbers",
                f"{odd[:40]!r} in it is none",
                "mend that cell, or set data.header = false (--no-header) if it is data",
            ),
        )
    counts = [str(at) for at in range(len(names))], [str(at + 1) for at in range(len(names))]
    if not headed and len(names) > _COUNTED and names[:-1] in (counts[0][:-1], counts[1][:-1]):
        return (
            Doubt(
                "the first row looks like a header, and was taken for data",
                f"it counts {', '.join(names[:3])}, ...",
                "set data.header = true (--header)",
            ),
        )
    return ()
