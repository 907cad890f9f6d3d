"""`sojourn edge init`: write the settings of an edge server, and the broker configuration of its site."""

from __future__ import annotations

from pathlib import Path
from typing import Any, NamedTuple

from hierarchy.settings import EdgeSettings
from sojourn import settings as toml
from sojourn.brokers import fleet as folders
from sojourn.brokers.configuration import Listeners
from sojourn.brokers.fleet import FleetFile, read_bundle
from sojourn.errors import ConfigError
from sojourn.protocol.signing import check_public
from sojourn.settings import parse, validated
from sojourn.store.files import private_folder, write_private

GROUP = "sojourn-edge"
STORE = "/var/lib/sojourn-edge"
SETTINGS = "edge.toml"
_FILES = {"edge.toml", "edge.password", "edge.pem", "edge.key", "edge.ca.pem", "edge.release.pub"}


class Joined(NamedTuple):
    """How an edge server joins its fleet: settings as plain tables, files next to them, the trusted release key."""

    settings: dict[str, Any]
    files: dict[str, bytes]
    release_key: str


def from_bundle(path: Path) -> Joined:
    """Read a bundle made by `sojourn fleet add-edge`."""
    files = read_bundle(path)
    if SETTINGS not in files or files.keys() - _FILES:
        raise ConfigError(f"{path} is not the bundle of an edge server; make one with `sojourn fleet add-edge NAME`")
    settings = parse(files.pop(SETTINGS).decode(errors="replace"), f"{path}: {SETTINGS}")
    validated(settings, EdgeSettings, f"{path}: {SETTINGS}")
    release_key = files.get("edge.release.pub", b"").decode(errors="replace").strip()
    return Joined(settings, files, check_public(release_key, str(path)) if release_key else "")


def by_hand(name: str, fleet: str, broker: dict[str, Any], ca_file: str | None) -> Joined:
    """Take the options for a coordinator's broker without a bundle."""
    tables = {key: value for key, value in broker.items() if value is not None}
    files = {}
    if "password_file" in tables:
        files["edge.password"] = _content(tables["password_file"])
        tables["password_file"] = "edge.password"  # noqa: S105  # a file name, not a password
    if ca_file is not None:
        files["edge.ca.pem"] = _content(ca_file)
        tables["tls"] = {"ca_file": "edge.ca.pem"}
    settings = {"name": name, "fleet": fleet, "store": STORE, "broker": tables}
    validated(settings, EdgeSettings, "the command line")
    return Joined(settings, files, "")


def with_site_broker(joined: Joined, site: Path, hosts: list[str], listeners: Listeners) -> Path:
    """Write a broker configuration for the site's devices on this machine, and settings for both brokers."""
    name, settings = joined.settings["name"], dict(joined.settings)
    folder = site.parent
    _check_new(folder)
    fleet = FleetFile(fleet=settings["fleet"], hosts=tuple(hosts), listeners=listeners, release_key=joined.release_key)
    folders.create(site, fleet, signed_here=False)
    _, secret = folders.admit(site, name, "edge", "password" if listeners.local else "certificate")
    settings["cloud_broker"] = _renamed(settings.pop("broker"))
    settings["broker"] = _site_broker(listeners)
    files = {each.replace("edge.", "edge.cloud.", 1): data for each, data in joined.files.items()}
    files |= {f"edge.{suffix}": data for suffix, data in secret.files.items()}
    return write(folder, settings, files | {"edge.ca.pem": (site / folders.CA_FILE).read_bytes()})


def write(folder: Path, settings: dict[str, Any], files: dict[str, bytes]) -> Path:
    """Write the settings, and the files that they name, readable by the edge server's user."""
    path = _check_new(folder)
    validated(settings, EdgeSettings, str(path))
    if not folder.exists():
        private_folder(folder, passable=True)
    for name, data in files.items():
        write_private(folder / name, data, group=GROUP)
    write_private(path, toml.dumps(settings), group=GROUP)
    return path


def _check_new(folder: Path) -> Path:
    path = folder / SETTINGS
    if path.exists():
        raise ConfigError(f"{path} exists: move it away to start again")
    return path


def _content(file: str) -> bytes:
    try:
        return Path(file).expanduser().read_bytes()
    except OSError as error:
        raise ConfigError(f"cannot read {file}: {error.strerror}") from error


def _site_broker(listeners: Listeners) -> dict[str, Any]:
    if listeners.local:
        return {"host": "127.0.0.1", "port": listeners.local, "password_file": "edge.password"}
    tls = {"ca_file": "edge.ca.pem", "certificate_file": "edge.pem", "key_file": "edge.key"}
    return {"host": "localhost", "port": listeners.certificate, "tls": tls}


def _renamed(broker: dict[str, Any]) -> dict[str, Any]:
    """Return the table with the coordinator's files renamed, since the site's broker has files with the same names."""
    made = dict(broker)
    for key, value in broker.items():
        if key == "tls" and isinstance(value, dict):
            made[key] = _renamed(value)
        elif key.endswith("_file") and value.startswith("edge."):
            made[key] = value.replace("edge.", "edge.cloud.", 1)
    return made
