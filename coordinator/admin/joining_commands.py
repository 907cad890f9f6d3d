"""`sojourn fleet`: who may join with a token, who asks, and the door at which they ask."""

from __future__ import annotations

import time
from typing import TYPE_CHECKING, Annotated

import typer

from coordinator.admin.fleet_options import DEFAULT, Folder, Reload, reload_or_say
from coordinator.console.as_json import AsJson, print_json
from sojourn import options

if TYPE_CHECKING:
    from collections.abc import Callable

    from sojourn.brokers.authority import Replaced

Names = Annotated[list[str] | None, typer.Argument(metavar="NAME...", help="As `sojourn fleet requests` shows them.")]
All = Annotated[bool, typer.Option("--all", help="All who ask.")]
_HOUR = 3_600.0


def invite(
    name: Annotated[str | None, typer.Argument(metavar="NAME", help="What the device is to be called.")] = None,
    count: Annotated[int, typer.Option(help="How many devices may join with it.")] = 1,
    prefix: Annotated[
        str | None, typer.Option(metavar="NAME", help="Call them NAME-1, NAME-2 and so on.", show_default="their own")
    ] = None,
    hours: Annotated[float, typer.Option(min=0.01, max=24 * 90, help="How long the token counts.")] = 24.0,
    authorised: Annotated[
        bool, typer.Option("--authorised", help="Accept who comes with it at once, without `sojourn fleet accept`.")
    ] = False,
    replace: Annotated[
        bool, typer.Option("--replace", help="The name may be a member's: its keys end when the new ones come.")
    ] = False,
    data: Annotated[str | None, typer.Option(metavar="PATH", help="Where the data is, on the devices.")] = None,
    fleet_folder: Folder = DEFAULT,
) -> None:
    """Print a token with which a device joins: `sojourn agent join TOKEN`. It counts once, and for a short time."""
    from sojourn.brokers import fleet as folders
    from sojourn.brokers import joining
    from sojourn.brokers.joining_file import Invitation
    from sojourn.errors import ConfigError

    if name and (count != 1 or prefix):
        raise ConfigError("one device has one name: leave out NAME, and give a --prefix for several")
    now = time.time()
    invitation = Invitation(
        made=now, ends=now + hours * _HOUR, uses=count, name=name or "", prefix=prefix or "", authorised=authorised,
        replaces=replace, data=data or "",
    )  # fmt: skip
    with folders.alone(fleet_folder):
        token = joining.invite(fleet_folder, invitation, now)
    typer.echo(token.text)
    who = name or (f"{count} devices" if count > 1 else "one device")
    typer.echo(f"for {who}, within {hours:g} h; on the device: sojourn agent join TOKEN", err=True)
    if not authorised:
        typer.echo("then here: sojourn fleet accept NAME (sojourn fleet requests shows who asks)", err=True)
    typer.echo(f"the door has to be open: sojourn fleet door, at {token.host}:{token.port}", err=True)
    settings = fleet_folder / folders.COORDINATOR / "coordinator.toml"
    if settings.exists() and "node_keys_file" not in settings.read_text(encoding="utf-8"):
        typer.echo(
            f'{settings} is of an earlier version: add node_keys_file = "{folders.NODE_KEYS}" on top of it, and',
            err=True,
        )
        typer.echo("restart the coordinator; until then it verifies no signatures", err=True)


def uninvite(fleet_folder: Folder = DEFAULT) -> None:
    """Take all invitations back: no token that was printed so far counts any more."""
    from sojourn.brokers import fleet as folders
    from sojourn.brokers import joining

    with folders.alone(fleet_folder):
        ended = joining.uninvite(fleet_folder)
    typer.echo(f"{ended} invitations are taken back")


def requests(fleet_folder: Folder = DEFAULT, as_json: AsJson = False) -> None:
    """List who asks to join, or to come back, and of whom two seem to have the keys."""
    import datetime as dt

    from rich.console import Console
    from rich.markup import escape
    from rich.table import Table

    from sojourn.brokers import fleet as folders
    from sojourn.brokers import joining_file

    folders.read(fleet_folder)  # to say so, where there is no fleet
    known = joining_file.read(fleet_folder)
    doubted = {name: each.doubted for name, each in known.seen.items() if each.doubted}
    if as_json:
        rows = [
            {"name": each.name, "asked": each.asked, "about": each.about, "returns": each.returns}
            for each in known.waiting
        ]
        print_json({"requests": rows, "doubted": doubted})
        return
    table = Table("name", "since", "what", "key", title="who asks")
    for each in known.waiting:
        what = "away, its certificate has ended" if each.returns else "asks to join"
        since = dt.datetime.fromtimestamp(each.asked, dt.UTC).isoformat(sep=" ", timespec="seconds")
        table.add_row(each.name, since, f"{what}: {escape(each.about)}", each.node_key[:12])
    for name, since in sorted(doubted.items()):
        table.add_row(name, since, "two devices have its keys: revoke it, or accept it if it is one", "")
    Console().print(table)


