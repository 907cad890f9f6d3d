"""Find the files, folders and classes of a job that this machine does not have, without running any code."""

from __future__ import annotations

import ast
import importlib
import sys
from collections.abc import Iterator, Sequence
from importlib.machinery import PathFinder
from pathlib import Path

from coordinator.jobs.settings import DIGITS, JobSettings

SOURCE_BYTES = 1 << 20
"""The maximum size in bytes of a module that is parsed; for a longer one only its existence is checked."""


def missing_input(job: JobSettings) -> str | None:
    """Return the first thing that the job names and this machine does not have; None if nothing is missing."""
    return next(_missing(job), None)


def _missing(job: JobSettings) -> Iterator[str]:
    files = {"data.test": job.data.test, "data.exemplars": job.data.exemplars, "model.start": job.model.start_file}
    for key, name in files.items():
        if name is not None and name != DIGITS and not _exists(Path(name)):
            yield f"{key}: the coordinator's machine has no file or folder {name}"
    folder = job.model.path
    if folder is not None and not Path(folder).is_dir():
        yield f"model.path: the coordinator's machine has no folder {folder}"
    named = [("model.name", job.model.name)] if job.model.custom else []
    named += [("task.loss", str(job.task.loss))] if job.task.custom_loss else []
    for key, name in named:
        if reason := _missing_class(name, folder):
            yield f"{key} = {name!r}: {reason}"


def _exists(path: Path) -> bool:
    try:
        return path.exists()
    except OSError:  # its folder is not readable
        return False


def _missing_class(name: str, folder: str | None) -> str | None:
    """Return why `module:Class` is not available; problems that only an import shows are left to that import."""
    module, _, attribute = name.partition(":")
    if "/" in module or module.endswith(".py"):
        return None  # the import reports how to write it
    places = [*sys.path, *([] if sys.flags.safe_path else [str(Path.cwd())]), *([folder] if folder else [])]
    importlib.invalidate_caches()
    origin = _origin(module, places)
    if origin is None:
        also = f" or in {folder}" if folder else "; set model.path to search a further folder"
        return f"the coordinator's machine has no module {module!r} among the installed ones, in {Path.cwd()}{also}"
    found = _names_in(Path(origin)) if origin.endswith(".py") else None
    if found is None or attribute.partition(".")[0] in found:
        return None
    classes = ", ".join(sorted(it for it in found if not it.startswith("_"))) or "nothing"
    return f"{origin} defines no {attribute!r}; it defines {classes}"[:2000]


def _origin(module: str, places: Sequence[str]) -> str | None:
    """Return the file of a module, empty if it has none; None if the module does not exist."""
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
    """Return the top-level names of a module; None if only an import shows them."""
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
            case _:  # it may define names in any way
                return None
    return None if {"*", "__getattr__"} & found else found
