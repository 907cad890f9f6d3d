"""Files of exact versions and hashes, from which devices and servers are installed (`pip install --require-hashes`).

Each requirement has comment lines that list its wheels with the beginnings of their hashes. With them a reader, a test
and the bill of materials can match hashes and wheels.
"""
# ruff: noqa: INP001  # next to the scripts that use it

from __future__ import annotations

import re
from pathlib import Path
from typing import NamedTuple

from packaging.tags import Tag, compatible_tags, cpython_tags
from packaging.utils import parse_wheel_filename

HERE = Path(__file__).parent
ROOT = HERE.parent
MACHINES = ("x86_64", "aarch64")
PYTHONS = ("3.11", "3.12", "3.13", "3.14")
"""Both are also in the files' first lines, where the install scripts read them."""
_NEWEST_GLIBC, _OLDEST_GLIBC = 41, 5
_OLD_NAMES = {17: "manylinux2014", 12: "manylinux2010", 5: "manylinux1"}


class Install(NamedTuple):
    """One kind of machine: its file, and the extras in addition to the base install."""

    file: Path
    about: str
    extras: tuple[str, ...] = ()


INSTALLS = {
    "device": Install(HERE / "device" / "requirements.txt", "a device or an edge server"),
    "cloud": Install(HERE / "coordinator" / "requirements.txt", "a coordinator", ("cloud",)),
    "build": Install(HERE / "build-requirements.txt", "building Sojourn itself from a checkout"),
}


class Pin(NamedTuple):
    """A package at one version, and the SHA-256 of each of its wheels that fits."""

    name: str
    version: str
    wheels: dict[str, str]


def write_lock(install: Install, pins: list[Pin]) -> str:
    """The text of a file with these pins."""
    head = (
        f"# What {install.about} needs: exact versions, and the SHA-256 of every wheel for Linux with glibc.\n"
        "# Written by `python -m deploy.make_lock`; pip takes nothing else with --require-hashes.\n"
        f"# machines: {' '.join(MACHINES)}\n"
        f"# pythons: {' '.join(PYTHONS)}\n"
    )
    return head + "".join(_entry(pin) for pin in pins)


def _entry(pin: Pin) -> str:
    wheels = sorted(pin.wheels.items())
    names = "".join(f"# {hash_[:12]} {wheel}\n" for wheel, hash_ in wheels)
    hashes = " \\\n".join(f"    --hash=sha256:{hash_}" for _, hash_ in wheels)
    return f"\n{names}{pin.name}=={pin.version} \\\n{hashes}\n"


def read_lock(path: Path) -> list[Pin]:
    """The pins of a file that `write_lock` wrote."""
    pins = []
    for entry in path.read_text().split("\n\n")[1:]:
        names = dict(re.findall(r"^# ([0-9a-f]{12}) (\S+)$", entry, re.MULTILINE))
        name, version = re.findall(r"^([a-z0-9-]+)==(\S+) \\$", entry, re.MULTILINE)[0]
        hashes = re.findall(r"--hash=sha256:([0-9a-f]{64})\b", entry)
        pins.append(Pin(name, version, {names[each[:12]]: each for each in hashes}))
    return pins


def supported(python: str, machine: str, glibc: int = _NEWEST_GLIBC) -> set[Tag]:
    """The wheel tags that a Python on a machine supports, with glibc 2.`glibc`."""
    version = tuple(int(part) for part in python.split("."))
    platforms = [
        f"{name}_{machine}"
        for minor in range(glibc, _OLDEST_GLIBC - 1, -1)
        for name in (f"manylinux_2_{minor}", *filter(None, [_OLD_NAMES.get(minor)]))
    ]
    interpreter = f"cp{python.replace('.', '')}"
    return {
        *cpython_tags(version, platforms=platforms),
        *compatible_tags(version, interpreter=interpreter, platforms=platforms),
    }


def fits(wheel: str, tags: set[Tag]) -> bool:
    """Whether a wheel of this name can be installed where these tags are supported."""
    return not tags.isdisjoint(parse_wheel_filename(wheel)[3])
