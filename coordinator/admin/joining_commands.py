"""The commands of `sojourn fleet` for join tokens and join requests, and the options that its commands share."""

from __future__ import annotations

import time
from pathlib import Path
from typing import Annotated

import typer

from coordinator.console.options import AsJson, print_json
from sojourn import options

DEFAULT = Path("/etc/sojourn/fleet")
Folder = Annotated[
    Path,
    typer.Option(
        "--fleet-folder",
        metavar="FOLDER",
        help="The folder with the fleet's keys and members.",
        envvar="SOJOURN_FLEET_FOLDER",
    ),
]
Reload = Annotated[
    str,
    typer.Option(
        "--reload",
        metavar="COMMAND",
        help="The command that makes the broker read its files again.",
        envvar="SOJOURN_BROKER_RELOAD",
        show_default="systemctl reload mosquitto, as root",
    ),
]


def print_reload_hint() -> None:
    """Print how to make the broker read its files again."""
    typer.echo("to apply this, run: systemctl reload mosquitto (or kill -HUP its process)", err=True)


def reload_or_hint(folder: Path, command: str) -> None:
    """Make the broker read its files again, or print how to; the broker does it shortly after the command ends."""
    from sojourn.brokers.maintenance import reload_broker  # imports cryptography

    if reload_broker(folder, command):
        typer.echo("the broker was asked to read its files again", err=True)
    else:
        print_reload_hint()


Names = Annotated[
    list[str] | None, typer.Argument(metavar="NAME...", help="Names as `sojourn fleet requests` shows them.")
]
All = Annotated[bool, typer.Option("--all", help="All devices that request to join.")]
_HOUR = 3_600.0


def invite(
    name: Annotated[str | None, typer.Argument(metavar="NAME", help="The device's name; by default its own.")] = None,
    count: Annotated[int, typer.Option(help="How many devices may join with the token.")] = 1,
    prefix: Annotated[
        str | None, typer.Option(metavar="NAME", help="Name the devices NAME-1, NAME-2, ...", show_default="their own")
    ] = None,
    hours: Annotated[float, typer.Option(min=0.01, max=24 * 90, help="How long the token is valid, in hours.")] = 24.0,
    authorised: Annotated[
        bool,
        typer.Option("--authorised", help="Accept devices with this token at once, without `sojourn fleet accept`."),
    ] = False,
    replace: Annotated[
        bool,
        typer.Option(
            "--replace", help="Allow the name of a member: its old keys are revoked when the new ones are made."
        ),
    ] = False,
    data: Annotated[str | None, typer.Option(metavar="PATH", help="The path of the data on the devices.")] = None,
    fleet_folder: Folder = DEFAULT,
) -> None:
    """Print a join token for `sojourn agent join TOKEN`. By default it is valid once, for 24 hours."""
    from sojourn.brokers import fleet as folders
    from sojourn.brokers import invitations
    from sojourn.brokers.invitations import Invitation
    from sojourn.errors import ConfigError

    if name and (count != 1 or prefix):
        raise ConfigError("one device has one name: for several devices use --prefix instead of NAME")
    now = time.time()
    invitation = Invitation(
        made=now, ends=now + hours * _HOUR, uses=count, name=name or "", prefix=prefix or "", authorised=authorised,
        replaces=replace, data=data or "",
    )  # fmt: skip
    with folders.locked(fleet_folder):
        token = invitations.invite(fleet_folder, invitation, now)
    typer.echo(token.text)
    joining = name or (f"{count} devices" if count > 1 else "one device")
    typer.echo(f"for {joining}, within {hours:g} h; on the device: sojourn agent join TOKEN", err=True)
    if not authorised:
        typer.echo("then here: sojourn fleet accept NAME (sojourn fleet requests lists the requests)", err=True)
    typer.echo(f"the door must be running: sojourn fleet door, at {token.host}:{token.port}", err=True)


def uninvite(fleet_folder: Folder = DEFAULT) -> None:
    """Revoke all open invitations: no token that was printed so far is valid any more."""
    from sojourn.brokers import fleet as folders
    from sojourn.brokers import invitations

    with folders.locked(fleet_folder):
        ended = invitations.uninvite(fleet_folder)
    typer.echo("1 invitation is revoked" if ended == 1 else f"{ended} invitations are revoked")


def requests(fleet_folder: Folder = DEFAULT, as_json: AsJson = False) -> None:
    """List requests to join or to return, and members whose keys two devices seem to use."""
    import datetime as dt

    from rich.console import Console
    from rich.markup import escape
    from rich.table import Table

    from sojourn.brokers import fleet as folders
    from sojourn.brokers import invitations

    folders.read(fleet_folder)  # reports a missing fleet
    known = invitations.read(fleet_folder)
    cloned = {name: each.cloned for name, each in known.seen.items() if each.cloned}
    if as_json:
        rows = [
            {"name": each.name, "asked": each.asked, "about": each.about, "returns": each.returns}
            for each in known.waiting
        ]
        print_json({"requests": rows, "cloned": cloned})
        return
    table = Table("name", "since", "what", "key", title="requests")
    for each in known.waiting:
        what = "returns, its certificate has expired" if each.returns else "requests to join"
        since = dt.datetime.fromtimestamp(each.asked, dt.UTC).isoformat(sep=" ", timespec="seconds")
        table.add_row(each.name, since, f"{what}: {escape(each.about)}", each.node_key[:12])
    for name, since in sorted(cloned.items()):
        table.add_row(name, since, "two devices use its keys: revoke it, or accept it if there is only one", "")
    Console().print(table)


