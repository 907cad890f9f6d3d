"""The connection to a Ray cluster: an existing one, or a local one for this run."""

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
CONNECT_TIMEOUT = 5.0
"""Timeout of the connection test in seconds; Ray itself would retry for a quarter of an hour."""
STORE_BYTES = 256 << 20
"""Bytes in the object store of a local cluster in addition to the data set, for models and kits."""
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
    """Whether this process opened the connection, so that it may close it."""
    folder: str = ""
    """Folder of a local cluster's logs and sockets, removed at its end."""

    @property
    def cpus(self) -> int:
        """The number of CPUs."""
        return int(self.ray.cluster_resources().get("CPU", 0))

    @property
    def free(self) -> int:
        """The number of unused CPUs."""
        return int(self.ray.available_resources().get("CPU", 0))

    @property
    def machines(self) -> int:
        """The number of machines."""
        return sum(node["Alive"] for node in self.ray.nodes())

    def __str__(self) -> str:
        if self.folder:
            return "a cluster on this machine"
        return f"{self.machines} machine{'s' if self.machines > 1 else ''} of the cluster at {self.address}"

    def leave(self) -> None:
        """Close the connection, and stop the cluster if it was started for this run."""
        if self.ours:
            self.ray.shutdown()
        if self.folder:
            shutil.rmtree(self.folder, ignore_errors=True)


def join(address: str, cpus: int, data: int) -> Cluster:
    """Connect to `address`; without one, start a local cluster with this many CPUs and bytes of data."""
    place = _named(address)
    if "://" in place:
        raise ConfigError(
            f"simulation.ray = {place!r}: Ray's client is not supported; start the simulation on one of the cluster's "
            f"machines and set ray = 'auto'"
        )
    if place not in {LOCAL, "auto"}:
        _test_connection(place)
    ray = _ray(local=place == LOCAL)
    if ray.is_initialized():
        return Cluster(ray, ray.get_runtime_context().gcs_address, ours=False)
    folder = ""
    how: dict[str, Any] = {"log_to_driver": False, "logging_level": logging.ERROR}
    if place == LOCAL:
        folder = _local_folder()
        how |= {"num_cpus": cpus, "num_gpus": 0, "object_store_memory": data + STORE_BYTES, "_temp_dir": folder}
        how |= {"include_dashboard": False}
    cluster = Cluster(ray, place, ours=True, folder=folder)
    try:
        ray.init(address=place, **how)
    except (OSError, RuntimeError, ValueError, ray.exceptions.RayError) as error:
        cluster.leave()
        cause = error.__cause__ or error
        raise MachineError(f"no Ray cluster at {place!r}: {str(cause).strip() or type(cause).__name__}") from error
    except BaseException:
        cluster.leave()
        raise
    return Cluster(ray, ray.get_runtime_context().gcs_address, ours=True, folder=folder)


def _local_folder() -> str:
    """Create a folder for a local cluster, below RAY_TMPDIR if that is set; it need not exist yet."""
    # A socket's path is limited to 103 characters, and the default folder of macOS leaves too few of them.
    place = os.environ.get("RAY_TMPDIR") or "/tmp"  # noqa: S108  # mkdtemp makes a private folder in it
    try:
        os.makedirs(place, exist_ok=True)  # noqa: PTH103  # the path must be the one Ray uses
        return tempfile.mkdtemp(prefix="ray-", dir=place)
    except OSError as error:
        raise MachineError(
            f"Ray cannot write to {place!r}: {error.strerror}; set RAY_TMPDIR to another folder"
        ) from error


def _named(address: str) -> str:
    """Return the configured address, otherwise that of Ray's environment variable, otherwise an empty one."""
    usual = os.environ.get("RAY_ADDRESS", "")
    return (usual or "auto") if address == "auto" else address or usual or LOCAL


def _ray(*, local: bool) -> Any:
    """Import Ray; it reads its environment at import, so that is set first."""
    os.environ.update(_QUIET)
    if local:
        # Bind only to the loopback interface, as Ray does on other systems, so that only this machine can connect.
        os.environ.setdefault("RAY_ENABLE_WINDOWS_OR_OSX_CLUSTER", "0")
        if "RAY_AUTH_MODE" not in os.environ:
            os.environ.update({"RAY_AUTH_MODE": "token", "RAY_AUTH_TOKEN": secrets.token_hex(32)})
    else:
        os.environ.setdefault("RAY_NUM_REDIS_GET_RETRIES", "2")
    import ray  # noqa: PLC0415  # slow, and its environment must be set first

    return ray


def _test_connection(address: str) -> None:
    """Check that an HTTP/2 server answers at the address, as Ray's does; with TLS, only that the port is open."""
    host, colon, port = address.rpartition(":")
    if not colon or not port.isdecimal():
        raise ConfigError(f"simulation.ray = {address!r}: write host:port, auto, or leave it empty for a local cluster")
    try:
        with socket.create_connection((host.strip("[]"), int(port)), CONNECT_TIMEOUT) as connection:
            if os.environ.get("RAY_USE_TLS", "0") == "0":
                connection.sendall(_PREFACE)
                answer = connection.recv(9, socket.MSG_WAITALL)
                if len(answer) < 9 or answer[3] != _SETTINGS:
                    raise MachineError(f"the server at {address} is not a Ray cluster")
    except (OSError, OverflowError) as error:
        raise MachineError(f"no Ray cluster answers at {address}: {error}; start it with `ray start`") from error
