"""TOML files as typed settings: closed, so that a misspelt key is an error that names the key and its nearest match."""

from __future__ import annotations

import difflib
import re
import tomllib
from typing import TYPE_CHECKING, Any, TypeVar

import msgspec

from sojourn.errors import ConfigError

if TYPE_CHECKING:
    from collections.abc import Iterable
    from pathlib import Path

_T = TypeVar("_T")
_UNKNOWN = re.compile(r"Object contains unknown field `(?P<key>[^`]*)`(?: - at `(?P<path>[^`]*)`)?")
_MISSING = re.compile(r"Object missing required field `(?P<key>[^`]*)`(?: - at `(?P<path>[^`]*)`)?")
_OTHER = re.compile(r"(?P<what>.*?)(?: - at `(?P<path>[^`]*)`)?$", re.DOTALL)


def read_file(path: Path, form: type[_T]) -> _T:
    """The settings in a TOML file."""
    try:
        text = path.read_text(encoding="utf-8")
    except OSError as error:
        raise ConfigError(f"{path}: {error.strerror or error}") from error
    except UnicodeDecodeError as error:
        raise ConfigError(f"{path}: not UTF-8 text ({error})") from error
    return read_text(text, form, str(path))


def read_text(text: str, form: type[_T], where: str) -> _T:
    """The settings in a TOML text; `where` names it in errors."""
    return settle(parse(text, where), form, where)


def parse(text: str, where: str) -> dict[str, Any]:
    """A TOML text as plain tables."""
    try:
        return tomllib.loads(text)
    except (tomllib.TOMLDecodeError, RecursionError) as error:
        raise ConfigError(f"{where}: not valid TOML: {error}") from error


def settle(values: Any, form: type[_T], where: str) -> _T:
    """Plain tables as typed settings."""
    try:
        return msgspec.convert(values, form)
    except msgspec.ValidationError as error:
        raise ConfigError(f"{where}: {_told(str(error), form)}") from error


def nearest(word: str, known: Iterable[str]) -> str:
    """A hint at the known word that was probably meant."""
    known = list(known)
    close = difflib.get_close_matches(word, known, 1, 0.5)
    return f"did you mean {close[0]!r}?" if close else f"known are: {', '.join(sorted(known))}"


def _told(error: str, form: Any) -> str:
    if match := _UNKNOWN.match(error):
        table = _table(match["path"])
        return f"unknown key {match['key']!r}{_within(table)}; {nearest(match['key'], _keys(form, table))}"
    if match := _MISSING.match(error):
        return f"the key {match['key']!r} is missing{_within(_table(match['path']))}"
    match = _OTHER.match(error)
    what, path = (match["what"], match["path"]) if match else (error, None)
    if what.startswith("Invalid enum value") and (choices := _choices(form, _table(path))):
        what = f"{what}; {nearest(what.split(chr(39))[1], choices)}"
    if "matching regex" in what:  # names are all that we have a pattern for
        what = "not a valid name: use 1 to 63 of the characters a-z, 0-9 and '-'"
    return f"{'.'.join(_table(path)) or 'the file'}: {what[:1].lower()}{what[1:]}"


def _table(path: str | None) -> list[str]:
    return [part for part in (path or "").removeprefix("$").split(".") if part]


def _within(table: list[str]) -> str:
    return f" in [{'.'.join(table)}]" if table else ""


def _keys(form: Any, table: list[str]) -> list[str]:
    """The keys that the table at this path may have."""
    return [field.encode_name for each in _at(form, table) for field in getattr(each, "fields", ())]


def _choices(form: Any, table: list[str]) -> list[str]:
    """The words that the setting at this path may be."""
    literals = [one for one in _at(form, table) if isinstance(one, msgspec.inspect.LiteralType)]
    return [str(word) for one in literals for word in one.values]


def _at(form: Any, table: list[str]) -> list[Any]:
    """The forms that the value at this path may have."""
    known = _options(msgspec.inspect.type_info(form))
    for name in table:
        fields = [field for each in known for field in getattr(each, "fields", ()) if field.encode_name == name]
        known = [option for field in fields for option in _options(field.type)]
    return known


def _options(known: Any) -> list[Any]:
    return list(known.types) if isinstance(known, msgspec.inspect.UnionType) else [known]
