"""The settings of an edge server: a file `edge.toml`, flags of `sojourn edge run`, or both."""

from __future__ import annotations

import msgspec

from sojourn.links.settings import BrokerSettings
from sojourn.protocol.limits import Name


class EdgeSettings(msgspec.Struct, frozen=True, forbid_unknown_fields=True, kw_only=True):
    """A site.

    broker: the site's own, where its devices are.
    cloud, cloud_broker: the coordinator's name, and where it is reached; if left out, at the site's broker.
    store: the folder for journal and blobs; if left out, `~/.local/share/sojourn/<fleet>/<name>`.
    """

    name: Name
    fleet: Name = "sojourn"
    broker: BrokerSettings = BrokerSettings()
    cloud: Name = "cloud"
    cloud_broker: BrokerSettings | None = None
    store: str | None = None