def accept(names: Names = None, everybody: All = False, reload: Reload = "", fleet_folder: Folder = DEFAULT) -> None:
    """Let devices in that ask, or a member that was away; its certificate is made, and it fetches it within seconds."""
    from sojourn.brokers import fleet as folders
    from sojourn.brokers import joining

    chosen = _chosen(names, everybody=everybody)
    with folders.alone(fleet_folder):
        accepted = joining.accept(fleet_folder, chosen, time.time())
    typer.echo(f"accepted: {', '.join(accepted) or 'nobody asks'}")
    if accepted:
        reload_or_say(fleet_folder, reload)


def reject(names: Names = None, everybody: All = False, fleet_folder: Folder = DEFAULT) -> None:
    """Turn devices away that ask; they are told so."""
    from sojourn.brokers import fleet as folders
    from sojourn.brokers import joining

    chosen = _chosen(names, everybody=everybody)
    with folders.alone(fleet_folder):
        rejected = joining.reject(fleet_folder, chosen, time.time())
    typer.echo(f"rejected: {', '.join(rejected) or 'nobody asks'}")


def door(
    host: Annotated[str, typer.Option(help="The address to listen at.", show_default="all")] = "",
    port: Annotated[
        int | None, typer.Option(help="The port to listen at; tokens name the fleet's.", show_default="the fleet's")
    ] = None,
    reload: Reload = "",
    fleet_folder: Folder = DEFAULT,
    log_format: options.LogFormat = None,
) -> None:
    """Keep the door open: devices ask here to join, and members have their certificates renewed. Until told to stop."""
    import asyncio
    import contextlib
    import signal

    from sojourn import logs
    from sojourn.brokers import fleet as folders
    from sojourn.brokers.door import Door
    from sojourn.brokers.reloading import reload_broker

    logs.set_up(log_format=log_format, role="door")
    fleet = folders.read(fleet_folder)
    opened = Door(
        fleet_folder, host, fleet.door_port if port is None else port, lambda: reload_broker(fleet_folder, reload)
    )

    async def until_told() -> None:
        serving = asyncio.create_task(opened.serve())
        for each in (signal.SIGTERM, signal.SIGINT):
            asyncio.get_running_loop().add_signal_handler(each, serving.cancel)
        with contextlib.suppress(asyncio.CancelledError):
            await serving

    asyncio.run(until_told())


def keys(fleet_folder: Folder = DEFAULT) -> None:
    """Print the keys with which the devices of this folder sign: what a coordinator elsewhere needs to be told."""
    from sojourn import toml
    from sojourn.brokers import fleet as folders

    typer.echo(toml.dumps({"keys": folders.read(fleet_folder).node_keys}), nl=False)


def replace_authority(
    finish: Annotated[bool, typer.Option("--finish", help="End the overlap: only the new one counts.")] = False,
    at_once: Annotated[
        bool, typer.Option("--at-once", help="No overlap, as when its key was stolen: everybody joins again.")
    ] = False,
    fleet_folder: Folder = DEFAULT,
) -> None:
    """Replace the fleet's authority: first with an overlap, in which members come to the door, then for good."""
    from sojourn.brokers import authority
    from sojourn.brokers import fleet as folders

    with folders.alone(fleet_folder):
        over = finish or at_once
        behind = authority.finish(fleet_folder, at_once=at_once) if over else authority.begin(fleet_folder)
    _say_behind(behind, over=over)
    # Mosquitto reads whom it trusts when it starts.
    typer.echo("the broker takes it up with: systemctl restart mosquitto", err=True)


def _say_behind(behind: Replaced, *, over: bool) -> None:
    if over:
        typer.echo("there is one authority, the new one")
        after = {"need new tokens (sojourn fleet invite NAME --replace)": behind.joined}
        after["need new bundles (--renew)"] = behind.bundled
    else:
        typer.echo("there are two authorities; end it with: sojourn fleet replace-authority --finish")
        after = {"learn it at the door within a day": behind.joined, "need new bundles (--renew)": behind.bundled}
    for what, names in after.items():
        if names:
            typer.echo(f"{', '.join(names)}: {what}")


def _chosen(names: list[str] | None, *, everybody: bool) -> list[str] | None:
    from sojourn.errors import ConfigError

    if bool(names) == everybody:
        raise ConfigError("name who is meant, or give --all")
    return names or None


COMMANDS: dict[str, Callable[..., None]] = {
    "invite": invite,
    "uninvite": uninvite,
    "requests": requests,
    "accept": accept,
    "reject": reject,
    "door": door,
    "keys": keys,
    "replace-authority": replace_authority,
}
"""By their names in `sojourn fleet`."""