def accept(names: Names = None, all_requests: All = False, reload: Reload = "", fleet_folder: Folder = DEFAULT) -> None:
    """Accept devices that request to join or to return; each fetches its certificate within seconds."""
    from sojourn.brokers import fleet as folders
    from sojourn.brokers import invitations

    chosen = _chosen(names, all_requests=all_requests)
    with folders.locked(fleet_folder):
        accepted = invitations.accept(fleet_folder, chosen, time.time())
    typer.echo(f"accepted: {', '.join(accepted) or 'no device is waiting'}")
    if accepted:
        reload_or_hint(fleet_folder, reload)


def reject(names: Names = None, all_requests: All = False, fleet_folder: Folder = DEFAULT) -> None:
    """Reject devices that request to join; the door informs them."""
    from sojourn.brokers import fleet as folders
    from sojourn.brokers import invitations

    chosen = _chosen(names, all_requests=all_requests)
    with folders.locked(fleet_folder):
        rejected = invitations.reject(fleet_folder, chosen, time.time())
    typer.echo(f"rejected: {', '.join(rejected) or 'no device is waiting'}")


def door(
    host: Annotated[str, typer.Option(help="The address to listen on.", show_default="all")] = "",
    port: Annotated[
        int | None,
        typer.Option(help="The port to listen on; tokens contain the fleet's port.", show_default="the fleet's"),
    ] = None,
    reload: Reload = "",
    fleet_folder: Folder = DEFAULT,
    log_format: options.LogFormat = None,
) -> None:
    """Run the door, at which devices join the fleet and members renew their certificates, until it is stopped."""
    import asyncio
    import contextlib
    import signal

    from sojourn import logs
    from sojourn.brokers import fleet as folders
    from sojourn.brokers.join_server import JoinServer
    from sojourn.brokers.maintenance import reload_broker

    logs.set_up(log_format=log_format, role="door")
    fleet = folders.read(fleet_folder)
    opened = JoinServer(
        fleet_folder, host, fleet.door_port if port is None else port, lambda: reload_broker(fleet_folder, reload)
    )

    async def serve_until_signal() -> None:
        serving = asyncio.create_task(opened.serve())
        for each in (signal.SIGTERM, signal.SIGINT):
            asyncio.get_running_loop().add_signal_handler(each, serving.cancel)
        with contextlib.suppress(asyncio.CancelledError):
            await serving

    asyncio.run(serve_until_signal())


def keys(fleet_folder: Folder = DEFAULT) -> None:
    """Print the devices' public keys in this folder, for a coordinator on another machine."""
    from sojourn import settings
    from sojourn.brokers import fleet as folders

    typer.echo(settings.dumps({"keys": folders.read(fleet_folder).node_keys}), nl=False)


def replace_authority(
    finish: Annotated[
        bool, typer.Option("--finish", help="End the overlap: only the new authority is trusted.")
    ] = False,
    at_once: Annotated[
        bool,
        typer.Option("--at-once", help="No overlap, for example if the key was stolen: all members must join again."),
    ] = False,
    fleet_folder: Folder = DEFAULT,
) -> None:
    """Replace the fleet's authority: first with an overlap in which members renew at the door, then with --finish."""
    from sojourn.brokers import fleet as folders
    from sojourn.brokers import maintenance

    with folders.locked(fleet_folder):
        over = finish or at_once
        behind = maintenance.finish(fleet_folder, at_once=at_once) if over else maintenance.begin(fleet_folder)
    if over:
        typer.echo("only the new authority is trusted now")
        joined = "need a new token (sojourn fleet invite NAME --replace)"
    else:
        typer.echo("both authorities are trusted; to end the overlap, run: sojourn fleet replace-authority --finish")
        joined = "renew at the door within a day"
    for what, names in ((joined, behind.joined), ("need a new bundle (--renew)", behind.bundled)):
        if names:
            typer.echo(f"members that {what}: {', '.join(names)}")
    # Mosquitto reads its authorities only when it starts.
    typer.echo("to apply this, run: systemctl restart mosquitto", err=True)


def _chosen(names: list[str] | None, *, all_requests: bool) -> list[str] | None:
    from sojourn.errors import ConfigError

    if bool(names) == all_requests:
        raise ConfigError("give the names of devices, or --all")
    return names or None


COMMANDS = (invite, uninvite, requests, accept, reject, door, keys, replace_authority)
