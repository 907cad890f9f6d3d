"""What a node needs to join a fleet, as one small bundle to copy to it: settings, a credential, whom to trust."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from sojourn import toml
from sojourn.brokers.fleet import CA_FILE, COORDINATOR, COORDINATOR_GROUP, NODE_KEYS
from sojourn.store.files import private_folder, write_private

if TYPE_CHECKING:
    from pathlib import Path

    from sojourn.brokers.fleet import FleetFile, Secret

OPERATOR_KEYS = "operators.pub"
"""The keys of those who may sign jobs, in the fleet's folder; devices are given it with their bundles."""
AGENT_STORE = "/var/lib/sojourn-agent"
EDGE_STORE = "/var/lib/sojourn-edge"
COORDINATOR_STORE = "/var/lib/sojourn-coordinator"


def broker_table(fleet: FleetFile, secret: Secret, stem: str) -> dict[str, Any]:
    """The `[broker]` table of a node whose files lie beside its settings."""
    tls = {"ca_file": f"{stem}.ca.pem"}
    table: dict[str, Any] = {"host": fleet.hosts[0]}
    if secret.kind == "password":
        return {**table, "port": fleet.listeners.password, "password_file": f"{stem}.password", "tls": tls}
    tls |= {"certificate_file": f"{stem}.pem", "key_file": f"{stem}.key"}
    return {**table, "port": fleet.listeners.certificate, "tls": tls}


def agent_bundle(folder: Path, fleet: FleetFile, name: str, secret: Secret, data: str) -> dict[str, bytes]:
    """The files of a device: it obeys the edge servers that the fleet has now, and no others."""
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
    """The files of an edge server whose devices share the coordinator's broker; `sojourn edge init` reads them."""
    settings = {"name": name, "fleet": fleet.fleet, "store": EDGE_STORE, "broker": broker_table(fleet, secret, "edge")}
    if clouds := fleet.named("cloud"):
        settings["cloud"] = clouds[0]
    return _files(folder, fleet, "edge", settings, secret)


def write_coordinator(folder: Path, fleet: FleetFile, name: str, secret: Secret) -> Path:
    """The settings of the coordinator, which runs beside its broker; returns where they are."""
    settings: dict[str, Any] = {"name": name, "fleet": fleet.fleet, "store": COORDINATOR_STORE}
    settings["operators"] = fleet.named("operator")
    settings["node_keys_file"] = NODE_KEYS
    settings["broker"] = _beside(fleet, secret, "coordinator")
    if fleet.release_key:
        settings["release_key_file"] = "coordinator.release.pub"
    own = private_folder(folder / COORDINATOR, group=COORDINATOR_GROUP)
    for file, text in _files(folder, fleet, "coordinator", settings, secret).items():
        write_private(own / file, text, group=COORDINATOR_GROUP)
    return own / "coordinator.toml"


def write_password(folder: Path, name: str, secret: Secret) -> Path:
    """The password of an operator or of Home Assistant; returns where it is."""
    path = folder / f"{name}.password"
    write_private(path, secret.files["password"])
    return path


def _files(folder: Path, fleet: FleetFile, stem: str, settings: dict[str, Any], secret: Secret) -> dict[str, bytes]:
    files = {f"{stem}.toml": toml.dumps(settings).encode(), f"{stem}.ca.pem": (folder / CA_FILE).read_bytes()}
    files |= {f"{stem}.{suffix}": data for suffix, data in secret.files.items()}
    if fleet.release_key:
        files[f"{stem}.release.pub"] = f"{fleet.release_key}\n".encode()
    return files


def _beside(fleet: FleetFile, secret: Secret, stem: str) -> dict[str, Any]:
    """The `[broker]` table of a server on the broker's own machine: what stays there needs no encryption."""
    if not fleet.listeners.local:
        return broker_table(fleet, secret, stem)
    return {"host": "127.0.0.1", "port": fleet.listeners.local, "password_file": f"{stem}.password"}
