"""Readings from /proc and /sys: temperature, memory, power and default route. None means unknown."""

from __future__ import annotations

import os
from dataclasses import dataclass
from pathlib import Path

_MB = 1 << 20
_PAGE = os.sysconf("SC_PAGE_SIZE")
_FROZEN_ZONES = frozenset({"pmic-die"})
"""A Jetson's power chip always reports 50 or 100 degrees."""
_COLDEST, _HOTTEST = -40.0, 150.0
"""A value outside of this range means that the sensor is missing."""
_UP = 0x1


@dataclass(frozen=True)
class Readings:
    """One set of readings; sizes in megabytes. None means that this machine does not report the value."""

    celsius: float | None = None
    free_memory: float | None = None
    free_disk: float | None = None
    routes: tuple[str, ...] = ()
    """The interfaces of the active default route."""
    marked_metered: bool = False
    """Whether the file that marks the connection as metered exists."""
    charge: int | None = None
    """Charge in percent while running on battery; None on mains or without a battery."""
    worker: float | None = None
    """Resident memory of the training process."""


def temperature(root: Path, zones: tuple[str, ...] = ()) -> float | None:
    """Return the temperature of the hottest zone in degrees Celsius."""
    degrees: list[float] = []
    for zone in sorted((root / "sys/class/thermal").glob("thermal_zone*")):
        kind = system_text(zone / "type")
        counts = kind in zones if zones else kind.lower() not in _FROZEN_ZONES
        value = _number(system_text(zone / "temp"))
        if counts and value is not None and _COLDEST <= value / 1000 <= _HOTTEST:
            degrees.append(value / 1000)
    return max(degrees, default=None)


def free_memory(root: Path) -> float | None:
    """Return the megabytes that a new process can use without swapping."""
    return _meminfo(root).get("MemAvailable")


def available_memory(root: Path) -> float | None:
    """Return the megabytes that a new process can use, including free swap."""
    found = _meminfo(root)
    return found["MemAvailable"] + found.get("SwapFree", 0.0) if "MemAvailable" in found else None


def free_disk(folder: Path) -> float | None:
    """Return the megabytes that are free on the disk of this folder, which may not exist yet."""
    existing = next((path for path in (folder, *folder.parents) if path.exists()), None)
    if existing is None:
        return None
    room = os.statvfs(existing)
    return room.f_bavail * room.f_frsize / _MB


def routes(root: Path) -> tuple[str, ...]:
    """Return the interfaces of the default route with the lowest metric, for IPv4 and for IPv6."""
    return tuple(dict.fromkeys([*_least(_routes4(root)), *_least(_routes6(root))]))


def charge(root: Path) -> int | None:
    """Return the charge in percent of the fullest battery; None on mains or without a battery."""
    charges: list[int] = []
    for supply in sorted((root / "sys/class/power_supply").glob("*")):
        kind, scope = system_text(supply / "type"), system_text(supply / "scope")
        if kind != "Battery":
            if system_text(supply / "online") == "1":
                return None
        elif scope != "Device":  # such a battery is in a peripheral, for example a mouse
            if system_text(supply / "status") in ("Charging", "Full", "Not charging"):
                return None
            value = _number(system_text(supply / "capacity"))
            if value is not None:
                charges.append(value)
    return max(charges, default=None)


def resident(pid: int) -> float | None:
    """Return the resident megabytes of a local process; always from /proc itself, where local process ids are valid."""
    fields = system_text(Path(f"/proc/{pid}/statm")).split()
    return int(fields[1]) * _PAGE / _MB if len(fields) > 1 else None


def peak_resident() -> float | None:
    """Return this process's peak resident megabytes. Not `ru_maxrss`, which includes the parent's."""
    for line in system_text(Path("/proc/self/status")).splitlines():
        if line.startswith("VmHWM:"):
            return int(line.split()[1]) / 1024
    return None


def _meminfo(root: Path) -> dict[str, float]:
    """Return the megabytes of each kind of memory, by the kernel's names."""
    found: dict[str, float] = {}
    for line in system_text(root / "proc/meminfo").splitlines():
        name, _, rest = line.partition(":")
        value = _number(rest.split()[0]) if rest.split() else None
        if value is not None:
            found[name] = value / 1024
    return found


def _routes4(root: Path) -> list[tuple[int, str]]:
    rows = [line.split() for line in system_text(root / "proc/net/route").splitlines()[1:]]
    return [
        (int(row[6]), row[0])
        for row in rows
        if len(row) > 7 and row[1] == row[7] == "00000000" and int(row[3], 16) & _UP and row[6].isdecimal()
    ]


def _routes6(root: Path) -> list[tuple[int, str]]:
    rows = [line.split() for line in system_text(root / "proc/net/ipv6_route").splitlines()]
    return [
        (int(row[5], 16), row[9])
        for row in rows
        if len(row) > 9 and row[0] == "0" * 32 and row[1] == "00" and row[9] != "lo" and int(row[8], 16) & _UP
    ]


def _least(found: list[tuple[int, str]]) -> list[str]:
    least = min((metric for metric, _ in found), default=0)
    return [name for metric, name in found if metric == least]


def _number(text: str) -> int | None:
    try:
        return int(text)
    except ValueError:
        return None


def system_text(path: Path) -> str:
    """Return the content of a system file; empty if it does not exist or cannot be read."""
    try:
        return path.read_text(encoding="utf-8", errors="replace").strip()
    except OSError:
        return ""
