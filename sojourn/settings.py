"""Typed settings from TOML files, with what the command line says laid over them; either suffices.

They are closed: a misspelt key is an error that names the key and its nearest match. A form with `texts` says which of
its tables may be written as a text instead, like `broker = "localhost:1883"`, and which table each text stands for.
"""

from __future__ import annotations

import difflib
import os
import re
import tomllib
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import TYPE_CHECKING, Any, TypeVar

import msgspec

from sojourn.errors import ConfigError

if TYPE_CHECKING:
    from collections.abc import Iterable

_T = TypeVar("_T")
Texts = Mapping[str, Callable[[str], dict[str, Any]]]
"""Which keys of a form may be texts, and what each of them stands for."""
_UNKNOWN = re.compile(r"Object contains unknown field `(?P<key>[^`]*)`(?: - at `(?P<path>[^`]*)`)?")
_MISSING = re.compile(r"Object missing required field `(?P<key>[^`]*)`(?: - at `(?P<path>[^`]*)`)?")
_OTHER = re.compile(r"(?P<what>.*?)(?: - at `(?P<path>[^`]*)`)?$", re.DOTALL)
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
"""The settings that are names of files: in a file they are meant relative to its folder."""
_FLAGS = "the command line"
_SCHEMES = {"": None, "mqtt://": False, "mqtts://": True}
"""How an address may begin, and whether that asks for TLS."""
_ADDRESS = re.compile(r"(?P<host>[^\s:/@\[\]]+|\[[\da-fA-F:.]+\])(?::(?P<port>\d{1,5}))?/?")
_WRITE = "write host, host:port like localhost:1883, or with TLS mqtts://host:8883"
_TABLE, _LIST = re.compile(r"Expected `object(?: \| null)?`, got"), re.compile(r"Expected `array(?: \| null)?`, got")


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
    return validated(parse(text, where), form, where)


def parse(text: str, where: str) -> dict[str, Any]:
    """A TOML text as plain tables."""
    try:
        return tomllib.loads(text)
    except (tomllib.TOMLDecodeError, RecursionError) as error:
        raise ConfigError(f"{where}: not valid TOML: {error}") from error


def validated(values: Any, form: type[_T], where: str) -> _T:
    """Plain tables as typed settings; ConfigError names the key that is wrong and the nearest valid one."""
    try:
        return msgspec.convert(with_tables(values, form, where), form)
    except msgspec.ValidationError as error:
        absent = _MISSING.match(str(error)) if where == _FLAGS else None
        remedy = f": give --{absent['key']}, or a settings file that has it" if absent and not absent["path"] else ""
        raise ConfigError(f"{where}: {_describe(str(error), form)}{remedy}") from error


def read_settings(file: str | None, flags: Mapping[str, Any], form: type[_T]) -> _T:
    """The settings in a file, if one is named, with the flags that were given laid over them."""
    where = file or _FLAGS
    values: dict[str, Any] = {}
    if file is not None:
        path = Path(file).expanduser()
        values = _absolute(with_tables(read_file(path, dict[str, Any]), form, where), _PATHS, path.resolve().parent)
    return validated(_laid_over(values, flags), form, where)


def broker_flags(address: str | None, username: str | None = None, password_file: str | None = None) -> dict[str, Any]:
    """A `[broker]` table from what the command line says; `address` is what `broker_table` reads."""
    flags: dict[str, Any] = {"username": username, "password_file": password_file}
    return flags if address is None else {**flags, **broker_table(address)}


def data_flags(
    path: str | None,
    label: str | None,
    header: bool | None,  # as the options of a command are
    scale: str | None,
    targets: list[str] | None,
    ignore: list[str] | None,
    time: str | None,
    series: str | None,
) -> dict[str, Any]:
    """A `[data]` table from what the command line says."""
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
    """The `[broker]` table that an address stands for: `host`, `host:port`, `mqtt://host:port` or `mqtts://host:port`."""
    scheme, mark, rest = address.strip().rpartition("://")
    found = _ADDRESS.fullmatch(f"[{rest}]" if rest.count(":") > 1 and "[" not in rest else rest)
    wrong = f"{address!r} is not an address of a broker"
    if (scheme + mark).lower() not in _SCHEMES:
        raise ConfigError(f"{wrong}: there is no way by {scheme}:// here, {_WRITE}")
    if found is None and "@" in rest:
        raise ConfigError(f"{wrong}: a name and a password have keys of their own, username and password_file")
    if found is None or int(found["port"] or 1) not in range(1, 65_536):
        raise ConfigError(f"{wrong}: {_WRITE}")
    table = {
        "host": found["host"].strip("[]"),
        "port": int(found["port"]) if found["port"] else None,
        "tls": _SCHEMES[(scheme + mark).lower()],
    }
    return {key: value for key, value in table.items() if value is not None}


