"""The settings of a coordinator: a file `coordinator.toml`, flags of `sojourn coordinator run`, or both."""

from __future__ import annotations

import msgspec

from coordinator.machine.kept_rounds import KeepSettings
from sojourn.links.settings import BrokerSettings
from sojourn.protocol.limits import Name


class CoordinatorSettings(msgspec.Struct, frozen=True, forbid_unknown_fields=True, kw_only=True):
    """The cloud.

    operators: the names under which people may submit, stop and export jobs.
    release_key_file: holds the public key of those who sign releases: orders that it did not sign are refused. Without
    one, orders are passed on unverified; devices verify them in any case.
    store: the folder for journal and blobs; unless told, `~/.local/share/sojourn/<fleet>/<name>`.
    keep: which models of finished rounds are kept.
    """

    name: Name = "cloud"
    fleet: Name = "sojourn"
    broker: BrokerSettings = BrokerSettings()
    operators: tuple[Name, ...] = ("operator",)
    release_key_file: str | None = None
    store: str | None = None
    keep: KeepSettings = KeepSettings()
