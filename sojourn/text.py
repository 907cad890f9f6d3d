"""Text of peers, made safe for a line of a log or a terminal.

Text stays as it came in messages and journals. It is cleaned where people read it: in the log's formatter
(`sojourn.logs`) and where commands print what nodes said.
"""

from __future__ import annotations

import re
import unicodedata
from typing import Any, TypeVar

import msgspec

LINE = 4000
"""Characters of one line of a log."""
_SEQUENCE = re.compile(
    r"\x1b\][^\x07\x1b]*(?:\x07|\x1b\\)?"  # the title of a window, a link, the clipboard
    r"|(?:\x1b\[|\x9b)[0-?]*[ -/]*[@-~]?"  # colours, cursor, screen
    r"|\x1b[PX^_][^\x1b]*(?:\x1b\\)?"  # strings to the terminal
    r"|\x1b[ -/]*[0-~]?"
)
_T = TypeVar("_T", bound=msgspec.Struct)
_UNSEEN = {"Cc", "Cf", "Cs", "Zl", "Zp"}
"""Control, format (turning the direction of writing among it) and surrogate characters, ends of lines."""


def clean_lines(text: str, longest: int = 20_000) -> str:
    """The same for text that may have several lines."""
    return "\n".join(clean(line, longest) for line in text[:longest].splitlines())


def cleaned(message: _T) -> _T:
    """A message with all its text cleaned, each on one line: for a program that only shows it."""
    plain = msgspec.to_builtins(message, builtin_types=(bytes,))
    return msgspec.convert(_walked(plain), type(message), builtin_types=(bytes,))


def _walked(value: Any) -> Any:
    match value:
        case str():
            return clean(value, len(value) or 1)
        case dict():
            return {_walked(key): _walked(each) for key, each in value.items()}
        case list() | tuple():
            return [_walked(each) for each in value]
        case _:
            return value


def clean(text: str, longest: int = LINE) -> str:
    """One line without anything that a terminal obeys or that turns or hides letters, and not longer than that."""
    cut = text if len(text) <= longest else text[: longest - 1] + "…"
    if cut.isascii() and cut.isprintable():
        return cut
    cut = re.sub(r"[\r\n\t]+", " ", _SEQUENCE.sub("", cut))
    return "".join(letter for letter in cut if unicodedata.category(letter) not in _UNSEEN)
