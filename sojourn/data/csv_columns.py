"""Detection of a CSV file's header row and of the role of each column."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace
from math import prod
from typing import NamedTuple

import msgspec

from sojourn.data.column_names import column_positions, missing_names_error
from sojourn.data.labels import shorten
from sojourn.data.samples import DataWarning
from sojourn.data.source import DataSettings
from sojourn.errors import DataError
from sojourn.protocol.spec import InputSpec, TableSpec
from sojourn.protocol.task import TaskSpec

LABELS = ("label", "labels", "class", "target", "y")
"""Names of a label column, in any letter case, by priority. `y` counts only as the first or last column: between others
it is a coordinate."""
FILES = ("file", "filename", "file_name", "image", "path", "name")
"""Names of the column with the image file; by default the first column."""
_MAX_COUNTING = 4
"""A longer first row of consecutive numbers looks like column numbers."""
_SUPERVISED = ("classification", "regression", "multilabel")
"""Task kinds that need a target column."""
_UNLABELLED = "no column named label, labels, class, target or y, and data.label is not set"


class ReadRequest(NamedTuple):
    """What a job needs from a file: its task (None: classification), classes and input shape.

    images: whether each row is the file name and the targets of an image. table: the columns of the job's table.
    """

    task: TaskSpec | None = None
    classes: tuple[str, ...] | None = None
    input: InputSpec | None = None
    images: bool = False
    table: TableSpec | None = None

    @property
    def of_job(self) -> bool:
        """Whether a job is known; its names then select the target columns."""
        return self.task is not None or self.classes is not None or self.table is not None

    @property
    def kind(self) -> str:
        """The kind of task."""
        return self.task.kind if self.task else "classification"

    @property
    def names(self) -> tuple[str, ...]:
        """The names that the job predicts: quantities, channels, or the labels of a multilabel task."""
        classes = self.classes if self.kind == "multilabel" else None
        return (self.task.names if self.task else ()) or classes or ()


@dataclass(frozen=True)
class CsvColumns:
    """The position of each kind of column in a CSV file.

    label: None without a label column. label_source: how it was found. guessed: whether neither the file nor its owner
    named it. targets: the columns with quantities, or with 0 and 1 for each label. features: the values of a sample.
    predicted: the features of a series that the owner selected for the forecast. extra: columns that the job does not
    use.
    """

    label: int | None
    label_source: str
    guessed: bool = False
    has_header: bool = False
    warnings: tuple[DataWarning, ...] = ()
    names: tuple[str, ...] = ()
    targets: tuple[int, ...] = ()
    target_names: tuple[str, ...] = ()
    time: int | None = None
    series: int | None = None
    file: int | None = None
    features: tuple[int, ...] = ()
    predicted: tuple[int, ...] = ()
    extra: tuple[int, ...] = ()


def find_columns(head: list[str], settings: DataSettings, request: ReadRequest | None = None) -> CsvColumns:
    """Assign a role to each column from the first row, the settings and the job's request."""
    request = request or ReadRequest()
    names = [name.strip() for name in head]
    table = None if request.images else request.table
    named = table is not None and has_column_names(names, settings, request)
    if table is not None and not named and not table.by_position:
        raise missing_names_error(settings.path, table, "add a header line with these names")
    side = _side_columns(names, settings, request)
    remaining = [at for at in range(len(names)) if at not in side.all]
    if table is not None and named:
        return replace(_match_names(names, remaining, settings, request, table), time=side.time, series=side.series)
    if len(remaining) < 2 and len(names) < 2 and request.kind in _SUPERVISED:
        raise DataError(
            f"{settings.path} has {len(names)} column(s): a label and at least one number are needed, with a comma, a "
            "semicolon or a tab between them"
        )
    if not remaining:
        raise DataError(f"{settings.path}: the settings exclude all {len(names)} columns")
    found, by_name = _find_target(names, remaining, settings, request)
    rest = (at for at in remaining if at != found.label and at not in found.targets)
    features = () if request.images else tuple(rest)
    if not features and not request.images:
        raise DataError(f"{settings.path}: none of the {len(names)} columns is left as a feature")
    numbers = sum(is_number(names[at]) for at in features)
    by_name = by_name or side.by_name or request.images  # a list of images always has a header
    has_header = settings.header if settings.header is not None else by_name or numbers < len(features)
    at = found.label if found.label is not None else found.targets[-1] if found.targets else None
    label_source = (
        f"column {names[at][:40]!r}, {found.label_source}"
        if found.guessed and has_header and at is not None and names[at]
        else ""
    )
    warnings = () if settings.header is not None or by_name else _header_warnings(names, numbers, has_header=has_header)
    known = tuple(names) if has_header else tuple(f"column {at + 1}" for at in range(len(names)))
    # Without a header, columns have no names that could match another file.
    target_names = found.target_names or (tuple(names[at] for at in found.targets) if has_header else ())
    return replace(
        found,
        label_source=label_source or found.label_source,
        has_header=has_header,
        warnings=warnings,
        names=known,
        target_names=target_names,
        time=side.time,
        series=side.series,
        file=side.file,
        features=features,
    )


