"""The commands of `sojourn fleet`: the members of a fleet and their credentials, and the state of its devices."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from coordinator.admin.joining_commands import COMMANDS, DEFAULT, Folder, Reload, print_reload_hint, reload_or_hint
from coordinator.admin.operator_commands import app as operators
from coordinator.console.fleet_status_commands import audit, forget, history, show, status
from coordinator.console.options import AsJson, print_json
from sojourn import options

if TYPE_CHECKING:
    from sojourn.brokers.acl import MemberRole
    from sojourn.brokers.fleet import FleetFile, Kind, Secret

app = typer.Typer(
    add_completion=False,
    no_args_is_help=True,
    help="Manage the members of a fleet and their credentials; show the state of its devices.",
)

NodeName = Annotated[str, typer.Argument(metavar="NAME", help="The node's name: a-z, 0-9 and '-'.")]
Output = Annotated[Path | None, typer.Option(metavar="FILE", help="The bundle to write.", show_default="NAME.tar.gz")]
Password = Annotated[
    bool, typer.Option("--password", help="Use a password instead of a client certificate; needs a --password-port.")
]
Renew = Annotated[bool, typer.Option("--renew", help="Make new credentials for a member and revoke its old ones.")]
ShowPassword = Annotated[bool, typer.Option("--show-password", help="With --password: also print the password.")]
Wait = Annotated[
    float, typer.Option(metavar="SECONDS", min=0, help="How long to wait for the broker to read its files again.")
]
WAIT = 30.0
_MAX_LISTED = 10


@app.command()
def init(
    fleet: Annotated[str, typer.Option(help="The fleet's name.")] = "sojourn",
    host: Annotated[
        list[str] | None,
        typer.Option(help="Name or address of the broker for nodes; may be repeated. New bundles contain the first."),
    ] = None,
    certificate_port: options.CertificatePort = 8884,
    password_port: options.PasswordPort = 0,
    local_port: options.LocalPort = 1883,
    door_port: Annotated[int, typer.Option(help="The port at which devices join (`sojourn fleet door`).")] = 8885,
    cloud: Annotated[str, typer.Option(help="The coordinator's name.")] = "cloud",
    operator: Annotated[
        list[str] | None, typer.Option(help="An operator's name; may be repeated.", show_default="operator")
    ] = None,
    fleet_folder: Folder = DEFAULT,
) -> None:
    """Make the keys of a fleet, the configuration of its broker, and the settings of its coordinator."""
    from coordinator.admin import credentials
    from sojourn.brokers import fleet as folders
    from sojourn.brokers.configuration import CONF
    from sojourn.brokers.fleet import BROKER, DOOR_PORT, RELEASE_KEY, FleetFile
    from sojourn.errors import ConfigError
    from sojourn.settings import validated

    if not local_port and not password_port:
        raise ConfigError("operators connect with passwords: set --local-port or --password-port")
    hosts = host or [options.ask("Name or address at which nodes reach the broker", "--host")]
    listeners = {"password": password_port, "certificate": certificate_port, "local": local_port}
    values = {
        "fleet": fleet,
        "hosts": hosts,
        "listeners": listeners,
        "door": 0 if door_port == DOOR_PORT else door_port,
    }
    folders.create(fleet_folder, validated(values, FleetFile, "the command line"), signed_here=True)
    with folders.locked(fleet_folder):
        for name in operator or ["operator"]:
            _, secret = folders.admit(fleet_folder, name, "operator", "password")
            path = credentials.write_password(fleet_folder, name, secret)
            typer.echo(f"operator {name}: its password is in {path}")
        known, secret = folders.admit(fleet_folder, cloud, "cloud", "password")
        path = credentials.write_coordinator(fleet_folder, known, cloud, secret)
    typer.echo(f"coordinator {cloud}: its settings are {path}")
    typer.echo(f"broker: start it with mosquitto -c {fleet_folder / BROKER / CONF}")
    typer.echo(f"releases are signed with {fleet_folder / RELEASE_KEY}: keep a copy in a safe place")


@app.command("add-device")
def add_device(
    name: NodeName,
    password: Password = False,
    data: Annotated[
        str, typer.Option(metavar="PATH", help="The path of the data on the device.")
    ] = "/var/lib/sojourn-agent/data.npz",
    output: Output = None,
    renew: Renew = False,
    show_password: ShowPassword = False,
    fleet_folder: Folder = DEFAULT,
) -> None:
    """Make the bundle with which a device joins the fleet: its credentials, settings and trusted keys."""
    from coordinator.admin.credentials import agent_bundle

    path = _bundle_path(output, name)
    kind: Kind = "password" if password else "certificate"
    fleet, secret = _admitted(fleet_folder, name, "device", kind, renew=renew)
    _deliver(path, agent_bundle(fleet_folder, fleet, name, secret, data), secret, show_password=show_password)
    typer.echo(f"on the device: sudo ./install.sh --bundle {path.name}", err=True)
    if not fleet.named("edge"):
        typer.echo("there is no edge server yet: the device accepts any; --renew it when there is one", err=True)
    print_reload_hint()


@app.command("add-edge")
def add_edge(
    name: NodeName,
    password: Password = False,
    output: Output = None,
    renew: Renew = False,
    show_password: ShowPassword = False,
    fleet_folder: Folder = DEFAULT,
) -> None:
    """Make the bundle with which an edge server joins the fleet."""
    from coordinator.admin.credentials import edge_bundle

    path = _bundle_path(output, name)
    kind: Kind = "password" if password else "certificate"
    fleet, secret = _admitted(fleet_folder, name, "edge", kind, renew=renew)
    _deliver(path, edge_bundle(fleet_folder, fleet, name, secret), secret, show_password=show_password)
    typer.echo(f"on the edge server: sudo sojourn edge init --bundle {path.name}", err=True)
    devices = fleet.named("device")
    if devices and not renew:
        more = f" and {len(devices) - _MAX_LISTED} more" if len(devices) > _MAX_LISTED else ""
        typer.echo(f"{', '.join(devices[:_MAX_LISTED])}{more}: these accept it only if {name!r} is in the", err=True)
        typer.echo("`edges` of their agent.toml; add-device --renew makes bundles that include it", err=True)
    print_reload_hint()


@app.command("add-home-assistant")
def add_home_assistant(
    name: Annotated[
        str, typer.Argument(metavar="NAME", help="The user name of Home Assistant at the broker.")
    ] = "home-assistant",
    prefix: Annotated[
        str, typer.Option(metavar="TOPIC", help="The discovery prefix of Home Assistant's MQTT integration.")
    ] = "homeassistant",
    renew: Annotated[bool, typer.Option("--renew", help="Make a new password and revoke the old one.")] = False,
    show_password: Annotated[bool, typer.Option("--show-password", help="Also print the password.")] = False,
    fleet_folder: Folder = DEFAULT,
) -> None:
    """Make an account with which Home Assistant can only read devices, and let edge servers publish them."""
    from coordinator.admin.credentials import write_password
    from sojourn.brokers import fleet as folders
    from sojourn.errors import ConfigError
    from sojourn.protocol.topics import check_prefix

    with folders.locked(fleet_folder):
        listeners = folders.read(fleet_folder).listeners
        if not listeners.password and not listeners.local:
            raise ConfigError(
                "Home Assistant connects with a password: the broker needs a --local-port or a --password-port"
            )
        fleet, secret = folders.admit(
            fleet_folder, name, "home-assistant", "password", renew=renew, home_prefix=check_prefix(prefix)
        )
        path = write_password(fleet_folder, name, secret)
    typer.echo(f"Home Assistant: username {name}, its password is in {path}")
    if show_password:
        typer.echo(f"password: {secret.files['password'].decode().strip()}")
    if listeners.local:
        typer.echo(f"on this machine: broker 127.0.0.1, port {listeners.local}", err=True)
    if listeners.password:
        typer.echo(f"from elsewhere: {fleet.hosts[0]}, port {listeners.password}, TLS with {folders.CA_FILE}", err=True)
    shows = "" if prefix == "homeassistant" else f', prefix = "{prefix}"'
    typer.echo(f"in edge.toml, above the first [table]: home_assistant = {{ discovery = true{shows} }}", err=True)
    print_reload_hint()


@app.command("list")
def list_(fleet_folder: Folder = DEFAULT, as_json: AsJson = False) -> None:
    """List the members in the fleet's folder; `sojourn fleet status` shows the devices that the coordinator sees."""
    from rich.console import Console
    from rich.table import Table

    from sojourn.brokers import fleet as folders

    fleet = folders.read(fleet_folder)
    if as_json:
        print_json({"fleet": fleet.fleet, "hosts": fleet.hosts, "members": fleet.members})
        return
    table = Table("name", "role", "credential", "added", "state", title=f"{fleet.fleet} at {fleet.hosts[0]}")
    for name, member in sorted(fleet.members.items()):
        state = f"revoked {member.revoked}" if member.revoked else "may connect"
        kind = f"own key, until {member.until[:10]}" if member.until else member.kind
        table.add_row(name, member.role, kind, member.added, state)
    Console().print(table)


