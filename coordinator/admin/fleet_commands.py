"""`sojourn fleet`: who may connect to a broker."""

from __future__ import annotations

import sys
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

if TYPE_CHECKING:
    from sojourn.brokers.fleet import FleetFile, MemberRole, Secret

app = typer.Typer(
    add_completion=False, no_args_is_help=True, help="Say who belongs to a fleet, and make credentials for them."
)

Folder = Annotated[
    Path,
    typer.Option(
        "--fleet-folder", metavar="FOLDER", help="With the fleet's keys and members.", envvar="SOJOURN_FLEET_FOLDER"
    ),
]
NodeName = Annotated[str, typer.Argument(metavar="NAME", help="The node's name: a-z, 0-9 and '-'.")]
Output = Annotated[Path | None, typer.Option(metavar="FILE", help="The bundle.", show_default="NAME.tar.gz")]
Certificate = Annotated[bool, typer.Option("--certificate", help="A client certificate instead of a password.")]
Renew = Annotated[bool, typer.Option("--renew", help="New credentials for a member; its old ones end.")]
ShowPassword = Annotated[bool, typer.Option("--show-password", help="Print the password, too.")]
DEFAULT = Path("/etc/sojourn/fleet")


@app.command()
def init(
    fleet: Annotated[str, typer.Option(help="The fleet's name.")] = "sojourn",
    host: Annotated[
        list[str] | None,
        typer.Option(help="Name or address at which nodes reach the broker; may be repeated, the first is told them."),
    ] = None,
    port: Annotated[int, typer.Option(help="For nodes with passwords (TLS).", min=1, max=65_535)] = 8883,
    certificate_port: Annotated[int, typer.Option(help="For nodes with certificates.", min=1, max=65_535)] = 8884,
    local_port: Annotated[int, typer.Option(help="On 127.0.0.1, without TLS; 0: none.", min=0, max=65_535)] = 1883,
    cloud: Annotated[str, typer.Option(help="The coordinator's name.")] = "cloud",
    operator: Annotated[list[str] | None, typer.Option(help="May be repeated.", show_default="operator")] = None,
    fleet_folder: Folder = DEFAULT,
) -> None:
    """Make the keys of a fleet, the configuration of its broker, and the settings of its coordinator."""
    from coordinator.admin import credentials
    from sojourn.brokers import fleet as folders
    from sojourn.brokers.configuration import CONF
    from sojourn.brokers.fleet import BROKER, RELEASE_KEY, FleetFile
    from sojourn.settings import validated

    hosts = host or [_asked("Name or address at which nodes reach the broker", "--host")]
    listeners = {"password": port, "certificate": certificate_port, "local": local_port}
    values = {"fleet": fleet, "hosts": hosts, "listeners": listeners}
    folders.create(fleet_folder, validated(values, FleetFile, "the command line"), signed_here=True)
    with folders.alone(fleet_folder):
        for name in operator or ["operator"]:
            _, secret = folders.admit(fleet_folder, name, "operator", "password")
            path = credentials.write_operator(fleet_folder, name, secret)
            typer.echo(f"operator {name}: its password is in {path}")
        known, secret = folders.admit(fleet_folder, cloud, "cloud", "password")
        path = credentials.write_coordinator(fleet_folder, known, cloud, secret)
    typer.echo(f"coordinator {cloud}: its settings are {path}")
    typer.echo(f"broker: start it with mosquitto -c {fleet_folder / BROKER / CONF}")
    typer.echo(f"releases are signed with {fleet_folder / RELEASE_KEY}: keep a copy in a safe place")


@app.command("add-device")
def add_device(
    name: NodeName,
    certificate: Certificate = False,
    data: Annotated[
        str, typer.Option(metavar="PATH", help="Where its data is, on the device.")
    ] = "/var/lib/sojourn-agent/data.npz",
    output: Output = None,
    renew: Renew = False,
    show_password: ShowPassword = False,
    fleet_folder: Folder = DEFAULT,
) -> None:
    """Make the bundle with which a device joins the fleet: credentials, settings, and whom to trust."""
    from coordinator.admin.credentials import agent_bundle

    path = _bundle_path(output, name)
    fleet, secret = _admitted(fleet_folder, name, "device", certificate=certificate, renew=renew)
    _deliver(path, agent_bundle(fleet_folder, fleet, name, secret, data), secret, show_password=show_password)
    typer.echo(f"on the device: sudo ./install.sh --bundle {path.name}", err=True)
    _say_reload()


