"""The files with which a node joins a fleet: its settings, its credential, and the keys that it trusts."""

from __future__ import annotations

from pathlib import Path
from typing import Any

from sojourn import settings as toml
from sojourn.brokers.fleet import CA_FILE, COORDINATOR, COORDINATOR_GROUP, NODE_KEYS, FleetFile, Secret
from sojourn.store.files import private_folder, write_private

OPERATOR_KEYS = "operators.pub"
"""The file in the fleet's folder with the keys of operators that may sign jobs; bundles of devices contain a copy."""
AGENT_STORE = "/var/lib/sojourn-agent"
EDGE_STORE = "/var/lib/sojourn-edge"
COORDINATOR_STORE = "/var/lib/sojourn-coordinator"


def broker_table(fleet: FleetFile, secret: Secret, stem: str) -> dict[str, Any]:
    """Return the `[broker]` table of a node whose credential files are next to its settings."""
    tls = {"ca_file": f"{stem}.ca.pem"}
    table: dict[str, Any] = {"host": fleet.hosts[0]}
    if secret.kind == "password":
        return {**table, "port": fleet.listeners.password, "password_file": f"{stem}.password", "tls": tls}
    tls |= {"certificate_file": f"{stem}.pem", "key_file": f"{stem}.key"}
    return {**table, "port": fleet.listeners.certificate, "tls": tls}


def agent_bundle(folder: Path, fleet: FleetFile, name: str, secret: Secret, data: str) -> dict[str, bytes]:
    """Return the files of a device, which accepts only the edge servers that the fleet has now."""
    settings: dict[str, Any] = {"name": name, "fleet": fleet.fleet, "store": AGENT_STORE}
    if edges := fleet.named("edge"):
        settings["edges"] = edges
    settings |= {"data": {"path": data}, "broker": broker_table(fleet, secret, "agent")}
    if fleet.release_key:
        settings["release"] = {"key_file": "agent.release.pub"}
    keys = folder / OPERATOR_KEYS
    if keys.exists():
        settings["mandate"] = {"keys_file": "agent.operators.pub"}
    files = _files(folder, fleet, "agent", settings, secret)
    return files | ({"agent.operators.pub": keys.read_bytes()} if keys.exists() else {})


def edge_bundle(folder: Path, fleet: FleetFile, name: str, secret: Secret) -> dict[str, bytes]:
    """Return the files of an edge server that shares the coordinator's broker; `sojourn edge init` reads them."""
    settings = {"name": name, "fleet": fleet.fleet, "store": EDGE_STORE, "broker": broker_table(fleet, secret, "edge")}
    if clouds := fleet.named("cloud"):
        settings["cloud"] = clouds[0]
    return _files(folder, fleet, "edge", settings, secret)


def write_coordinator(folder: Path, fleet: FleetFile, name: str, secret: Secret) -> Path:
    """Write the settings of the coordinator, which runs on the broker's machine, and return their path."""
    settings: dict[str, Any] = {"name": name, "fleet": fleet.fleet, "store": COORDINATOR_STORE}
    settings["operators"] = fleet.named("operator")
    settings["node_keys_file"] = NODE_KEYS
    settings["broker"] = _local_broker_table(fleet, secret, "coordinator")
    if fleet.release_key:
        settings["release_key_file"] = "coordinator.release.pub"
    target = private_folder(folder / COORDINATOR, group=COORDINATOR_GROUP)
    for file, text in _files(folder, fleet, "coordinator", settings, secret).items():
        write_private(target / file, text, group=COORDINATOR_GROUP)
    return target / "coordinator.toml"


def write_password(folder: Path, name: str, secret: Secret) -> Path:
    """Write the password of an operator or of Home Assistant, and return its path."""
    path = folder / f"{name}.password"
    write_private(path, secret.files["password"])
    return path


def _files(folder: Path, fleet: FleetFile, stem: str, settings: dict[str, Any], secret: Secret) -> dict[str, bytes]:
    files = {f"{stem}.toml": toml.dumps(settings).encode(), f"{stem}.ca.pem": (folder / CA_FILE).read_bytes()}
    files |= {f"{stem}.{suffix}": data for suffix, data in secret.files.items()}
    if fleet.release_key:
        files[f"{stem}.release.pub"] = f"{fleet.release_key}\n".encode()
    return files


def _local_broker_table(fleet: FleetFile, secret: Secret, stem: str) -> dict[str, Any]:
    """Return the `[broker]` table of a server on the broker's machine; a local connection needs no encryption."""
    if not fleet.listeners.local:
        return broker_table(fleet, secret, stem)
    return {"host": "127.0.0.1", "port": fleet.listeners.local, "password_file": f"{stem}.password"}
