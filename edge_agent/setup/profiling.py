"""Measures a profile of this machine for the simulation: training speed, memory, latency and temperature."""

from __future__ import annotations

import datetime as dt
import os
import platform
import socket
import statistics
import subprocess
import sys
from collections.abc import Callable
from importlib.metadata import version
from pathlib import Path
from time import perf_counter
from typing import TYPE_CHECKING, Any

import msgspec

from edge_agent.machine_readings import system_text, temperature
from sojourn import __version__, settings
from sojourn.errors import ConfigError, LinkError, MachineError
from sojourn.profile import DeviceProfile, LinkProfile, Profile

if TYPE_CHECKING:
    from sojourn.model.workload import Speed

WIRED = LinkProfile(up=117.5e6, down=117.5e6, latency=0.0005)
"""Gigabit Ethernet within one building, assumed because the bandwidth is not measured."""
ASSUMED = "assumed: gigabit Ethernet in one building; not measured, set the values of your network"
_STARTS = 3
_CONNECTIONS = 5
_WORKER = "import edge_agent.training.trainer; from sojourn.model.workload import ready; ready()"
_THROTTLED = "sys/devices/platform/soc/soc:firmware/get_throttled"
"""The file in which a Raspberry Pi reports, as bits, throttling by heat or by a weak power supply."""
_SLOWED = 0xF000F


def profile_of(name: str, measured: Speed, threads: int, visit_seconds: float, latency: float | None) -> Profile:
    """Return the profile of this machine; the bandwidth is assumed, and so is the latency if it is None."""
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
    sources |= {"device.memory": "read from the system", "device.cores": f"the number of threads used: {threads}"}
    sources |= dict.fromkeys(("link.up", "link.down", "link.latency"), ASSUMED)
    if latency is not None:
        sources["link.latency"] = f"{how}: half the time of a connection to the broker"
    return Profile(name=name, device=device, link=link, sources=sources)


def text_of(profile: Profile) -> str:
    """Return the profile as TOML for the simulation."""
    table: dict[str, Any] = msgspec.to_builtins(profile)
    return settings.dumps(table)


def worker_start() -> float:
    """Measure the seconds until a new worker is ready: Python, its libraries, a kit and its probe."""
    return statistics.median(_timed(_start) for _ in range(_STARTS))


def latency_to(host: str, port: int) -> float:
    """Measure the one-way latency to a broker in seconds: half the time of a connection."""

    def connect() -> None:
        try:
            socket.create_connection((host, port), timeout=10).close()
        except OSError as error:
            raise LinkError(f"{host}:{port} cannot be reached: {error}") from error

    return statistics.median(_timed(connect) for _ in range(_CONNECTIONS)) / 2


def machine(board: Path = Path("/proc/device-tree/model"), processor: Path = Path("/proc/cpuinfo")) -> str:
    """Return the name of the board, otherwise of the processor."""
    if named := system_text(board).strip("\0\n "):
        return named
    facts = [line.partition(":") for line in system_text(processor).splitlines()]
    models = [value.strip() for key, _, value in facts if key.strip().lower() == "model name"]
    return models[0] if models else platform.processor() or platform.machine()


def heat(root: Path = Path("/")) -> str | None:
    """Describe the highest temperature and whether the machine was throttled; None if neither is known."""
    celsius = temperature(root)
    parts = [] if celsius is None else [f"{celsius:.0f} °C"]
    bits = _bits(root / _THROTTLED)
    if bits is not None:
        parts.append("slowed down by heat or power" if bits & _SLOWED else "not slowed down")
    return ", ".join(parts) or None


def check_folder(output: str) -> None:
    """Check before the measurement that the folder of the output file exists."""
    folder = Path(output).expanduser().parent
    if not folder.is_dir():
        raise ConfigError(f"{folder}: no such folder")


def write(text: str, output: str) -> None:
    """Write the profile to a file."""
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
        return int(system_text(path), 16)
    except ValueError:
        return None
