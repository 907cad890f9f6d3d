"""Joining a fleet with a token: the device's own keys, a request at the door, and the settings that follow from it."""

from __future__ import annotations

import os
import platform
import re
import time
from pathlib import Path
from typing import TYPE_CHECKING, Any, TypeVar

from edge_agent.settings import AgentSettings
from edge_agent.setup.agent_file import HEAT, ROOM
from sojourn import __version__, toml
from sojourn.errors import ConfigError
from sojourn.joining import asking
from sojourn.joining.files import AUTHORITIES, CERTIFICATE, JOINED, NEXT_KEY, NODE_KEY
from sojourn.joining.identity import Membership, NodeIdentity
from sojourn.joining.words import RequestNoted, Welcome
from sojourn.protocol.limits import LABEL
from sojourn.protocol.signing import check_public
from sojourn.protocol.topics import check_name
from sojourn.settings import validated
from sojourn.store.files import write_private

if TYPE_CHECKING:
    from collections.abc import Callable

    from sojourn.joining.token import Token

FIRST_STAMP = bytes(16)
OPERATORS = "operators.pub"
_PATIENT_TRIES = 6
"""How often a door that cannot be reached is tried."""
_PAUSE = 2.0
_T = TypeVar("_T")
_PUBLIC = re.compile(r"[a-z0-9-]{1,32}")


def about_this_machine() -> str:
    """What an operator reads of the device that asks: its board, host name and version."""
    try:
        board = Path("/proc/device-tree/model").read_text(encoding="utf-8", errors="replace").strip("\0 ")
    except OSError:
        board = platform.machine()
    return f"{board}, {platform.node()}, sojourn {__version__}"[:LABEL]


def begin_anew(identity: NodeIdentity) -> None:
    """Forget all keys: the device is another one to the fleet from now on."""
    for name in (NODE_KEY, CERTIFICATE, AUTHORITIES, NEXT_KEY, JOINED):
        (identity.folder / name).unlink(missing_ok=True)


def join(
    token: Token, identity: NodeIdentity, name: str, say: Callable[[str], None], patience: float
) -> tuple[Welcome, Membership]:
    """Ask until an operator has answered; the certificate is in its place when this returns."""
    check_name(name, "the device's name")
    authority = _reached(lambda: asking.authority_of(token), say)
    deadline, told = time.monotonic() + patience, False
    while True:
        answer = _reached(lambda: asking.join(token, authority, identity, name, about_this_machine()), say)
        if isinstance(answer, Welcome):
            break
        if not told:
            key = identity.node_key().public[:12]
            say(f"asked to join as {answer.name}, with the key {key}: waiting for `sojourn fleet accept {answer.name}`")
            told = True
        _wait(answer, deadline)
    identity.install(answer.certificate, answer.authorities)
    joined = Membership(name=answer.name, host=token.host, port=token.port, stamp=FIRST_STAMP)
    return answer, joined


def write_settings(
    file: Path, identity: NodeIdentity, welcome: Welcome, data: dict[str, Any], store: str | None
) -> None:
    """Write the agent's settings, which name the files of its identity; the next command is to run it."""
    named = {purpose: key for purpose, key in welcome.keys.items() if _PUBLIC.fullmatch(purpose)}
    keys = {purpose: check_public(key, "the door") for purpose, key in named.items()}
    for purpose, key in keys.items():
        write_private(identity.folder / f"{purpose}.pub", f"{key}\n")
    beside = _beside(file, identity.folder)
    certificate = f"{beside}/{CERTIFICATE}"
    tls = {"ca_file": f"{beside}/{AUTHORITIES}", "certificate_file": certificate, "key_file": certificate}
    table: dict[str, Any] = {"name": welcome.name, "fleet": welcome.fleet}
    if store:
        table["store"] = store
    if welcome.edges:
        table["edges"] = list(welcome.edges)
    table |= {
        "data": data,
        "broker": {"host": welcome.host, "port": welcome.port, "tls": tls},
        "identity": {"folder": beside},
        "limits": {**HEAT, **ROOM},
    }
    if "release" in keys:
        table["release"] = {"key_file": f"{beside}/release.pub"}
    if welcome.operators:
        write_private(identity.folder / OPERATORS, welcome.operators)
        table["mandate"] = {"keys_file": f"{beside}/{OPERATORS}"}
    validated(table, AgentSettings, "what the door said")
    write_private(file, toml.dumps(table))


def _beside(file: Path, folder: Path) -> str:
    """The folder as a settings file names it: relative, if it lies below the file's own."""
    own, there = file.absolute().parent, folder.absolute()
    return os.path.relpath(there, own) if there.is_relative_to(own) else str(there)


def _wait(answer: RequestNoted, deadline: float) -> None:
    if time.monotonic() > deadline:
        raise ConfigError(
            f"nobody has accepted {answer.name} yet: run the same command again, with the same token, to go on waiting"
        )
    time.sleep(min(max(answer.again, 0.2), 60.0))


def _reached(ask: Callable[[], _T], say: Callable[[str], None]) -> _T:
    """The door's answer, with some patience: a board that has just started may have no network yet."""
    for number in range(_PATIENT_TRIES):
        try:
            return ask()
        except asking.Unreached as error:
            if number == _PATIENT_TRIES - 1:
                raise
            if number == 0:
                say(f"{error}; trying again")
            time.sleep(_PAUSE)
    raise AssertionError  # the last try has raised
