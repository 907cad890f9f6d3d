"""A profile of this machine for the simulation: what was measured, and what can be read of its memory and heat."""

from __future__ import annotations

import datetime as dt
import os
import platform
import socket
import statistics
import subprocess
import sys
from importlib.metadata import version
from pathlib import Path
from time import perf_counter
from typing import TYPE_CHECKING, Any

import msgspec

from edge_agent.limits.readings import temperature
from sojourn import __version__, toml
from sojourn.errors import ConfigError, LinkError, MachineError
from sojourn.profile import DeviceProfile, LinkProfile, Profile

if TYPE_CHECKING:
    from collections.abc import Callable

    from sojourn.model.workload import Speed

WIRED = LinkProfile(up=117.5e6, down=117.5e6, latency=0.0005)
"""Gigabit Ethernet in one building, for want of a measurement."""
ASSUMED = "assumed: gigabit Ethernet in one building; not measured, write what your network gives"
_STARTS = 3
_CONNECTIONS = 5
_WORKER = "import edge_agent.training.trainer; from sojourn.model.workload import ready; ready()"
_THROTTLED = "sys/devices/platform/soc/soc:firmware/get_throttled"
"""Where a Raspberry Pi tells, in bits, that it is or was slowed down by heat or by a weak power supply."""
_SLOWED = 0xF000F


def profile_of(name: str, measured: Speed, threads: int, visit_seconds: float, latency: float | None) -> Profile:
    """The profile of this machine; the line's bandwidth is assumed, and its latency unless it was measured."""
    device = DeviceProfile(
        flops=measured.flops,
        step_seconds=measured.step_seconds,
        visit_seconds=visit_seconds,
        memory=os.sysconf("SC_PAGE_SIZE") * os.sysconf("SC_PHYS_PAGES"),
        cores=threads,
    )
    link = WIRED if latency is None else msgspec.structs.replace(WIRED, latency=latency)
    today = dt.datetime.now(tz=dt.UTC).date()
    how = f"measured on {today}, sojourn {__version__}, onnxruntime {version('onnxruntime')}, {machine()}"
    sources = {f"device.{field}": how for field in ("flops", "step_seconds", "visit_seconds")}
    sources |= {"device.memory": "read from the system", "device.cores": f"the threads that were used: {threads}"}
    sources |= dict.fromkeys(("link.up", "link.down", "link.latency"), ASSUMED)
    if latency is not None:
        sources["link.latency"] = f"{how}: half the time in which the broker takes a connection"
    return Profile(name=name, device=device, link=link, sources=sources)


def text_of(profile: Profile) -> str:
    """The profile as a TOML file that the simulation reads."""
    table: dict[str, Any] = msgspec.to_builtins(profile)
    return toml.dumps(table)


def worker_start() -> float:
    """The seconds until a new worker could do its first step: Python, its libraries, a kit and its probe."""
    return statistics.median(_timed(_start) for _ in range(_STARTS))


def latency_to(host: str, port: int) -> float:
    """The seconds one way to a broker: half of what it takes to be connected."""

    def connect() -> None:
        try:
            socket.create_connection((host, port), timeout=10).close()
        except OSError as error:
            raise LinkError(f"{host}:{port} cannot be reached: {error}") from error

    return statistics.median(_timed(connect) for _ in range(_CONNECTIONS)) / 2


def machine(board: Path = Path("/proc/device-tree/model"), processor: Path = Path("/proc/cpuinfo")) -> str:
    """The board, or else the processor, as a person knows it."""
    if named := _text(board).strip("\0\n "):
        return named
    facts = [line.partition(":") for line in _text(processor).splitlines()]
    models = [value.strip() for key, _, value in facts if key.strip().lower() == "model name"]
    return models[0] if models else platform.processor() or platform.machine()


def heat(root: Path = Path("/")) -> str | None:
    """What can be read of this machine's heat, if anything: the hottest place, and whether it was slowed down."""
    celsius = temperature(root)
    words = [] if celsius is None else [f"{celsius:.0f} °C"]
    bits = _bits(root / _THROTTLED)
    if bits is not None:
        words.append("slowed down by heat or power" if bits & _SLOWED else "not slowed down")
    return ", ".join(words) or None


def check_folder(output: str) -> None:
    """Refuse an output file whose folder does not exist, before anything is measured for nothing."""
    folder = Path(output).expanduser().parent
    if not folder.is_dir():
        raise ConfigError(f"{folder}: no such folder")


def write(text: str, output: str) -> None:
    """Put the profile into a file."""
    try:
        Path(output).expanduser().write_text(text, encoding="utf-8")
    except OSError as error:
        raise ConfigError(f"{output}: {error.strerror or error}") from error


def _start() -> None:
    done = subprocess.run([sys.executable, "-P", "-c", _WORKER], capture_output=True, text=True, check=False)
    if done.returncode:
        raise MachineError(f"a training worker does not start here: {done.stderr.strip().splitlines()[-1]}")


def _timed(action: Callable[[], None]) -> float:
    began = perf_counter()
    action()
    return perf_counter() - began


def _bits(path: Path) -> int | None:
    try:
        return int(_text(path).strip(), 16)
    except ValueError:
        return None


def _text(path: Path) -> str:
    """What a file of the system says; nothing where there is none, or where it may not be read."""
    try:
        return path.read_text(encoding="utf-8", errors="replace")
    except OSError:
        return ""
