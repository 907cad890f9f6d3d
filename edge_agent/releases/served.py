"""Finds the releases that the agent of this machine serves, and loads one into memory."""

from __future__ import annotations

import os
from pathlib import Path

from edge_agent.releases.folder import ReleaseFolder, ServedFiles
from edge_agent.settings import AgentSettings
from sojourn.errors import ConfigError, InvalidMessage, ModelError, NoRelease
from sojourn.model.predictions import ReleasePredictor
from sojourn.protocol.envelope import unpack_blob
from sojourn.protocol.release import Card
from sojourn.settings import read_settings, store_folder

VARIABLE = "SOJOURN_STORE"
SERVICE = Path("/var/lib/sojourn-agent")
"""The store of an agent that runs as a service."""
FILES = (Path("agent.toml"), Path("/etc/sojourn/agent.toml"))
"""The usual paths of an agent's settings."""


def store_of(line: str, store: str | Path | None, fleet: str, agent: str | None) -> Path:
    """Return the store named in the call or in the environment, otherwise the only one that serves this line."""
    named = store or os.environ.get(VARIABLE)
    if named:
        return Path(named).expanduser()
    if agent is not None:
        return store_folder(None, fleet, agent)
    found = [each for each in _stores(fleet) if ReleaseFolder(each, line).identity() is not None]
    if len(found) > 1:
        raise ConfigError(
            f"several agents on this machine serve {line!r}: set the store to one of {', '.join(map(str, found))}"
        )
    if not found:
        raise no_release(line, f"{SERVICE} or {store_folder(None, fleet, '*')}")
    return found[0]


def read_agent(file: str | Path) -> AgentSettings:
    """Read an agent's settings file."""
    from edge_agent.settings import AgentSettings  # noqa: PLC0415  # most programs do not need it

    return read_settings(str(file), {}, AgentSettings)


def agent_of(store: Path) -> tuple[Path, AgentSettings] | None:
    """Find the settings file of the agent with this store in the current folder and in that of the service."""
    for file in FILES:
        try:
            found = read_agent(file)
        except ConfigError:  # missing, not readable, or not an agent's settings
            continue
        if store_folder(found.store, found.fleet, found.name).resolve() == store.resolve():
            return file, found
    return None


def no_release(line: str, where: str | Path) -> NoRelease:
    """Return the error for a line that is not served on this machine, with a remedy."""
    return NoRelease(
        f"no release of {line!r} found in {where}. Roll one out to this device (`sojourn release rollout`), or set the "
        f"agent's store with store=, --store, or the environment variable {VARIABLE}"
    )


def _stores(fleet: str) -> list[Path]:
    below = store_folder(None, fleet, "any").parent
    local = sorted(below.iterdir()) if below.is_dir() else []
    return [*([SERVICE] if os.access(SERVICE, os.X_OK) else []), *local]


def load(folder: ReleaseFolder, served: ServedFiles, threads: int = 1) -> ReleasePredictor:
    """Load a version from its files, after checking that they are intact and that the graph matches the card."""
    graph, card = folder.read(served)
    return ReleasePredictor(graph, card_of(card, served), threads)


def card_of(data: bytes, served: ServedFiles) -> Card:
    """Decode the card of a version."""
    try:
        card = unpack_blob(data, Card)
    except InvalidMessage as error:
        raise ModelError(f"the card of release {served.version} of {served.line} is invalid: {error}") from error
    if (card.line, card.version) != (served.line, served.version):
        raise ModelError(
            f"the card of release {served.version} of {served.line} belongs to release {card.version} of {card.line}"
        )
    return card
