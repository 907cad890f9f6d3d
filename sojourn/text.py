"""Text for display: sanitised text from peers, and formatted numbers."""

from __future__ import annotations

import re
import unicodedata
from collections.abc import Iterable
from math import isfinite
from typing import Any, TypeVar

import msgspec

# Text from peers is stored unchanged in messages and journals, and sanitised for display: in the log's formatter
# (`sojourn.logs`), and where commands print it.

LINE = 4000
"""Maximum characters of a log line."""
_SEQUENCE = re.compile(
    r"\x1b\][^\x07\x1b]*(?:\x07|\x1b\\)?"  # the title of a window, a link, the clipboard
    r"|(?:\x1b\[|\x9b)[0-?]*[ -/]*[@-~]?"  # colours, cursor, screen
    r"|\x1b[PX^_][^\x1b]*(?:\x1b\\)?"  # terminal control strings
    r"|\x1b[ -/]*[0-~]?"
)
_T = TypeVar("_T", bound=msgspec.Struct)
_INVISIBLE = {"Cc", "Cf", "Cs", "Zl", "Zp"}
"""Unicode categories: control, format (such as changes of writing direction), surrogates and line separators."""


def quantity(number: int, noun: str) -> str:
    """Return a number with its noun, such as 1 round or 2 rounds."""
    return f"{number} {noun}" if number == 1 else f"{number} {noun}s"


def clean_lines(text: str, limit: int = 20_000) -> str:
    """Sanitise text of several lines."""
    return "\n".join(clean(line, limit) for line in text[:limit].splitlines())


def cleaned(message: _T) -> _T:
    """Return a message with all its text sanitised, for display only."""
    plain = msgspec.to_builtins(message, builtin_types=(bytes,))
    return msgspec.convert(_cleaned_value(plain), type(message), builtin_types=(bytes,))


def _cleaned_value(value: Any) -> Any:
    match value:
        case str():
            return clean(value, len(value) or 1)
        case dict():
            return {_cleaned_value(key): _cleaned_value(each) for key, each in value.items()}
        case list() | tuple():
            return [_cleaned_value(each) for each in value]
        case _:
            return value


def clean(text: str, limit: int = LINE) -> str:
    """Return text as one line of at most `limit` characters, without terminal sequences and invisible characters."""
    cut = text if len(text) <= limit else text[: limit - 1] + "…"
    if cut.isascii() and cut.isprintable():
        return cut
    cut = re.sub(r"[\r\n\t]+", " ", _SEQUENCE.sub("", cut))
    return "".join(letter for letter in cut if unicodedata.category(letter) not in _INVISIBLE)


def percent(share: float) -> str:
    """Format a share as a percentage; a dash if it is not finite."""
    return f"{share:.1%}".replace("%", " %") if isfinite(share) else "-"


def number(value: float) -> str:
    """Format a number; a dash if it is not finite."""
    return f"{value:.4f}" if isfinite(value) else "-"


def clock_of(seconds: float) -> str:
    """Format a duration."""
    if seconds < 1:
        return f"{1000 * seconds:.0f} ms"
    if seconds < 60:
        return f"{seconds:.1f} s"
    days, minutes = divmod(int(seconds // 60), 24 * 60)
    hours, minutes = divmod(minutes, 60)
    if days:
        return f"{days} d {hours:02} h"
    return f"{hours} h {minutes:02} min" if hours else f"{minutes} min {int(seconds % 60):02} s"


def as_ranges(numbers: Iterable[int]) -> str:
    """Format integers as ranges: 1, 10, 18 to 20."""
    runs: list[list[int]] = []
    for number in sorted(numbers):
        if runs and number == runs[-1][-1] + 1:
            runs[-1].append(number)
        else:
            runs.append([number])
    return ", ".join(
        f"{run[0]} to {run[-1]}" if len(run) > 2 else ", ".join(str(number) for number in run) for run in runs
    )
