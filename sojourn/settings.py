"""Typed settings from TOML files and command-line flags, and plain tables written as TOML."""

from __future__ import annotations

import datetime as dt
import difflib
import json
import math
import os
import re
import tomllib
from collections.abc import Callable, Iterable, Mapping
from pathlib import Path
from typing import Any, TypeVar

import msgspec

from sojourn.errors import ConfigError, Fault

# Settings come from TOML files, from the command line, or from both; flags override the file.
#
# Unknown keys are errors that name the nearest valid key. A form with `texts` declares which of its tables can also be
# written as a text, such as `broker = "localhost:1883"`, and how to parse it.

_T = TypeVar("_T")
Texts = Mapping[str, Callable[[str], dict[str, Any]]]
"""The keys of a form that can be texts, and the functions that parse these to tables."""
_UNKNOWN = re.compile(r"Object contains unknown field `(?P<key>[^`]*)`(?: - at `(?P<path>[^`]*)`)?")
_MISSING = re.compile(r"Object missing required field `(?P<key>[^`]*)`(?: - at `(?P<path>[^`]*)`)?")
_OTHER_ERROR = re.compile(r"(?P<what>.*?)(?: - at `(?P<path>[^`]*)`)?$", re.DOTALL)
_BROKER_PATHS = {"password_file": None, "tls": {"ca_file": None, "certificate_file": None, "key_file": None}}
_PATHS: dict[str, Any] = {
    "store": None,
    "data": {"path": None},
    "release": {"key_file": None, "error_token_file": None},
    "release_key_file": None,
    "mandate": {"keys_file": None},
    "mandate_keys_file": None,
    "operators_file": None,
    "node_keys_file": None,
    "identity": {"folder": None},
    "tracking": {"mlflow": None, "tensorboard": None},
    "broker": _BROKER_PATHS,
    "cloud_broker": _BROKER_PATHS,
}
"""The settings that are paths, which in a file are relative to its folder."""
_FLAGS = "the command line"
NAMES_SHOWN = 40
_SCHEMES = {"": None, "mqtt://": False, "mqtts://": True}
"""The schemes of an address, and whether they enable TLS."""
_ADDRESS = re.compile(r"(?P<host>[^\s:/@\[\]]+|\[[\da-fA-F:.]+\])(?::(?P<port>\d{1,5}))?/?")
_ADDRESS_FORMS = "write host, host:port like localhost:1883, or with TLS mqtts://host:8883"
_TABLE, _LIST = re.compile(r"Expected `object(?: \| null)?`, got"), re.compile(r"Expected `array(?: \| null)?`, got")


def read_file(path: Path, form: type[_T]) -> _T:
    """Read settings from a TOML file."""
    try:
        text = path.read_text(encoding="utf-8")
    except OSError as error:
        raise ConfigError(f"{path}: {error.strerror or error}") from error
    except UnicodeDecodeError as error:
        raise ConfigError(f"{path}: not UTF-8 text ({error})") from error
    return read_text(text, form, str(path))


def read_text(text: str, form: type[_T], where: str) -> _T:
    """Read settings from a TOML text; `where` is its name in errors."""
    return validated(parse(text, where), form, where)


def parse(text: str, where: str) -> dict[str, Any]:
    """Parse a TOML text to plain tables."""
    try:
        return tomllib.loads(text)
    except (tomllib.TOMLDecodeError, RecursionError) as error:
        raise ConfigError(f"{where}: not valid TOML: {error}") from error


def validated(values: Any, form: type[_T], where: str) -> _T:
    """Convert plain tables to typed settings; a ConfigError names the invalid key and the nearest valid one."""
    try:
        return msgspec.convert(with_tables(values, form, where), form)
    except msgspec.ValidationError as error:
        absent = _MISSING.match(str(error)) if where == _FLAGS else None
        remedy = (
            f": set --{absent['key']}, or use a settings file with this key" if absent and not absent["path"] else ""
        )
        raise ConfigError(f"{where}: {_describe(str(error), form)}{remedy}") from error


def read_settings(file: str | None, flags: Mapping[str, Any], form: type[_T]) -> _T:
    """Read settings from an optional file, overridden by flags."""
    where = file or _FLAGS
    values: dict[str, Any] = {}
    if file is not None:
        path = Path(file).expanduser()
        values = _absolute(with_tables(read_file(path, dict[str, Any]), form, where), _PATHS, path.resolve().parent)
    return validated(_merged(values, flags), form, where)


