"""Creates a new `agent.toml` from the answers of `sojourn agent init`."""

from __future__ import annotations

import re
import socket
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from edge_agent.settings import AgentSettings
from edge_agent.setup.connection_checks import refusal_of
from sojourn import settings
from sojourn.errors import ConfigError, SojournError
from sojourn.protocol.data_summary import DataSurvey
from sojourn.settings import validated

HEAT = {"throttle_at": 70.0, "stop_at": 80.0}
"""Temperature limits below the 80 degrees Celsius at which a Raspberry Pi slows itself down."""
ROOM = {"free_memory": 64, "free_disk": 256}


def own_name() -> str:
    """Return a device name from the host name, with a dash in place of invalid characters."""
    return re.sub(r"[^a-z0-9-]+", "-", socket.gethostname().partition(".")[0].lower()).strip("-")[:63] or "device"


def table_of(
    flags: dict[str, Any],
    limits: Mapping[str, Any],
    *,
    threads: int | None = None,
    ca_file: str | None = None,
    release_key: str | None = None,
) -> dict[str, Any]:
    """Return the content of the settings file: the given flags with absolute paths, and limits for a small board."""
    data, broker = flags["data"], flags["broker"]
    table = {
        "name": flags["name"],
        "fleet": flags["fleet"],
        "store": _absolute(flags["store"]),
        "threads": threads,
        "data": _given({**data, "path": _absolute(data["path"])}),
        "broker": _given({**broker, "password_file": _absolute(broker["password_file"])}),
        "limits": _given({**HEAT, **ROOM, **limits}),
        "release": _given({"key_file": _absolute(release_key)}) or None,
    }
    if ca_file:
        table["broker"]["tls"] = {"ca_file": _absolute(ca_file)}
    return _given(table)


def settings_of(table: dict[str, Any]) -> AgentSettings:
    """Return the validated settings of a table."""
    return validated(table, AgentSettings, "the answers")


def found_in(settings: AgentSettings) -> DataSurvey:
    """Read the data and return a survey of it."""
    from sojourn.data.summary import survey  # noqa: PLC0415  # numpy comes with it

    return survey(settings.data)


def objections(settings: AgentSettings, found: DataSurvey) -> list[str]:
    """Return the problems of the settings: data that cannot be read, or a broker that refuses the device."""
    wrong = [f"data: {found.summary.fault}"] if found.summary.fault else []
    try:
        refused = refusal_of(settings.broker, settings.fleet, settings.name)
    except SojournError as error:
        refused = str(error)
    return [*wrong, f"broker: {refused}"] if refused else wrong


def write(path: Path, table: dict[str, Any], *, force: bool) -> None:
    """Write the file; overwrite an existing one only with `force`."""
    try:
        path.parent.mkdir(parents=True, exist_ok=True)
        with path.open("w" if force else "x", encoding="utf-8") as file:
            file.write(settings.dumps(table))
    except FileExistsError:
        raise ConfigError(f"{path} exists already: name another file, or give --force to replace it") from None
    except OSError as error:
        raise ConfigError(f"{path} cannot be written: {error.strerror}") from error


def _given(table: dict[str, Any]) -> dict[str, Any]:
    return {key: value for key, value in table.items() if value not in (None, [], ())}


def _absolute(path: str | None) -> str | None:
    """Return the absolute path, so that the agent can be started in any folder."""
    return str(Path(path).expanduser().absolute()) if path else None