def has_column_names(names: list[str], settings: DataSettings, request: ReadRequest) -> bool:
    """Return whether the first row is a header, for a job that names its columns."""
    if request.table is None or not request.table.columns or settings.header is False:
        return False
    known = {*request.table.columns, request.table.label, *request.names}
    return settings.header is True or bool(known.intersection(names)) or 2 * sum(map(is_number, names)) < len(names)


def _match_names(
    names: list[str], remaining: list[int], settings: DataSettings, request: ReadRequest, table: TableSpec
) -> CsvColumns:
    """Find the job's named columns, in whatever order this file has them."""
    called = list(names)
    renamed = request.kind == "forecast" and len(settings.targets) == len(request.names)
    if renamed:  # the predicted channels are features, perhaps by other names
        for given, wanted in zip(settings.targets, request.names, strict=True):
            if wanted not in names:
                called[_column_position(given, names, settings, "targets")] = wanted
    hidden = {name for at, name in enumerate(names) if at not in remaining}
    features = tuple(
        remaining[at] for at in column_positions(table.columns, [called[at] for at in remaining], settings.path, hidden)
    )
    rest = [at for at in remaining if at not in features]
    found = CsvColumns(None, _UNLABELLED)
    if rest and request.kind not in ("forecast", "tokens"):
        found, _ = _find_target(names, rest, settings, request)
    taken = {*found.targets, *(() if found.label is None else (found.label,))}
    unsure = found.guessed and (len(rest) > len(taken) or table.label is not None or bool(request.names))
    if unsure or not taken.isdisjoint(features) or (not taken and request.kind in _SUPERVISED):
        raise _lacks_target(names, settings, request)
    return replace(
        found,
        has_header=True,
        names=tuple(called),
        target_names=found.target_names or tuple(names[at] for at in found.targets),
        features=features,
        extra=tuple(at for at in rest if at not in taken),
    )


def _lacks_target(names: list[str], settings: DataSettings, request: ReadRequest) -> DataError:
    """Return the error for a table without the column that the job predicts."""
    label = request.table.label if request.table else None
    several = request.kind in ("regression", "multilabel") and request.names
    key = "data.targets (--target)" if several else "data.label (--label)"
    if not several and label is None:
        return DataError(
            f"{settings.path}: the job does not name the label column; the table has {shorten(names)}: set it with "
            f"{key}"
        )
    absent = [name for name in request.names if name not in names] if several else [label]
    return DataError(
        f"{settings.path}: the table lacks the column {shorten(map(str, absent or request.names))}, which the job "
        f"predicts; it has {shorten(names)}: if another column holds it, set that column with {key}"
    )


def columns_left(head: list[str], settings: DataSettings) -> tuple[int, ...]:
    """Return the columns that the settings do not exclude."""
    names = [name.strip() for name in head]
    side = _side_columns(names, settings, ReadRequest()).all if names else frozenset[int]()
    return tuple(at for at in range(len(names)) if at not in side)


def detect_header(head: list[str], settings: DataSettings) -> bool:
    """Return whether the first row of a file without labels is a header."""
    return settings.header if settings.header is not None else not all(map(is_number, head))


def is_number(text: str) -> bool:
    """Return whether a cell is a number."""
    try:
        float(text)
    except ValueError:
        return False
    return True


class _SideColumns(NamedTuple):
    """Columns that are never features: ignored ones, the time, the series and the file name."""

    all: frozenset[int]
    time: int | None
    series: int | None
    file: int | None
    by_name: bool


def _side_columns(names: list[str], settings: DataSettings, request: ReadRequest) -> _SideColumns:
    settings = _as_job_names(names, settings, request)
    wanted = [*settings.ignore, *(each for each in (settings.time, settings.series) if each is not None)]
    places = {each: _column_position(each, names, settings, "ignore, data.time or data.series") for each in wanted}
    file = None
    if request.images:
        plain = [name.casefold() for name in names]
        file = next((plain.index(name) for name in FILES if name in plain), 0)
    time, series = (None if each is None else places[each] for each in (settings.time, settings.series))
    by_name = any(isinstance(each, str) and names[at] == each for each, at in places.items())
    return _SideColumns(frozenset({*places.values(), *([] if file is None else [file])}), time, series, file, by_name)