def broker_flags(address: str | None, username: str | None = None, password_file: str | None = None) -> dict[str, Any]:
    """Return a `[broker]` table from flags; `broker_table` parses `address`."""
    flags: dict[str, Any] = {"username": username, "password_file": password_file}
    return flags if address is None else {**flags, **broker_table(address)}


def data_flags(
    path: str | None,
    label: str | None,
    header: bool | None,  # like a command's options
    scale: str | None,
    targets: list[str] | None,
    ignore: list[str] | None,
    time: str | None,
    series: str | None,
) -> dict[str, Any]:
    """Return a `[data]` table from flags."""
    return {
        "path": path,
        "label": label,
        "header": header,
        "scale": scale,
        "targets": targets or None,
        "ignore": ignore or None,
        "time": time,
        "series": series,
    }


def broker_table(address: str) -> dict[str, Any]:
    """Parse an address to a `[broker]` table: `host`, `host:port`, `mqtt://host:port` or `mqtts://host:port`."""
    scheme, mark, rest = address.strip().rpartition("://")
    found = _ADDRESS.fullmatch(f"[{rest}]" if rest.count(":") > 1 and "[" not in rest else rest)
    wrong = f"{address!r} is not a broker address"
    if (scheme + mark).lower() not in _SCHEMES:
        raise ConfigError(f"{wrong}: the scheme {scheme}:// is not supported, {_ADDRESS_FORMS}")
    if found is None and "@" in rest:
        raise ConfigError(f"{wrong}: set the user name and the password with the keys username and password_file")
    if found is None or int(found["port"] or 1) not in range(1, 65_536):
        raise ConfigError(f"{wrong}: {_ADDRESS_FORMS}")
    table = {
        "host": found["host"].strip("[]"),
        "port": int(found["port"]) if found["port"] else None,
        "tls": _SCHEMES[(scheme + mark).lower()],
    }
    return {key: value for key, value in table.items() if value is not None}


def named_table(name: str) -> dict[str, Any]:
    """Return the table for a name."""
    return {"name": name}


def path_table(path: str) -> dict[str, Any]:
    """Return the table for a path."""
    return {"path": path}


def store_folder(store: str | None, fleet: str, name: str) -> Path:
    """Return the store folder of a node: the configured one, or a default below the user's data folder."""
    if store is not None:
        return Path(store).expanduser()
    home = os.environ.get("XDG_DATA_HOME") or "~/.local/share"
    return Path(home).expanduser() / "sojourn" / fleet / name


def nearest(word: str, known: Iterable[str]) -> str:
    """Return a hint with the nearest known word, or a list of the known words."""
    names = sorted(known)
    if close := difflib.get_close_matches(word, names, 1, 0.5):
        return f"did you mean {close[0]!r}?"
    rest = f" and {len(names) - NAMES_SHOWN} more" if len(names) > NAMES_SHOWN else ""
    return f"known names are: {', '.join(names[:NAMES_SHOWN])}{rest}" if names else "no names are known"


def _describe(error: str, form: Any) -> str:
    """Rewrite an error of msgspec in terms of a TOML file."""
    if match := _UNKNOWN.match(error):
        table = _table(match["path"])
        hint = _misplaced(match["key"], form, table) or nearest(match["key"], _keys(form, table))
        return f"unknown key {match['key']!r}{_in_table(table)}; {hint}"
    if match := _MISSING.match(error):
        return f"the key {match['key']!r} is missing{_in_table(_table(match['path']))}"
    match = _OTHER_ERROR.match(error)
    what, path = (match["what"], match["path"]) if match else (error, None)
    if what.startswith("Invalid enum value") and (choices := _choices(form, _table(path))):
        what = f"{what}; {nearest(what.split(chr(39))[1], choices)}"
    if _TABLE.match(what):
        what = f"expected a table with keys, not a single value; known keys are: {', '.join(_keys(form, _table(path)))}"
    if _LIST.match(what):
        what = "expected a list: put the value into brackets, [...]"
    if "matching regex" in what:  # only names have a pattern
        what = "not a valid name: use 1 to 63 of the characters a-z, 0-9 and '-'"
    return f"{'.'.join(_table(path)) or 'the file'}: {what[:1].lower()}{what[1:]}"


def _misplaced(key: str, form: Any, table: list[str]) -> str | None:
    """Return a hint where a misplaced key belongs, or None if no first-level table has it."""
    if table and key in _keys(form, []):
        return (
            "it is a key of the file itself: move its line above the first [table], because all lines below "
            f"[{'.'.join(table)}] belong to that table"
        )
    tables = [name for name in _keys(form, []) if [name] != table and key in _keys(form, [name])]
    return f"it is a key of [{tables[0]}]: move its line there" if len(tables) == 1 else None