@app.command("add-edge")
def add_edge(
    name: NodeName,
    certificate: Certificate = False,
    output: Output = None,
    renew: Renew = False,
    show_password: ShowPassword = False,
    fleet_folder: Folder = DEFAULT,
) -> None:
    """Make the bundle with which an edge server joins the fleet."""
    from coordinator.admin.credentials import edge_bundle

    path = _bundle_path(output, name)
    fleet, secret = _admitted(fleet_folder, name, "edge", certificate=certificate, renew=renew)
    _deliver(path, edge_bundle(fleet_folder, fleet, name, secret), secret, show_password=show_password)
    typer.echo(f"on the edge server: sudo sojourn edge init --bundle {path.name}", err=True)
    _say_reload()


@app.command("list")
def list_(fleet_folder: Folder = DEFAULT) -> None:
    """List who belongs to the fleet."""
    from rich.console import Console
    from rich.table import Table

    from sojourn.brokers import fleet as folders

    fleet = folders.read(fleet_folder)
    table = Table("name", "role", "credential", "added", "state", title=f"{fleet.fleet} at {fleet.hosts[0]}")
    for name, member in sorted(fleet.members.items()):
        state = f"revoked {member.revoked}" if member.revoked else "may connect"
        table.add_row(name, member.role, member.kind, member.added, state)
    Console().print(table)


@app.command()
def revoke(name: NodeName, fleet_folder: Folder = DEFAULT) -> None:
    """Let a member connect no more: a lost or stolen device. It stays listed."""
    from sojourn.brokers import fleet as folders

    with folders.alone(fleet_folder):
        folders.revoke(fleet_folder, name)
    typer.echo(f"{name} is revoked")
    _say_reload()


@app.command()
def remove(name: NodeName, fleet_folder: Folder = DEFAULT) -> None:
    """Forget a member. Its credentials end, too, and its name is free for another."""
    from sojourn.brokers import fleet as folders

    with folders.alone(fleet_folder):
        folders.remove(fleet_folder, name)
    typer.echo(f"{name} is removed")
    _say_reload()


@app.command("renew-broker")
def renew_broker(
    host: Annotated[list[str] | None, typer.Option(help="Another name or address; may be repeated.")] = None,
    fleet_folder: Folder = DEFAULT,
) -> None:
    """Make a new certificate for the broker: before the old one ends, or when its name changes."""
    from sojourn.brokers import fleet as folders

    with folders.alone(fleet_folder):
        fleet: FleetFile = folders.renew_broker(fleet_folder, host or [])
    typer.echo(f"the broker is known as {', '.join(fleet.hosts)}")
    _say_reload()


def _asked(question: str, flag: str) -> str:
    from sojourn.errors import ConfigError

    if not sys.stdin.isatty():
        raise ConfigError(f"{flag} is missing")
    return str(typer.prompt(question))


def _bundle_path(output: Path | None, name: str) -> Path:
    """Where the bundle goes; found out before anything changes."""
    from sojourn.errors import ConfigError
    from sojourn.protocol.topics import check_name

    path = output or Path(f"{check_name(name)}.tar.gz")
    if not path.absolute().parent.is_dir():
        raise ConfigError(f"--output: there is no folder {path.absolute().parent}")
    if path.exists():
        raise ConfigError(f"{path} exists: move it away, or name another --output")
    return path


def _admitted(folder: Path, name: str, role: MemberRole, *, certificate: bool, renew: bool) -> tuple[FleetFile, Secret]:
    from sojourn.brokers import fleet as folders

    with folders.alone(folder):
        return folders.admit(folder, name, role, "certificate" if certificate else "password", renew=renew)


def _deliver(path: Path, files: dict[str, bytes], secret: Secret, *, show_password: bool) -> None:
    from sojourn.brokers.bundle import write_bundle

    write_bundle(path, files)
    if show_password and secret.kind == "password":
        typer.echo(f"password: {secret.files['password'].decode().strip()}")
    typer.echo(f"{path} holds a secret: copy it over a safe way, and delete it here")


def _say_reload() -> None:
    typer.echo("the broker takes it up with: systemctl reload mosquitto (or kill -HUP its process)", err=True)