def _as_job_names(names: list[str], settings: DataSettings, request: ReadRequest) -> DataSettings:
    """Use the job's time and series columns if the settings do not name any and the file has them."""
    if request.table is None or settings.header is False or request.kind != "forecast":
        return settings
    time, series = (name if name in names else None for name in (request.table.time, request.table.series))
    changed: DataSettings = msgspec.structs.replace(
        settings,
        time=time if settings.time is None else settings.time,
        series=series if settings.series is None else settings.series,
    )
    return changed


def _find_target(
    names: list[str], remaining: list[int], settings: DataSettings, request: ReadRequest
) -> tuple[CsvColumns, bool]:
    """Find the label or the targets, and whether the header names them."""
    nothing = CsvColumns(None, _UNLABELLED)
    series = not request.of_job and not settings.targets and (settings.time, settings.series) != (None, None)
    if request.kind == "forecast" and settings.targets:
        places, by_name = _chosen_targets(names, settings, request)
        return replace(nothing, predicted=places), by_name
    if request.kind in ("forecast", "tokens") or (series and settings.label is None):
        return nothing, False
    if request.kind == "reconstruction":
        return _optional_label(names, remaining, settings, request, nothing)
    if request.kind != "classification" or (settings.targets and not request.of_job):
        several = _find_targets(names, remaining, settings, request)
        if several is not None:
            return several
    at, label_source, by_name = _find_label(names, remaining, settings, request)
    guessed = settings.label is None and not by_name
    if request.kind == "regression":
        target_names = request.names if len(request.names) == 1 else ()
        return CsvColumns(None, label_source, guessed, targets=(at,), target_names=target_names), by_name
    return CsvColumns(at, label_source, guessed), by_name


def _find_targets(
    names: list[str], remaining: list[int], settings: DataSettings, request: ReadRequest
) -> tuple[CsvColumns, bool] | None:
    """Find the columns of quantities or labels; None if a single column is the label, as for a classifier."""
    wanted = request.names
    # The job's names have priority: a device serves jobs that predict different columns of the same table.
    if wanted and set(wanted) <= {names[at] for at in remaining} and settings.header is not False:
        places = tuple(next(at for at in remaining if names[at] == name) for name in wanted)
        return CsvColumns(None, "columns by their names", targets=places, target_names=wanted), True
    if settings.targets:
        places, by_name = _chosen_targets(names, settings, request)
        found = CsvColumns(None, "columns set by data.targets", targets=places)
        return replace(found, target_names=wanted if len(wanted) == len(places) else ()), by_name
    if request.kind == "multilabel":
        return None  # one column lists the labels that apply, such as "a;b"
    count = len(wanted) or (prod(request.task.target.shape) if request.task and request.task.target else 1)
    if count == 1 and (settings.label is not None or not wanted or _find_label_name(names, remaining) is not None):
        return None
    if wanted and not _all_numbers(names) and settings.header is not False:
        absent = shorten(name for name in wanted if name not in names)
        raise DataError(
            f"{settings.path} has no column {absent}, which the job predicts, only {shorten(names)}: set the columns "
            "that hold it with data.targets"
        )
    if count >= len(remaining):
        raise DataError(
            f"{settings.path} has {len(remaining)} columns, but the job predicts {count} columns and needs at least "
            "one feature"
        )
    label_source = f"the last {count} of {len(names)} columns" if count > 1 else f"the last of {len(names)} columns"
    return CsvColumns(None, label_source, guessed=True, targets=tuple(remaining[-count:]), target_names=wanted), False


def _chosen_targets(names: list[str], settings: DataSettings, request: ReadRequest) -> tuple[tuple[int, ...], bool]:
    """Return the target columns set by the owner, and whether they are set by header name."""
    wanted, given = request.names, settings.targets
    if wanted and len(wanted) != len(given):
        raise DataError(
            f"data.targets names {len(given)} columns of {settings.path}, but the job predicts {shorten(wanted)}: name "
            "one column for each, in this order"
        )
    places = tuple(_column_position(each, names, settings, "targets") for each in given)
    if len(set(places)) < len(places):
        raise DataError(f"data.targets names a column of {settings.path} twice")
    return places, any(names[at] == each for at, each in zip(places, given, strict=True))


