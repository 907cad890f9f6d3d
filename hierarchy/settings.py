"""The settings of an edge server: `edge.toml`, flags of `sojourn edge run`, or both."""

from __future__ import annotations

from typing import ClassVar

import msgspec

from sojourn.links.settings import BrokerSettings, MetricsPort
from sojourn.logs import LogFormat
from sojourn.protocol.limits import Name
from sojourn.protocol.topics import PREFIX, Prefix
from sojourn.settings import Texts, broker_table


class HomeAssistantSettings(msgspec.Struct, frozen=True, forbid_unknown_fields=True, kw_only=True):
    """How a site's devices appear in Home Assistant."""

    discovery: bool = False
    """Whether the edge server publishes its devices at the site's broker for Home Assistant to discover."""
    prefix: Prefix = PREFIX
    """The discovery prefix of Home Assistant's MQTT integration: the first part of the discovery topics."""


class EdgeSettings(msgspec.Struct, frozen=True, forbid_unknown_fields=True, kw_only=True):
    """The settings of a site."""

    texts: ClassVar[Texts] = {"broker": broker_table, "cloud_broker": broker_table}
    name: Name
    """The edge server's name, unique in its fleet: a-z, 0-9 and '-'. Example: `"edge-1"`."""
    fleet: Name = "sojourn"
    """The fleet's name."""
    broker: BrokerSettings = BrokerSettings()
    """The site's broker for its devices: a table, or only an address. Example: `"localhost:1883"`."""
    cloud: Name = "cloud"
    """The coordinator's name."""
    cloud_broker: BrokerSettings | None = None
    """The coordinator's broker: a table, or only an address; the site's broker by default. Example:
    `"mqtts://coordinator.example.org:8883"`."""
    store: str | None = None
    """The folder for journal and blobs; `~/.local/share/sojourn/FLEET/NAME` by default. Example:
    `"/var/lib/sojourn-edge"`."""
    metrics_port: MetricsPort = 0
    """Port on 127.0.0.1 for Prometheus metrics; 0: no metrics. Needs the extra `metrics`."""
    log_format: LogFormat | None = None
    """The log format: `plain` lines, or `json`, one object per line. By default the value of the variable
    SOJOURN_LOG_FORMAT, otherwise plain. Example: `"json"`."""
    home_assistant: HomeAssistantSettings = HomeAssistantSettings()
    """The devices in Home Assistant (docs/home-assistant.md)."""
