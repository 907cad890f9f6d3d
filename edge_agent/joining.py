"""Joins a fleet with a token; run as a separate process, renews the certificate if it is due."""

from __future__ import annotations

import os
import platform
import re
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any, TypeVar

import msgspec

from edge_agent.certificate_renewal import DAY, HOUR, MINUTE, RenewalStatus
from edge_agent.settings import AgentSettings
from edge_agent.setup.agent_file import HEAT, ROOM
from sojourn import __version__, settings
from sojourn.errors import ConfigError, SojournError
from sojourn.joining import client
from sojourn.joining.identity import AUTHORITIES, CERTIFICATE, JOINED, NEXT_KEY, NODE_KEY, Membership, NodeIdentity
from sojourn.joining.messages import RequestPending, Token, Welcome
from sojourn.processes import Parent
from sojourn.protocol.limits import LABEL
from sojourn.protocol.signing import check_public
from sojourn.protocol.topics import check_name
from sojourn.settings import validated
from sojourn.store.files import write_private

FIRST_STAMP = bytes(16)
OPERATORS = "operators.pub"
_MAX_TRIES = 6
"""Number of attempts to reach the door."""
_PAUSE = 2.0
_T = TypeVar("_T")
_PUBLIC = re.compile(r"[a-z0-9-]{1,32}")


def about_this_machine() -> str:
    """Return the description that operators see of a device that requests to join: board, host name and version."""
    try:
        board = Path("/proc/device-tree/model").read_text(encoding="utf-8", errors="replace").strip("\0 ")
    except OSError:
        board = platform.machine()
    return f"{board}, {platform.node()}, sojourn {__version__}"[:LABEL]


def start_over(identity: NodeIdentity) -> None:
    """Delete all keys: from now on the fleet sees a different device."""
    for name in (NODE_KEY, CERTIFICATE, AUTHORITIES, NEXT_KEY, JOINED):
        (identity.folder / name).unlink(missing_ok=True)


def join(
    token: Token, identity: NodeIdentity, name: str, notify: Callable[[str], None], timeout: float
) -> tuple[Welcome, Membership]:
    """Request to join until an operator accepts; install the certificate and return the welcome and the membership."""
    check_name(name, "the device's name")
    authority = _retry(lambda: client.fetch_authority(token), notify)
    deadline, announced = time.monotonic() + timeout, False
    while True:
        answer = _retry(lambda: client.join(token, authority, identity, name, about_this_machine()), notify)
        if isinstance(answer, Welcome):
            identity.install(answer.certificate, answer.authorities)
            return answer, Membership(name=answer.name, host=token.host, port=token.port, stamp=FIRST_STAMP)
        if not announced:
            key = identity.node_key().public[:12]
            notify(
                f"asked to join as {answer.name}, with the key {key}: waiting for `sojourn fleet accept {answer.name}`"
            )
            announced = True
        _wait(answer, deadline)


def write_settings(
    file: Path, identity: NodeIdentity, welcome: Welcome, data: dict[str, Any], store: str | None
) -> None:
    """Write the agent's settings, which refer to the files of its identity."""
    named = {purpose: key for purpose, key in welcome.keys.items() if _PUBLIC.fullmatch(purpose)}
    keys = {purpose: check_public(key, "the door") for purpose, key in named.items()}
    for purpose, key in keys.items():
        write_private(identity.folder / f"{purpose}.pub", f"{key}\n")
    folder = _relative_folder(file, identity.folder)
    certificate = f"{folder}/{CERTIFICATE}"
    tls = {"ca_file": f"{folder}/{AUTHORITIES}", "certificate_file": certificate, "key_file": certificate}
    table: dict[str, Any] = {"name": welcome.name, "fleet": welcome.fleet}
    if store:
        table["store"] = store
    if welcome.edges:
        table["edges"] = list(welcome.edges)
    table |= {
        "data": data,
        "broker": {"host": welcome.host, "port": welcome.port, "tls": tls},
        "identity": {"folder": folder},
        "limits": {**HEAT, **ROOM},
    }
    if "release" in keys:
        table["release"] = {"key_file": f"{folder}/release.pub"}
    if welcome.operators:
        write_private(identity.folder / OPERATORS, welcome.operators)
        table["mandate"] = {"keys_file": f"{folder}/{OPERATORS}"}
    validated(table, AgentSettings, "the door's reply")
    write_private(file, settings.dumps(table))


def _relative_folder(file: Path, folder: Path) -> str:
    """Return the folder's path for a settings file: relative if the folder is below that of the file."""
    parent, target = file.absolute().parent, folder.absolute()
    return os.path.relpath(target, parent) if target.is_relative_to(parent) else str(target)


def _wait(answer: RequestPending, deadline: float) -> None:
    if time.monotonic() > deadline:
        raise ConfigError(
            f"{answer.name} has not been accepted yet: run the same command again, with the same token, to keep waiting"
        )
    time.sleep(min(max(answer.again, 0.2), 60.0))


def _retry(ask: Callable[[], _T], notify: Callable[[str], None]) -> _T:
    """Return the door's reply; retry for some seconds, since a board may have no network right after its start."""
    for number in range(_MAX_TRIES):
        try:
            return ask()
        except client.DoorUnreachable as error:
            if number == _MAX_TRIES - 1:
                raise
            if number == 0:
                notify(f"{error}; retrying")
            time.sleep(_PAUSE)
    raise AssertionError  # the last attempt raises


# One check at the door, in a separate process that `check_renewal` starts, so that the cryptography library does not
# stay in the agent's memory.


def check_certificate(identity: NodeIdentity) -> RenewalStatus:
    """Check the certificate: renew it if that is due, or request a new one if it has expired."""
    try:
        return _renewed_if_due(identity)
    except client.JoinRefused as error:
        return RenewalStatus(DAY if error.final else HOUR, f"the door refused: {error}", warn=True)
    except (SojournError, OSError) as error:  # one of the device's own files may be missing, too
        return RenewalStatus(HOUR, str(error), warn=True)


def _renewed_if_due(identity: NodeIdentity) -> RenewalStatus:
    try:
        valid = client.check(identity)
        if not valid.due:
            return RenewalStatus(min(max(valid.again, MINUTE), DAY))
        client.renew(identity)
    except client.CertificateRefused:
        return _come_back(identity)
    return RenewalStatus(MINUTE, "the certificate was renewed")


def _come_back(identity: NodeIdentity) -> RenewalStatus:
    waiting = client.come_back(identity, about_this_machine())
    if waiting is None:
        return RenewalStatus(MINUTE, "joined again, with a new certificate")
    text = f"the certificate has expired: waiting for `sojourn fleet accept {waiting.name}`"
    return RenewalStatus(max(waiting.again, MINUTE), text, warn=True)


if __name__ == "__main__":
    agent = Parent(msgspec.msgpack.Decoder(str))
    agent.send(check_certificate(NodeIdentity(Path(next(agent.frames)))))
