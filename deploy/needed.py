"""The packages that an install needs, with their versions: those of constraints.txt and their dependencies."""
# ruff: noqa: INP001  # next to the scripts that use it

from __future__ import annotations

import sys
import tomllib
from importlib.metadata import PackageNotFoundError, distribution
from typing import TYPE_CHECKING

from packaging.requirements import Requirement
from packaging.utils import canonicalize_name

from deploy.lock_file import INSTALLS, MACHINES, PYTHONS, ROOT

if TYPE_CHECKING:
    from importlib.metadata import Distribution

_PLAIN = {"os_name": "posix", "sys_platform": "linux", "platform_system": "Linux", "implementation_name": "cpython"}
_CUDA = ("cuda-", "nvidia-", "triton")
"""Servers get the CPU build of torch, which does not need these, whichever build is installed here."""
TARGETS = [
    {
        **_PLAIN,
        "platform_python_implementation": "CPython",
        "platform_machine": machine,
        "python_version": python,
        "python_full_version": f"{python}.0",
    }
    for python in PYTHONS
    for machine in MACHINES
]


def needed(kind: str) -> dict[str, str]:
    """The versions of all packages of an install, on any machine and Python, by name."""
    return {name: installed(name).version.partition("+")[0] for name in sorted(graph(kind)) if name}


def graph(kind: str) -> dict[str, set[str]]:
    """The direct dependencies of each package of an install; "" is Sojourn."""
    found: dict[str, set[str]] = {}
    seen: set[tuple[str, frozenset[str]]] = set()
    open_ = [("", _first(kind))]
    while open_:
        name, requirements = open_.pop()
        own = found.setdefault(name, set())
        for each in requirements:
            package = installed(each.name)
            if not each.specifier.contains(package.version, prereleases=True):
                sys.exit(f"{package.name} {package.version} is installed, but {name or 'Sojourn'} needs {each}")
            own.add(canonicalize_name(each.name))
            key = canonicalize_name(each.name), frozenset(each.extras)
            if key not in seen:
                seen.add(key)
                open_.append((key[0], _requirements(package, each.extras)))
    return found


def constraints() -> dict[str, str]:
    """The versions in constraints.txt, by name."""
    lines = (ROOT / "constraints.txt").read_text().splitlines()
    pairs = [line.split("==") for line in lines if line and not line.startswith("#")]
    return {canonicalize_name(name): version for name, version in pairs}


def installed(name: str) -> Distribution:
    """The installed package; it must have the pinned version, since its dependencies are read from it."""
    try:
        found = distribution(name)
    except PackageNotFoundError:
        sys.exit(f"{name} is not installed here: make install")
    # constraints.txt does not list setuptools: the installed version counts.
    pinned = constraints().get(canonicalize_name(name), found.version)
    if found.version.partition("+")[0] != pinned:
        sys.exit(f"{name} {found.version} is installed, but constraints.txt has {pinned}: make install")
    return found


def _first(kind: str) -> list[Requirement]:
    settings = tomllib.loads((ROOT / "pyproject.toml").read_text())
    if kind == "build":
        return [Requirement(each) for each in settings["build-system"]["requires"]]
    project = settings["project"]
    extras = [each for extra in INSTALLS[kind].extras for each in project["optional-dependencies"][extra]]
    return [Requirement(each) for each in (*project["dependencies"], *extras)]


def _requirements(package: Distribution, extras: set[str]) -> list[Requirement]:
    """The dependencies of a package on at least one of the targets."""
    all_of_them = [Requirement(each) for each in package.requires or ()]
    environments = [{**target, "extra": extra} for target in TARGETS for extra in ("", *sorted(extras))]
    return [
        each
        for each in all_of_them
        if not each.name.startswith(_CUDA)
        and (each.marker is None or any(each.marker.evaluate(env) for env in environments))
    ]
