"""Loads custom classes and modules by name, such as `package.module:Class`."""

from __future__ import annotations

import importlib
import os
import stat
import sys
import sysconfig
from pathlib import Path
from types import ModuleType
from typing import Any

import msgspec

from sojourn.errors import ConfigError
from sojourn.parts import Own


def load(own: Own, *methods: str) -> Any:
    """Create a custom part with its settings; raise ConfigError if it lacks one of the methods."""
    module, _, name = own.part.partition(":")
    try:
        form = getattr(own_module(module), name)
    except (ConfigError, AttributeError) as error:
        raise ConfigError(f"{own.part} is not installed here: {error}") from error
    if lacking := [each for each in methods if not callable(getattr(form, each, None))]:
        raise ConfigError(f"{own.part} lacks the methods {', '.join(lacking)}; see docs/strategies.md")
    try:
        return msgspec.convert(own.settings, form)
    except (msgspec.ValidationError, TypeError) as error:
        raise ConfigError(f"{own.part} cannot be created with {own.settings}: {error}") from error


def own_module(name: str, folder: str | None = None) -> ModuleType:
    """Import a user's module: installed, or in `folder`, the working folder or PYTHONPATH.

    The working folder is searched last, so that no file in it can shadow an installed module. A process that was
    started with `python -P`, such as an agent, does not search it.
    """
    if name.endswith(".py") or "/" in name:
        meant = name.removesuffix(".py").strip("./").replace("/", ".")
        raise ConfigError(f"{name!r} is a file name: write the module name, as for Python's import: {meant}")
    here = str(Path.cwd())
    if not sys.flags.safe_path and here not in sys.path:
        sys.path.append(here)
    if folder is not None:
        _add(folder)
    importlib.invalidate_caches()  # the file may be new
    try:
        module = importlib.import_module(name)
    except Exception as error:  # user code can raise anything
        raise ConfigError(f"the module {name!r} cannot be imported: {_reason(name, error)}") from error
    if folder is not None:
        _check_place(module, name, folder)
    return module


def _add(folder: str) -> None:
    """Append a folder to the module search path; reject one that other users can write to."""
    path = Path(folder)
    if not path.is_dir():
        raise ConfigError(f"model.path: the folder {folder} does not exist")
    status = path.stat()
    if status.st_mode & stat.S_IWOTH or status.st_uid not in (0, os.getuid()):
        raise ConfigError(
            f"model.path: {folder} belongs to another user or is world-writable, and its code would run as this "
            "program: change the owner to this user, and remove the permission (chmod o-w)"
        )
    if str(path) not in sys.path:
        sys.path.append(str(path))


def _check_place(module: ModuleType, name: str, folder: str) -> None:
    """Raise ConfigError if the module was imported from another folder."""
    places = [module.__file__] if module.__file__ else list(getattr(module, "__path__", ()))
    if not any(Path(each).resolve().is_relative_to(Path(folder).resolve()) for each in places):
        found = ", ".join(map(str, places)) or "Python itself"
        raise ConfigError(f"the module {name!r} was imported from {found}, not from {folder}: rename your module")


def _reason(name: str, error: Exception) -> str:
    absent = error.name if isinstance(error, ModuleNotFoundError) else None
    if absent is None:
        return f"{type(error).__name__}: {error}"
    if f"{name}.".startswith(f"{absent}."):
        file = f"{absent.replace('.', '/')}.py"
        return (
            f"there is no {file} in {', '.join(_folders())}: copy it into one of these folders, or install it with pip"
        )
    return f"it needs {absent}, which is not installed: install it with pip into {sys.prefix}"


def _folders() -> list[str]:
    """Return the folders of the module search path, without those of Python itself."""
    own = {sysconfig.get_path(each) for each in ("stdlib", "platstdlib", "scripts")}
    found = [str(Path(path).absolute()) for path in sys.path if Path(path).is_dir() and path not in own]
    return [path for path in dict.fromkeys(found) if Path(path).name != "lib-dynload"]
