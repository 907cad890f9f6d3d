"""The connection to a cluster of Ray: one that is there, or one on this machine for this run alone."""

from __future__ import annotations

import logging
import os
import secrets
import shutil
import socket
import tempfile
from dataclasses import dataclass
from typing import Any

from sojourn.errors import ConfigError, MachineError

LOCAL = "local"
KNOCK = 5.0
"""Seconds in which whoever listens at an address must answer; Ray itself would try for a quarter of an hour."""
ROOM = 256 << 20
"""Bytes in the object store of a cluster of our own, besides the data set: for models and kits."""
_PREFACE = b"PRI * HTTP/2.0\r\n\r\nSM\r\n\r\n" + b"\0\0\0\4\0\0\0\0\0"
_SETTINGS = 4
_QUIET = {
    "RAY_USAGE_STATS_ENABLED": "0",
    # Under `uv run`, Ray would send the working directory to all machines.
    "RAY_ENABLE_UV_RUN_RUNTIME_ENV": "0",
    "RAY_ACCEL_ENV_VAR_OVERRIDE_ON_ZERO": "0",
}


@dataclass(frozen=True)
class Cluster:
    """A cluster that this process is connected to."""

    ray: Any
    address: str
    ours: bool
    """Whether the connection is ours to end."""
    folder: str = ""
    """Where a cluster of our own keeps its logs and sockets, until it ends."""

    @property
    def cpus(self) -> int:
        """How many CPUs it has."""
        return int(self.ray.cluster_resources().get("CPU", 0))

    @property
    def free(self) -> int:
        """How many of them nobody uses."""
        return int(self.ray.available_resources().get("CPU", 0))

    @property
    def machines(self) -> int:
        """How many nodes it has."""
        return sum(node["Alive"] for node in self.ray.nodes())

    def __str__(self) -> str:
        if self.folder:
            return "a cluster on this machine"
        return f"{self.machines} machine{'s' if self.machines > 1 else ''} of the cluster at {self.address}"

    def leave(self) -> None:
        """End the connection, and the cluster if it was started for this run."""
        if self.ours:
            self.ray.shutdown()
        if self.folder:
            shutil.rmtree(self.folder, ignore_errors=True)


def join(address: str, cpus: int, data: int) -> Cluster:
    """Connect to `address` or, where nobody names one, start a cluster for so many CPUs and bytes of data."""
    place = _named(address)
    if "://" in place:
        raise ConfigError(
            f"simulation.ray = {place!r}: Ray's client is not supported; start the simulation on one of the cluster's "
            f"machines and say ray = 'auto'"
        )
    if place not in {LOCAL, "auto"}:
        _knock(place)
    ray = _ray(local=place == LOCAL)
    if ray.is_initialized():
        return Cluster(ray, ray.get_runtime_context().gcs_address, ours=False)
    folder = ""
    how: dict[str, Any] = {"log_to_driver": False, "logging_level": logging.ERROR}
    if place == LOCAL:
        folder = _own_folder()
        how |= {"num_cpus": cpus, "num_gpus": 0, "object_store_memory": data + ROOM, "_temp_dir": folder}
        how |= {"include_dashboard": False}
    cluster = Cluster(ray, place, ours=True, folder=folder)
    try:
        ray.init(address=place, **how)
    except (OSError, RuntimeError, ValueError, ray.exceptions.RayError) as error:
        cluster.leave()
        cause = error.__cause__ or error
        raise MachineError(f"no cluster of Ray at {place!r}: {str(cause).strip() or type(cause).__name__}") from error
    except BaseException:
        cluster.leave()
        raise
    return Cluster(ray, ray.get_runtime_context().gcs_address, ours=True, folder=folder)


def _own_folder() -> str:
    """A new folder for a cluster of our own: in the one that Ray's variable names, which need not exist yet."""
    # A socket's path has at most 103 characters, and the usual folder of macOS leaves too few of them.
    place = os.environ.get("RAY_TMPDIR") or "/tmp"  # noqa: S108  # mkdtemp makes a private folder in it
    try:
        os.makedirs(place, exist_ok=True)  # noqa: PTH103  # Ray itself takes the path as it stands
        return tempfile.mkdtemp(prefix="ray-", dir=place)
    except OSError as error:
        raise MachineError(
            f"Ray cannot keep its files in {place!r}: {error.strerror}; name another folder in RAY_TMPDIR"
        ) from error


def _named(address: str) -> str:
    """The address that is meant: as given, else as Ray's own variable says, else none."""
    usual = os.environ.get("RAY_ADDRESS", "")
    return (usual or "auto") if address == "auto" else address or usual or LOCAL


def _ray(*, local: bool) -> Any:
    """The package; it reads much of its environment when it is imported, so that is set before."""
    os.environ.update(_QUIET)
    if local:
        # No more than the loopback interface, as Ray does on other systems; and nobody else on this machine either.
        os.environ.setdefault("RAY_ENABLE_WINDOWS_OR_OSX_CLUSTER", "0")
        if "RAY_AUTH_MODE" not in os.environ:
            os.environ.update({"RAY_AUTH_MODE": "token", "RAY_AUTH_TOKEN": secrets.token_hex(32)})
    else:
        os.environ.setdefault("RAY_NUM_REDIS_GET_RETRIES", "2")
    import ray  # noqa: PLC0415  # takes a second, and what it reads must be set before

    return ray


def _knock(address: str) -> None:
    """Make sure that somebody at the address speaks HTTP/2, as Ray does; encrypted, only that somebody listens."""
    host, colon, port = address.rpartition(":")
    if not colon or not port.isdecimal():
        raise ConfigError(f"simulation.ray = {address!r}: write host:port, auto, or nothing for this machine alone")
    try:
        with socket.create_connection((host.strip("[]"), int(port)), KNOCK) as door:
            if os.environ.get("RAY_USE_TLS", "0") == "0":
                door.sendall(_PREFACE)
                answer = door.recv(9, socket.MSG_WAITALL)
                if len(answer) < 9 or answer[3] != _SETTINGS:
                    raise MachineError(f"what listens at {address} is not a cluster of Ray")
    except (OSError, OverflowError) as error:
        raise MachineError(f"no cluster of Ray answers at {address}: {error}; is it started (ray start)?") from error
