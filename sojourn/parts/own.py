"""Code that a user wrote: found by `package.module:Class`; a part is made from the settings in the job file."""

from __future__ import annotations

import importlib
import os
import stat
import sys
import sysconfig
from pathlib import Path
from typing import TYPE_CHECKING, Any

import msgspec

from sojourn.errors import ConfigError

if TYPE_CHECKING:
    from types import ModuleType

    from sojourn.parts import Own


def load(own: Own, *methods: str) -> Any:
    """The part, with its settings; it must have these methods."""
    module, _, name = own.part.partition(":")
    try:
        form = getattr(own_module(module), name)
    except (ConfigError, AttributeError) as error:
        raise ConfigError(f"{own.part} is not installed here: {error}") from error
    if lacking := [each for each in methods if not callable(getattr(form, each, None))]:
        raise ConfigError(f"{own.part} has no {' and no '.join(lacking)}; see docs/strategies.md")
    try:
        return msgspec.convert(own.settings, form)
    except (msgspec.ValidationError, TypeError) as error:
        raise ConfigError(f"{own.part} cannot be made of {own.settings}: {error}") from error


def own_module(name: str, folder: str | None = None) -> ModuleType:
    """A user's module: one that is installed, or that lies in `folder`, the working folder or one of PYTHONPATH.

    The working folder comes last, so that no file in it can take the place of an installed module. A process that was
    started without it (`python -P`), as an agent is, stays without it.
    """
    if name.endswith(".py") or "/" in name:
        meant = name.removesuffix(".py").strip("./").replace("/", ".")
        raise ConfigError(f"{name!r} is a file: name the module, as Python imports it: {meant}")
    here = str(Path.cwd())
    if not sys.flags.safe_path and here not in sys.path:
        sys.path.append(here)
    if folder is not None:
        _add(folder)
    importlib.invalidate_caches()  # it may have been put there since the last look
    try:
        module = importlib.import_module(name)
    except Exception as error:  # a user's code may raise anything
        raise ConfigError(f"the module {name!r} cannot be imported: {_reason(name, error)}") from error
    if folder is not None:
        _check_place(module, name, folder)
    return module


def _add(folder: str) -> None:
    """Look for modules in a folder too, after all others; only in one that is no stranger's to write to."""
    path = Path(folder)
    if not path.is_dir():
        raise ConfigError(f"model.path: there is no folder {folder}")
    status = path.stat()
    if status.st_mode & stat.S_IWOTH or status.st_uid not in (0, os.getuid()):
        raise ConfigError(
            f"model.path: {folder} belongs to another user or may be written to by anyone, and code in it would run "
            "as this program: give it to this user, and take the right to write away (chmod o-w)"
        )
    if str(path) not in sys.path:
        sys.path.append(str(path))


def _check_place(module: ModuleType, name: str, folder: str) -> None:
    """A module of the same name from elsewhere is another one."""
    places = [module.__file__] if module.__file__ else list(getattr(module, "__path__", ()))
    if not any(Path(each).resolve().is_relative_to(Path(folder).resolve()) for each in places):
        found = ", ".join(map(str, places)) or "Python itself"
        raise ConfigError(f"the module {name!r} is taken from {found}, not from {folder}: give yours another name")


def _reason(name: str, error: Exception) -> str:
    absent = error.name if isinstance(error, ModuleNotFoundError) else None
    if absent is None:
        return f"{type(error).__name__}: {error}"
    if f"{name}.".startswith(f"{absent}."):
        file = f"{absent.replace('.', '/')}.py"
        return f"there is no {file} in {', '.join(_folders())}: put it into one of them, or install it with pip"
    return f"it needs {absent}, which is not installed: install it with pip into {sys.prefix}"


def _folders() -> list[str]:
    """Where modules are looked for, but for Python's own folders and that of programs."""
    own = {sysconfig.get_path(each) for each in ("stdlib", "platstdlib", "scripts")}
    found = [str(Path(path).absolute()) for path in sys.path if Path(path).is_dir() and path not in own]
    return [path for path in dict.fromkeys(found) if Path(path).name != "lib-dynload"]
