"""What a job names and this machine does not have: files, folders and classes, looked for without running any code."""

from __future__ import annotations

import ast
import importlib
import sys
from importlib.machinery import PathFinder
from pathlib import Path
from typing import TYPE_CHECKING

from coordinator.jobs.settings import DIGITS

if TYPE_CHECKING:
    from collections.abc import Iterator, Sequence

    from coordinator.jobs.settings import JobSettings

SOURCE_BYTES = 1 << 20
"""Of a module that is read, at most; a longer one is only looked for."""


def not_here(job: JobSettings) -> str | None:
    """What the job names and this machine does not have, the first thing only; None if all is here."""
    return next(_lacking(job), None)


def _lacking(job: JobSettings) -> Iterator[str]:
    files = {"data.test": job.data.test, "data.exemplars": job.data.exemplars, "model.start": job.model.start_file}
    for key, name in files.items():
        if name is not None and name != DIGITS and not _exists(Path(name)):
            yield f"{key}: the coordinator's machine has no file or folder {name}"
    folder = job.model.path
    if folder is not None and not Path(folder).is_dir():
        yield f"model.path: the coordinator's machine has no folder {folder}"
    named = [("model.name", job.model.name)] if job.model.own else []
    named += [("task.loss", str(job.task.loss))] if job.task.own_loss else []
    for key, name in named:
        if reason := _class_not_here(name, folder):
            yield f"{key} = {name!r}: {reason}"


def _exists(path: Path) -> bool:
    try:
        return path.exists()
    except OSError:  # its folder may not be looked into
        return False


def _class_not_here(name: str, folder: str | None) -> str | None:
    """Why `module:Class` cannot be had; what only an import would show is left to that."""
    module, _, attribute = name.partition(":")
    if "/" in module or module.endswith(".py"):
        return None  # the import says how it is written
    places = [*sys.path, *([] if sys.flags.safe_path else [str(Path.cwd())]), *([folder] if folder else [])]
    importlib.invalidate_caches()
    origin = _origin(module, places)
    if origin is None:
        also = f" or in {folder}" if folder else "; model.path names a folder in which it is looked for, too"
        return f"the coordinator's machine has no module {module!r} among the installed ones, in {Path.cwd()}{also}"
    found = _names_in(Path(origin)) if origin.endswith(".py") else None
    if found is None or attribute.partition(".")[0] in found:
        return None
    classes = ", ".join(sorted(it for it in found if not it.startswith("_"))) or "nothing"
    return f"{origin} defines no {attribute!r}; it defines {classes}"[:2000]


def _origin(module: str, places: Sequence[str]) -> str | None:
    """The file of a module, empty where it has none; None where there is no such module."""
    if module.partition(".")[0] in sys.builtin_module_names:
        return ""
    path, origin = list(places), None
    dotted = ""
    for part in module.split("."):
        dotted = f"{dotted}.{part}" if dotted else part
        spec = PathFinder.find_spec(dotted, path)
        if spec is None:
            return None
        path, origin = list(spec.submodule_search_locations or ()), spec.origin or ""
    return origin


def _names_in(source: Path) -> set[str] | None:
    """The names that a module has at its top; None where only an import can tell."""
    try:
        if source.stat().st_size > SOURCE_BYTES:
            return None
        tree = ast.parse(source.read_bytes())
    except (OSError, SyntaxError, ValueError, RecursionError, MemoryError):
        return None
    found: set[str] = set()
    for node in tree.body:
        match node:
            case ast.ClassDef() | ast.FunctionDef() | ast.AsyncFunctionDef():
                found.add(node.name)
            case ast.Import() | ast.ImportFrom():
                found.update((it.asname or it.name).partition(".")[0] for it in node.names)
            case ast.Assign() | ast.AnnAssign():
                targets = node.targets if isinstance(node, ast.Assign) else [node.target]
                found.update(it.id for it in targets if isinstance(it, ast.Name))
                if not all(isinstance(it, ast.Name) for it in targets):
                    return None
            case ast.Expr(value=ast.Constant()):
                pass
            case _:  # it may make names in any way
                return None
    return None if {"*", "__getattr__"} & found else found
