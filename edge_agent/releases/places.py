"""Where a program finds the releases that the agent of this machine serves."""

from __future__ import annotations

import os
from pathlib import Path
from typing import TYPE_CHECKING

from edge_agent.releases.folder import ReleaseFolder
from sojourn.errors import ConfigError, NoRelease
from sojourn.settings import read_settings, store_folder

if TYPE_CHECKING:
    from edge_agent.settings import AgentSettings

VARIABLE = "SOJOURN_STORE"
SERVICE = Path("/var/lib/sojourn-agent")
"""The store of an agent that was installed as a service."""
FILES = (Path("agent.toml"), Path("/etc/sojourn/agent.toml"))
"""Where the settings of an agent usually are."""


def store_of(line: str, store: str | Path | None, fleet: str, agent: str | None) -> Path:
    """The store that is named, in a call or in the environment, or else the only one here that serves this line."""
    named = store or os.environ.get(VARIABLE)
    if named:
        return Path(named).expanduser()
    if agent is not None:
        return store_folder(None, fleet, agent)
    found = [each for each in _stores(fleet) if ReleaseFolder(each, line).identity() is not None]
    if len(found) > 1:
        raise ConfigError(f"several agents serve {line!r} here: name one of {', '.join(map(str, found))} as the store")
    if not found:
        raise no_release(line, f"{SERVICE} or {store_folder(None, fleet, '*')}")
    return found[0]


def read_agent(file: str | Path) -> AgentSettings:
    """The settings in an agent's file."""
    from edge_agent.settings import AgentSettings  # noqa: PLC0415  # a program that predicts has no use for them

    return read_settings(str(file), {}, AgentSettings)


def agent_of(store: Path) -> tuple[Path, AgentSettings] | None:
    """The settings file of the agent with this store, if it is in the current folder or in the service's."""
    for file in FILES:
        try:
            found = read_agent(file)
        except ConfigError:  # no file, not readable for this user, or of something else
            continue
        if store_folder(found.store, found.fleet, found.name).resolve() == store.resolve():
            return file, found
    return None


def no_release(line: str, where: str | Path) -> NoRelease:
    """The error for a line that is not served here: it says what to do."""
    return NoRelease(
        f"no release of {line!r} is served here: none is in {where}. Roll one out to this device (`sojourn release "
        f"rollout`), or name the agent's store: store=, --store, or the environment variable {VARIABLE}"
    )


def _stores(fleet: str) -> list[Path]:
    below = store_folder(None, fleet, "any").parent
    own = sorted(below.iterdir()) if below.is_dir() else []
    return [*([SERVICE] if os.access(SERVICE, os.X_OK) else []), *own]
