"""The settings of an edge server: a file `edge.toml`, flags of `sojourn edge run`, or both."""

from __future__ import annotations

from typing import ClassVar

import msgspec

from sojourn.links.settings import BrokerSettings, MetricsPort
from sojourn.logs import LogFormat
from sojourn.protocol.home_topics import PREFIX, Prefix
from sojourn.protocol.limits import Name
from sojourn.settings import Texts, broker_table


class HomeAssistantSettings(msgspec.Struct, frozen=True, forbid_unknown_fields=True, kw_only=True):
    """What Home Assistant is shown of a site's devices."""

    discovery: bool = False
    """Whether the edge server leaves its devices at the site's broker for Home Assistant to find."""
    prefix: Prefix = PREFIX
    """The beginning of the topics on which Home Assistant looks for them, as its MQTT integration has it."""


class EdgeSettings(msgspec.Struct, frozen=True, forbid_unknown_fields=True, kw_only=True):
    """A site."""

    texts: ClassVar[Texts] = {"broker": broker_table, "cloud_broker": broker_table}
    name: Name
    """The edge server's name, once in its fleet: a-z, 0-9 and '-'. Example: `"edge-1"`."""
    fleet: Name = "sojourn"
    """The fleet's name."""
    broker: BrokerSettings = BrokerSettings()
    """The site's own broker, where its devices are: a table, or an address alone. Example: `"localhost:1883"`."""
    cloud: Name = "cloud"
    """The coordinator's name."""
    cloud_broker: BrokerSettings | None = None
    """Where the coordinator is reached: a table, or an address alone; at the site's broker unless told. Example:
    `"mqtts://coordinator.example.org:8883"`."""
    store: str | None = None
    """The folder for journal and blobs; `~/.local/share/sojourn/FLEET/NAME` unless told. Example:
    `"/var/lib/sojourn-edge"`."""
    metrics_port: MetricsPort = 0
    """Serve figures for Prometheus on 127.0.0.1 at this port; 0: none. Needs `pip install 'sojourn[metrics]'`."""
    log_format: LogFormat | None = None
    """How the log is written: `plain` lines for people, or `json`, an object on each line. Unless told, as the variable
    SOJOURN_LOG_FORMAT says, else plain. Example: `"json"`."""
    home_assistant: HomeAssistantSettings = HomeAssistantSettings()
    """What Home Assistant is shown (docs/home-assistant.md)."""