def _table(path: str | None) -> list[str]:
    return [part for part in (path or "").removeprefix("$").split(".") if part]


def _in_table(table: list[str]) -> str:
    return f" in [{'.'.join(table)}]" if table else ""


def _keys(form: Any, table: list[str]) -> list[str]:
    """Return the valid keys of the table at this path."""
    return [field.encode_name for each in _types_at(form, table) for field in getattr(each, "fields", ())]


def _choices(form: Any, table: list[str]) -> list[str]:
    """Return the valid words of the setting at this path."""
    literals = [one for one in _types_at(form, table) if isinstance(one, msgspec.inspect.LiteralType)]
    return [str(word) for one in literals for word in one.values]


def _types_at(form: Any, table: list[str]) -> list[Any]:
    """Return the valid types of the value at this path."""
    known = _options(msgspec.inspect.type_info(form))
    for name in table:
        fields = [field for each in known for field in getattr(each, "fields", ()) if field.encode_name == name]
        known = [option for field in fields for option in _options(field.type)]
    return known


def _options(known: Any) -> list[Any]:
    return list(known.types) if isinstance(known, msgspec.inspect.UnionType) else [known]


def with_tables(values: Any, form: Any, where: str) -> Any:
    """Replace texts that stand for tables by these tables, as declared by the form's `texts`."""
    texts: Texts = getattr(form, "texts", {})
    if not isinstance(values, dict) or not any(isinstance(values.get(key), str) for key in texts):
        return values
    try:
        return values | {key: read(values[key]) for key, read in texts.items() if isinstance(values.get(key), str)}
    except ConfigError as error:
        raise ConfigError(f"{where}: {error}") from error


def _merged(values: Mapping[str, Any], flags: Mapping[str, Any]) -> dict[str, Any]:
    """Merge the given flags into the values."""
    merged = dict(values)
    for key, flag in flags.items():
        if isinstance(flag, dict):
            below = merged.get(key)
            if given := _merged(below if isinstance(below, dict) else {}, flag):
                merged[key] = given
        elif flag is True and isinstance(merged.get(key), dict):
            continue  # the flag enables TLS, and the file has its settings
        elif flag is not None:
            merged[key] = flag
    return merged


def _absolute(values: dict[str, Any], paths: Mapping[str, Any], folder: Path) -> dict[str, Any]:
    made = dict(values)
    for key, inner in paths.items():
        value = made.get(key)
        if isinstance(value, dict) and inner:
            made[key] = _absolute(value, inner, folder)
        elif isinstance(value, str) and inner is None and "://" not in value:
            made[key] = str(folder / Path(value).expanduser())
    return made


_BARE = re.compile(r"[A-Za-z0-9_-]+")


def dumps(table: Mapping[str, Any]) -> str:
    """Format a table as TOML."""
    return "\n".join(_lines(table, ())).lstrip("\n") + "\n"


def _lines(table: Mapping[str, Any], path: tuple[str, ...]) -> list[str]:
    own = {key: value for key, value in table.items() if not isinstance(value, dict)}
    tables = {key: value for key, value in table.items() if isinstance(value, dict)}
    head = ["", f"[{'.'.join(_key(part) for part in path)}]"] if path and (own or not tables) else []
    lines = [*head, *(f"{_key(key)} = {_value(value)}" for key, value in own.items())]
    for key, inner in tables.items():
        lines += _lines(inner, (*path, key))
    return lines


def _key(key: str) -> str:
    return key if _BARE.fullmatch(key) else _string(key)


def _string(text: str) -> str:
    """Format a JSON string, which is also a TOML string except for one character that TOML forbids."""
    return json.dumps(text, ensure_ascii=False).replace("\x7f", "\\u007f")


def _value(value: Any) -> str:
    match value:
        case bool():
            return "true" if value else "false"
        case int():
            return str(value)
        case float():
            return repr(value) if math.isfinite(value) else str(value)
        case str():
            return _string(value)
        case dt.datetime() | dt.date() | dt.time():
            return value.isoformat()
        case list() | tuple():
            return f"[{', '.join(_value(item) for item in value)}]"
        case dict():
            return f"{{{', '.join(f'{_key(key)} = {_value(item)}' for key, item in value.items())}}}"
        case _:
            raise Fault(f"TOML has no {type(value).__name__}")