def _optional_label(
    names: list[str], remaining: list[int], settings: DataSettings, request: ReadRequest, nothing: CsvColumns
) -> tuple[CsvColumns, bool]:
    """Find a label only if one is named, or if the file has one column more than a sample has values."""
    of_job = request.table is not None and request.table.label in [names[at] for at in remaining]
    named = (
        settings.label is not None
        or (settings.header is not False and _find_label_name(names, remaining) is not None)
        or of_job
    )
    more = request.table is None and request.input is not None and len(remaining) == prod(request.input.shape) + 1
    if not named and not more:
        return nothing, False
    at, label_source, by_name = _find_label(names, remaining, settings, request)
    return CsvColumns(at, label_source, guessed=not named), by_name


def _column_position(wanted: str | int, names: list[str], settings: DataSettings, key: str) -> int:
    if isinstance(wanted, str) and wanted in names and settings.header is not False:
        return names.index(wanted)
    place = _position_in(str(wanted).strip(), len(names) - 1)
    if place is None:
        raise _missing_column(wanted, names, settings, f"data.{key}")
    return place


def _find_label(
    names: list[str], remaining: list[int], settings: DataSettings, request: ReadRequest
) -> tuple[int, str, bool]:
    """Return the label's position, how it was found, and whether the header names it."""
    wanted, last = settings.label, len(names) - 1
    of_job = request.table.label if request.table else None
    if of_job is not None and settings.header is not False and of_job in (names[at] for at in remaining):
        place = next(at for at in remaining if names[at] == of_job)
        return place, f"column {of_job!r} ({place + 1} of {len(names)}), named by the job", True
    if wanted is None:
        at = None if settings.header is False else _find_label_name(names, remaining)
        if at is not None:
            return at, f"column {names[at]!r} ({at + 1} of {len(names)}), by its name", True
        others = f"{', '.join(LABELS[:-1])} or {LABELS[-1]}"
        position = (
            "the last of" if remaining[-1] == last else f"column {remaining[-1] + 1}, the last one not excluded, of"
        )
        return remaining[-1], f"{position} {len(names)} columns, because none is named {others}", False
    if isinstance(wanted, str) and wanted in names and settings.header is not False:
        at = names.index(wanted)
        return at, f"column {wanted!r} ({at + 1} of {len(names)}), set by data.label", True
    chosen = _position_in(str(wanted).strip(), last)
    if chosen is None:
        raise _missing_column(wanted, names, settings, "data.label")
    return chosen, f"column {chosen + 1} of {len(names)}, set by data.label", False


def _all_numbers(names: Sequence[str]) -> bool:
    """Return whether all cells of a row are numbers, as in a row of data."""
    return all(map(is_number, names))


def _missing_column(wanted: str | int, names: list[str], settings: DataSettings, key: str) -> DataError:
    has_header = not _all_numbers(names[:-1])  # a row of data may be private
    some = ", ".join(name[:40] for name in names[:20])
    shown = f"the header {some}{' ...' if len(names) > 20 else ''}" if has_header else "no header"
    return DataError(
        f"{settings.path} has no column {wanted!r}, but {len(names)} columns and {shown}: {key} takes a name "
        f'in the header, "first", "last", or a number from 1 to {len(names)}'
    )


def _find_label_name(names: list[str], remaining: list[int]) -> int | None:
    """Return the position of the column with a usual label name."""
    plain = [name.casefold() for name in names]
    places = (plain.index(name) for name in LABELS if name in plain)
    return next((at for at in places if at in remaining and (plain[at] != "y" or at in (0, len(names) - 1))), None)


def _position_in(wanted: str, last: int) -> int | None:
    if wanted in ("first", "last") and last >= 0:
        return 0 if wanted == "first" else last
    return int(wanted) - 1 if wanted.isdecimal() and len(wanted) < 10 and 1 <= int(wanted) <= last + 1 else None


def _header_warnings(names: list[str], numbers: int, *, has_header: bool) -> tuple[DataWarning, ...]:
    if has_header and 2 * numbers > len(names):
        odd = next((name for name in names if not is_number(name)), "")
        return (
            DataWarning(
                "the first row is read as a header, but most of it is numbers",
                f"{odd[:40]!r} is not a number",
                "fix that cell, or set data.header = false (--no-header) if the row is data",
            ),
        )
    counts = [str(at) for at in range(len(names))], [str(at + 1) for at in range(len(names))]
    if not has_header and len(names) > _MAX_COUNTING and names[:-1] in (counts[0][:-1], counts[1][:-1]):
        return (
            DataWarning(
                "the first row looks like a header, but is read as data",
                f"it counts {', '.join(names[:3])}, ...",
                "set data.header = true (--header)",
            ),
        )
    return ()
