"""Replacing a fleet's authority: with an overlap, in which certificates of both are taken, or at once.

During the overlap the broker and the door still show certificates of the old authority, whom every member trusts.
Members that come to the door are told to trust both, and get certificates of the new one; whoever is added gets both,
too. At its end the broker and the door show certificates of the new one, and the old one counts for nothing.
"""

from __future__ import annotations

import datetime as dt
import re
from typing import TYPE_CHECKING, NamedTuple

from sojourn.brokers import configuration
from sojourn.brokers import fleet as folders
from sojourn.brokers.certificates import Authority
from sojourn.errors import ConfigError
from sojourn.store.files import write_private

if TYPE_CHECKING:
    from pathlib import Path

_NUMBER = re.compile(r".* authority(?: (\d+))?")


class Replaced(NamedTuple):
    """Who has nothing of the new authority: those that renew at the door, and those that need new bundles."""

    joined: list[str]
    bundled: list[str]


def begin(folder: Path) -> Replaced:
    """Make a new authority beside the old one; returns who has to be told of it."""
    if folders.old_authority_of(folder) is not None:
        raise ConfigError("the authority is being replaced already: --finish ends it")
    old, fleet = folders.authority_of(folder), folders.read(folder)
    new = Authority.create(_next_name(fleet.fleet, old))
    write_private(folder / folders.OLD_CA_FILE, old.certificate)
    write_private(folder / folders.OLD_CA_KEY, old.key)
    _install(folder, new, [new, old])
    folders.write(folder, fleet, folders.hashes_of(folder))
    return _behind(folder)


def finish(folder: Path, *, at_once: bool = False) -> Replaced:
    """End the overlap; returns who has nothing of the new authority and can connect no more.

    at_once: without an overlap, as when the old key is in wrong hands: everybody has to join again.
    """
    fleet = folders.read(folder)
    if at_once:
        old = folders.authority_of(folder)
        new = Authority.create(_next_name(fleet.fleet, old))
    elif folders.old_authority_of(folder) is None:
        raise ConfigError("the authority is not being replaced: begin with `sojourn fleet replace-authority`")
    else:
        new = folders.authority_of(folder)
    behind = _behind(folder, everybody=at_once)
    for name in (folders.OLD_CA_KEY, folders.OLD_CA_FILE):
        (folder / name).unlink(missing_ok=True)
    _install(folder, new, [new])
    folders.renew_broker(folder, [])
    return behind


def _install(folder: Path, authority: Authority, trusted: list[Authority]) -> None:
    certificates = b"".join(each.certificate for each in trusted)
    write_private(folder / folders.CA_KEY, authority.key)
    write_private(folder / folders.CA_FILE, certificates)
    write_private(folder / folders.BROKER / configuration.CA, certificates, group=configuration.GROUP)
    coordinator = folder / folders.COORDINATOR / "coordinator.ca.pem"
    if coordinator.exists():
        write_private(coordinator, certificates, group=folders.COORDINATOR_GROUP)


def _behind(folder: Path, *, everybody: bool = False) -> Replaced:
    """Members whose newest certificate is not of the present authority; of bundles the date tells."""
    name_now = folders.authority_of(folder).name
    began = dt.datetime.fromtimestamp((folder / folders.CA_KEY).stat().st_mtime, dt.UTC)
    members = {
        name: member
        for name, member in sorted(folders.read(folder).members.items())
        if member.kind == "certificate" and not member.revoked
    }
    joined = [name for name, each in members.items() if each.until and (everybody or each.authority != name_now)]
    bundled = [
        name for name, each in members.items() if not each.until and (everybody or each.added <= f"{began:%Y-%m-%d}")
    ]
    return Replaced(joined, bundled)


def _next_name(fleet: str, old: Authority) -> str:
    found = _NUMBER.fullmatch(old.name)
    return f"{fleet} authority {int(found[1] or 1) + 1 if found else 2}"