for command in (status, show, history, forget, audit, *COMMANDS):
    app.command()(command)
app.add_typer(operators, name="operators")


@app.command()
def revoke(name: NodeName, wait: Wait = WAIT, reload: Reload = "", fleet_folder: Folder = DEFAULT) -> None:
    """Revoke a member's credentials, for example of a lost device. It stays listed, and leaves every roster."""
    from sojourn.brokers import fleet as folders
    from sojourn.brokers import invitations

    with folders.locked(fleet_folder):
        left = folders.revoke(fleet_folder, name)
        invitations.forget(fleet_folder, name)
        typer.echo(f"{name} is revoked")
        _clear(fleet_folder, name, left, wait, reload)


@app.command()
def remove(name: NodeName, wait: Wait = WAIT, reload: Reload = "", fleet_folder: Folder = DEFAULT) -> None:
    """Remove a member. Its credentials are revoked, it leaves every roster, and its name can be used again."""
    from sojourn.brokers import fleet as folders
    from sojourn.brokers import invitations

    with folders.locked(fleet_folder):
        left = folders.remove(fleet_folder, name)
        invitations.forget(fleet_folder, name)
        typer.echo(f"{name} is removed")
        _clear(fleet_folder, name, left, wait, reload)


@app.command("renew-broker")
def renew_broker(
    host: Annotated[
        list[str] | None, typer.Option(help="Another name or address of the broker; may be repeated.")
    ] = None,
    fleet_folder: Folder = DEFAULT,
) -> None:
    """Make a new certificate for the broker: before the old one expires, or when the broker's name changes."""
    from sojourn.brokers import fleet as folders

    with folders.locked(fleet_folder):
        fleet: FleetFile = folders.renew_broker(fleet_folder, host or [])
    typer.echo(f"the broker's names are {', '.join(fleet.hosts)}")
    print_reload_hint()