def named_table(name: str) -> dict[str, Any]:
    """The table that the name of a thing stands for."""
    return {"name": name}


def path_table(path: str) -> dict[str, Any]:
    """The table that a path stands for."""
    return {"path": path}


def store_folder(store: str | None, fleet: str, name: str) -> Path:
    """Where a node keeps what it must not forget: the folder named, or its own below the user's data folder."""
    if store is not None:
        return Path(store).expanduser()
    home = os.environ.get("XDG_DATA_HOME") or "~/.local/share"
    return Path(home).expanduser() / "sojourn" / fleet / name


def nearest(word: str, known: Iterable[str]) -> str:
    """A hint at the known word that was probably meant."""
    known = list(known)
    close = difflib.get_close_matches(word, known, 1, 0.5)
    return f"did you mean {close[0]!r}?" if close else f"known are: {', '.join(sorted(known))}"


def _describe(error: str, form: Any) -> str:
    """What msgspec found wrong, in the words of a TOML file."""
    if match := _UNKNOWN.match(error):
        table = _table(match["path"])
        hint = _elsewhere(match["key"], form, table) or nearest(match["key"], _keys(form, table))
        return f"unknown key {match['key']!r}{_within(table)}; {hint}"
    if match := _MISSING.match(error):
        return f"the key {match['key']!r} is missing{_within(_table(match['path']))}"
    match = _OTHER.match(error)
    what, path = (match["what"], match["path"]) if match else (error, None)
    if what.startswith("Invalid enum value") and (choices := _choices(form, _table(path))):
        what = f"{what}; {nearest(what.split(chr(39))[1], choices)}"
    if _TABLE.match(what):
        what = f"a table with keys is meant here, not a value of its own; {_example(form, _table(path))}"
    if _LIST.match(what):
        what = "a list is meant here: put it into brackets, [...]"
    if "matching regex" in what:  # names are all that we have a pattern for
        what = "not a valid name: use 1 to 63 of the characters a-z, 0-9 and '-'"
    return f"{'.'.join(_table(path)) or 'the file'}: {what[:1].lower()}{what[1:]}"


def _elsewhere(key: str, form: Any, table: list[str]) -> str | None:
    """Where in the file a key belongs that is in the wrong table; None where no table of the first level has it."""
    if table and key in _keys(form, []):
        return (
            "it is a key of the file itself: move its line above the first [table], because all lines below "
            f"[{'.'.join(table)}] belong to that table"
        )
    tables = [name for name in _keys(form, []) if [name] != table and key in _keys(form, [name])]
    return f"it is a key of [{tables[0]}]: move its line there" if len(tables) == 1 else None


def _example(form: Any, table: list[str]) -> str:
    return f"known keys are: {', '.join(_keys(form, table))}"


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


def with_tables(values: Any, form: Any, where: str) -> Any:
    """Plain values in which every text that is short for a table is that table, as the form's `texts` say."""
    texts: Texts = getattr(form, "texts", {})
    if not isinstance(values, dict) or not any(isinstance(values.get(key), str) for key in texts):
        return values
    try:
        return values | {key: read(values[key]) for key, read in texts.items() if isinstance(values.get(key), str)}
    except ConfigError as error:
        raise ConfigError(f"{where}: {error}") from error


def _laid_over(values: Mapping[str, Any], flags: Mapping[str, Any]) -> dict[str, Any]:
    """The flags that were given, on top of the values."""
    merged = dict(values)
    for key, flag in flags.items():
        if isinstance(flag, dict):
            below = merged.get(key)
            if given := _laid_over(below if isinstance(below, dict) else {}, flag):
                merged[key] = given
        elif flag is True and isinstance(merged.get(key), dict):
            continue  # TLS is asked for, and the file says how
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
