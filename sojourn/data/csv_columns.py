"""Which column of a CSV file holds the labels, and whether its first row is a header: the one rule, and its doubts."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

from sojourn.data.samples import Doubt
from sojourn.errors import DataError

if TYPE_CHECKING:
    from sojourn.data.source import DataSettings

LABELS = ("label", "labels", "class", "target", "y")
"""Names of a label column, in any letter case; the first of them that a header has is it. `y` only as the first or the
last column: between others it is a coordinate."""
_COUNTED = 4
"""So many numbers that count up may be a row of data; more look like the numbers of columns."""


@dataclass(frozen=True)
class CsvColumns:
    """Where the labels stand, why there, whether anybody said so, and whether the first row is a header."""

    at: int
    why: str
    guessed: bool
    headed: bool
    doubts: tuple[Doubt, ...] = ()


def columns_of(head: list[str], settings: DataSettings) -> CsvColumns:
    """How the file is read, by its first row and what its owner says."""
    names = [name.strip() for name in head]
    if len(names) < 2:
        raise DataError(
            f"{settings.path} has {len(names)} column(s): a label and at least one number are needed, with a comma, a "
            "semicolon or a tab between them"
        )
    at, why, by_name = _label(names, settings)
    features = names[:at] + names[at + 1 :]
    numbers = sum(map(is_number, features))
    headed = settings.header if settings.header is not None else by_name or numbers < len(features)
    guessed = settings.label is None and not by_name
    why = f"column {names[at][:40]!r}, {why}" if guessed and headed and names[at] else why
    doubts = () if settings.header is not None or by_name else _doubts(names, numbers, headed=headed)
    return CsvColumns(at, why, guessed, headed, doubts)


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


def _label(names: list[str], settings: DataSettings) -> tuple[int, str, bool]:
    """The label's place, why it is there, and whether the header names it."""
    wanted, last = settings.label, len(names) - 1
    if wanted is None:
        at = None if settings.header is False else _named(names)
        if at is not None:
            return at, f"column {names[at]!r} ({at + 1} of {len(names)}), by its name", True
        others = f"{', '.join(LABELS[:-1])} or {LABELS[-1]}"
        return last, f"the last of {len(names)} columns, as none is named {others}", False
    if isinstance(wanted, str) and wanted in names and settings.header is not False:
        at = names.index(wanted)
        return at, f"column {wanted!r} ({at + 1} of {len(names)}), as data.label says", True
    place = _place(str(wanted).strip(), last)
    if place is None:
        headed = not all(map(is_number, names[:-1]))  # one that is no header may hold what nobody else should read
        shown = f"the header {', '.join(names[:20])}{' ...' if len(names) > 20 else ''}" if headed else "no header"
        raise DataError(
            f"{settings.path} has no column {wanted!r}, but {len(names)} columns and {shown}: data.label takes a name "
            f'in the header, "first", "last", or a number from 1 to {len(names)}'
        )
    return place, f"column {place + 1} of {len(names)}, as data.label says", False


def _named(names: list[str]) -> int | None:
    """The place of the column that is called like labels are."""
    plain = [name.casefold() for name in names]
    places = (plain.index(name) for name in LABELS if name in plain)
    return next((at for at in places if plain[at] != "y" or at in (0, len(names) - 1)), None)


def _place(wanted: str, last: int) -> int | None:
    if wanted in ("first", "last"):
        return 0 if wanted == "first" else last
    return int(wanted) - 1 if wanted.isdecimal() and 1 <= int(wanted) <= last + 1 else None


def _doubts(names: list[str], numbers: int, *, headed: bool) -> tuple[Doubt, ...]:
    if headed and 2 * numbers > len(names):
        odd = next(name for name in names if not is_number(name))
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