def _bundle_path(output: Path | None, name: str) -> Path:
    """Return the path for the bundle; it is checked before anything changes."""
    from sojourn.errors import ConfigError
    from sojourn.protocol.topics import check_name

    path = output or Path(f"{check_name(name)}.tar.gz")
    if not path.absolute().parent.is_dir():
        raise ConfigError(f"--output: the folder {path.absolute().parent} does not exist")
    if path.exists():
        raise ConfigError(f"{path} exists: move it away, or choose another --output")
    return path


def _admitted(folder: Path, name: str, role: MemberRole, kind: Kind, *, renew: bool) -> tuple[FleetFile, Secret]:
    from sojourn.brokers import fleet as folders
    from sojourn.errors import ConfigError

    with folders.locked(folder):
        if kind == "password" and not folders.read(folder).listeners.password:
            raise ConfigError(
                "--password: this broker has no listener for passwords. Set password = 8883 under [listeners] in "
                f"{folder / folders.FLEET_FILE}, then `sojourn fleet renew-broker`, and restart the broker"
            )
        return folders.admit(folder, name, role, kind, renew=renew)


def _clear(folder: Path, name: str, left: list[str], wait: float, reload: str) -> None:
    """Delete what the broker retains for a member, after the broker has read its files again."""
    from sojourn.brokers.maintenance import HOST, clear
    from sojourn.errors import LinkError

    reload_or_hint(folder, reload)
    try:
        if clear(folder, name, left, wait):
            typer.echo(f"the retained messages of {name} are deleted from the broker")
        else:
            typer.echo(f"no broker of this fleet is running on {HOST}: restart a broker that runs elsewhere", err=True)
    except LinkError as error:
        typer.echo(
            f"{error}: to delete the retained messages of {name}, restart it (systemctl restart mosquitto)", err=True
        )
        raise typer.Exit(1) from error


def _deliver(path: Path, files: dict[str, bytes], secret: Secret, *, show_password: bool) -> None:
    from sojourn.brokers.fleet import write_bundle

    write_bundle(path, files)
    if show_password and secret.kind == "password":
        typer.echo(f"password: {secret.files['password'].decode().strip()}")
    typer.echo(f"{path} contains a secret: copy it over a secure channel, and delete it here")
