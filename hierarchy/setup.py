"""`sojourn edge init`: the settings of an edge server, and the broker of its site."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Any, NamedTuple

from hierarchy.settings import EdgeSettings
from sojourn import toml
from sojourn.brokers import fleet as folders
from sojourn.brokers.bundle import read_bundle
from sojourn.brokers.fleet import FleetFile
from sojourn.errors import ConfigError
from sojourn.protocol.signing import check_public
from sojourn.settings import parse, validated
from sojourn.store.files import private_folder, write_private

if TYPE_CHECKING:
    from sojourn.brokers.configuration import Listeners

GROUP = "sojourn-edge"
STORE = "/var/lib/sojourn-edge"
SETTINGS = "edge.toml"
_FILES = {"edge.toml", "edge.password", "edge.pem", "edge.key", "edge.ca.pem", "edge.release.pub"}


class Joined(NamedTuple):
    """What an edge server knows of its fleet: settings as plain tables, files beside them, whose releases to trust."""

    settings: dict[str, Any]
    files: dict[str, bytes]
    release_key: str


def from_bundle(path: Path) -> Joined:
    """What `sojourn fleet add-edge` packed."""
    files = read_bundle(path)
    if SETTINGS not in files or files.keys() - _FILES:
        raise ConfigError(f"{path} is not the bundle of an edge server: `sojourn fleet add-edge NAME` makes one")
    settings = parse(files.pop(SETTINGS).decode(errors="replace"), f"{path}: {SETTINGS}")
    validated(settings, EdgeSettings, f"{path}: {SETTINGS}")
    release_key = files.get("edge.release.pub", b"").decode(errors="replace").strip()
    return Joined(settings, files, check_public(release_key, str(path)) if release_key else "")


def by_hand(name: str, fleet: str, broker: dict[str, Any], ca_file: str | None) -> Joined:
    """What a person says of a coordinator's broker that no bundle was made for."""
    tables = {key: value for key, value in broker.items() if value is not None}
    files = {}
    if "password_file" in tables:
        files["edge.password"] = _content(tables["password_file"])
        tables["password_file"] = "edge.password"  # noqa: S105  # where it is, not what it is
    if ca_file is not None:
        files["edge.ca.pem"] = _content(ca_file)
        tables["tls"] = {"ca_file": "edge.ca.pem"}
    settings = {"name": name, "fleet": fleet, "store": STORE, "broker": tables}
    validated(settings, EdgeSettings, "the command line")
    return Joined(settings, files, "")


def with_own_broker(joined: Joined, site: Path, hosts: list[str], listeners: Listeners) -> Path:
    """A broker for the site's devices on this machine, and settings that lead from it to the coordinator's."""
    name, settings = joined.settings["name"], dict(joined.settings)
    folder = site.parent
    _check_new(folder)
    fleet = FleetFile(fleet=settings["fleet"], hosts=tuple(hosts), listeners=listeners, release_key=joined.release_key)
    folders.create(site, fleet, signed_here=False)
    _, secret = folders.admit(site, name, "edge", "password" if listeners.local else "certificate")
    settings["cloud_broker"] = _renamed(settings.pop("broker"))
    settings["broker"] = _own_broker(listeners)
    files = {each.replace("edge.", "edge.cloud.", 1): data for each, data in joined.files.items()}
    files |= {f"edge.{suffix}": data for suffix, data in secret.files.items()}
    return write(folder, settings, files | {"edge.ca.pem": (site / folders.CA_FILE).read_bytes()})


def write(folder: Path, settings: dict[str, Any], files: dict[str, bytes]) -> Path:
    """The settings, and the files that they name, for the edge server's user to read."""
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
        raise ConfigError(f"{path} exists: move it away to begin anew")
    return path


def _content(file: str) -> bytes:
    try:
        return Path(file).expanduser().read_bytes()
    except OSError as error:
        raise ConfigError(f"{file} cannot be read: {error.strerror}") from error


def _own_broker(listeners: Listeners) -> dict[str, Any]:
    if listeners.local:
        return {"host": "127.0.0.1", "port": listeners.local, "password_file": "edge.password"}
    tls = {"ca_file": "edge.ca.pem", "certificate_file": "edge.pem", "key_file": "edge.key"}
    return {"host": "localhost", "port": listeners.certificate, "tls": tls}


def _renamed(broker: dict[str, Any]) -> dict[str, Any]:
    """The table with the names that its files have beside those of the site's own broker."""
    made = dict(broker)
    for key, value in broker.items():
        if key == "tls" and isinstance(value, dict):
            made[key] = _renamed(value)
        elif key.endswith("_file") and value.startswith("edge."):
            made[key] = value.replace("edge.", "edge.cloud.", 1)
    return made
