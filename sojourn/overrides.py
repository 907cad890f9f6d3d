"""Settings from a file, with what the command line says laid over them; either suffices."""

from __future__ import annotations

import os
from pathlib import Path
from typing import TYPE_CHECKING, Any, TypeVar

from sojourn.errors import ConfigError
from sojourn.settings import read_file, settle

if TYPE_CHECKING:
    from collections.abc import Mapping

_T = TypeVar("_T")
_BROKER_PATHS = {"password_file": None, "tls": {"ca_file": None, "certificate_file": None, "key_file": None}}
_PATHS: dict[str, Any] = {
    "store": None,
    "data": {"path": None},
    "release": {"key_file": None},
    "broker": _BROKER_PATHS,
    "cloud_broker": _BROKER_PATHS,
}
"""The settings that are names of files: in a file they are meant relative to its folder."""


def read_settings(file: str | None, flags: Mapping[str, Any], form: type[_T]) -> _T:
    """The settings in a file, if one is named, with the flags that were given laid over them."""
    where = file or "the command line"
    values: dict[str, Any] = {}
    if file is not None:
        path = Path(file).expanduser()
        values = _absolute(read_file(path, dict[str, Any]), _PATHS, path.resolve().parent)
    return settle(_laid_over(values, flags), form, where)


def broker_flags(address: str | None, username: str | None = None, password_file: str | None = None) -> dict[str, Any]:
    """A `[broker]` table from what the command line says; `address` is `host` or `host:port`."""
    flags: dict[str, Any] = {"username": username, "password_file": password_file}
    if address is None:
        return flags
    host, colon, port = address.rpartition(":") if not address.endswith("]") else (address, "", "")
    if not colon:
        return {**flags, "host": address.strip("[]")}
    if not port.isdecimal() or not host:
        raise ConfigError(f"--broker {address!r} is not an address: write host or host:port, like localhost:1883")
    return {**flags, "host": host.strip("[]"), "port": int(port)}


def store_folder(store: str | None, fleet: str, name: str) -> Path:
    """Where a node keeps what it must not forget: the folder named, or its own below the user's data folder."""
    if store is not None:
        return Path(store).expanduser()
    home = os.environ.get("XDG_DATA_HOME") or "~/.local/share"
    return Path(home).expanduser() / "sojourn" / fleet / name


def _laid_over(values: Mapping[str, Any], flags: Mapping[str, Any]) -> dict[str, Any]:
    """The flags that were given, on top of the values."""
    merged = dict(values)
    for key, flag in flags.items():
        if isinstance(flag, dict):
            below = merged.get(key)
            if given := _laid_over(below if isinstance(below, dict) else {}, flag):
                merged[key] = given
        elif flag is not None:
            merged[key] = flag
    return merged


def _absolute(values: dict[str, Any], paths: Mapping[str, Any], folder: Path) -> dict[str, Any]:
    made = dict(values)
    for key, inner in paths.items():
        value = made.get(key)
        if isinstance(value, dict) and inner:
            made[key] = _absolute(value, inner, folder)
        elif isinstance(value, str) and inner is None:
            made[key] = str(folder / Path(value).expanduser())
    return made
