"""The settings of a coordinator: a file `coordinator.toml`, flags of `sojourn coordinator run`, or both."""

from __future__ import annotations

import msgspec

from sojourn.links.settings import BrokerSettings
from sojourn.protocol.limits import Name


class CoordinatorSettings(msgspec.Struct, frozen=True, forbid_unknown_fields=True, kw_only=True):
    """The cloud.

    operators: the names under which people may submit, stop and export jobs.
    store: the folder for journal and blobs; unless told, `~/.local/share/sojourn/<fleet>/<name>`.
    """

    name: Name = "cloud"
    fleet: Name = "sojourn"
    broker: BrokerSettings = BrokerSettings()
    operators: tuple[Name, ...] = ("operator",)
    store: str | None = None
