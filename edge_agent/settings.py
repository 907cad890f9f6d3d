"""The settings of an agent: a file `agent.toml`, flags of `sojourn agent run`, or both."""

from __future__ import annotations

from typing import Annotated, ClassVar, Literal

import msgspec

from edge_agent.limits.settings import LimitSettings
from sojourn.data.source import DataSettings
from sojourn.links.settings import BrokerSettings, MetricsPort
from sojourn.logs import LogFormat
from sojourn.parts.part import PartName
from sojourn.protocol.limits import Name
from sojourn.settings import Texts, broker_table, path_table


class ReleaseSettings(msgspec.Struct, frozen=True, forbid_unknown_fields=True, kw_only=True):
    """What the device serves to programs."""

    key_file: str | None = None
    """Holds the public key of those whose releases it serves; without one it serves none. Example: `"release.pub"`."""
    report_seconds: Annotated[float, msgspec.Meta(ge=1, le=86_400)] = 60.0
    """How often it tells how programs use a release, at most; errors are told at once."""
    error_token_file: str | None = None
    """Holds the word that programs must show the endpoint to report errors, at least 16 characters that not everybody
    can read; without one it takes no reports of errors. Example: `"error.token"`."""
    endpoint_port: Annotated[int, msgspec.Meta(ge=1, le=65_535)] | None = None
    """Answer predictions over HTTP on 127.0.0.1 at this port; unless told, there is no such endpoint.
    Example: `8800`."""


class MandateSettings(msgspec.Struct, frozen=True, forbid_unknown_fields=True, kw_only=True):
    """Whose word lets jobs train on the device."""

    keys_file: str | None = None
    """Holds the public keys of operators, one in a line with the operator's name after it: only what one of them has
    signed is done here. Without it, whatever the fleet's coordinator asks. Example: `"operators.pub"`."""
    site: Name | None = None
    """The site that the device belongs to, for mandates that hold at some sites only; unless told, the `edges`.
    Example: `"edge-1"`."""


class IdentitySettings(msgspec.Struct, frozen=True, forbid_unknown_fields=True, kw_only=True):
    """The device's own keys, if it joined with a token."""

    folder: str | None = None
    """Where `sojourn agent join` put them; without, the device has a bundle's credentials, and signs nothing. Example:
    `"identity"`."""


class AgentSettings(msgspec.Struct, frozen=True, forbid_unknown_fields=True, kw_only=True):
    """A device."""

    texts: ClassVar[Texts] = {"broker": broker_table, "data": path_table}
    name: Name
    """The device's name, once in its fleet: a-z, 0-9 and '-'. Example: `"pi-1"`."""
    data: DataSettings
    """Where its data is: a table, or the path alone. Example: `"photos"`."""
    fleet: Name = "sojourn"
    """The fleet's name."""
    broker: BrokerSettings = BrokerSettings()
    """The site's broker: a table, or an address alone. Example: `"192.168.1.10:1883"`."""
    store: str | None = None
    """The folder for journal and blobs; `~/.local/share/sojourn/FLEET/NAME` unless told. Example:
    `"/var/lib/sojourn-agent"`."""
    threads: Annotated[int, msgspec.Meta(ge=1, le=1024)] | None = None
    """How many threads training may use; one for each core unless told. Example: `2`."""
    edges: tuple[Name, ...] = ()
    """The edge servers that this device listens to; empty for any that the broker lets speak. Example: `["edge-1"]`."""
    objectives: tuple[PartName, ...] = ()
    """Objectives of other people's making that may run here, as `package.module:Class`; they are installed here
    already, no job can bring them. Example: `["mine:Sparse"]`."""
    shares: tuple[Literal["range", "classes", "class-counts", "projections"], ...] = ()
    """What this device may tell about its data besides its size: `range`, the least and the largest value; `classes`,
    their names; `class-counts`, how many samples it has of each class; `projections`, which inputs its layers see
    (MA-Echo): those of the first layer show its mean samples. Example: `["class-counts"]`."""
    idle_seconds: Annotated[float, msgspec.Meta(ge=0)] = 5.0
    """How long the training process stays, with its memory, after its last work."""
    log_format: LogFormat | None = None
    """How the log is written: `plain` lines for people, or `json`, an object on each line. Unless told, as the variable
    SOJOURN_LOG_FORMAT says, else plain. Example: `"json"`."""
    limits: LimitSettings = LimitSettings()
    """What training may take of the device, and when."""
    release: ReleaseSettings = ReleaseSettings()
    """Which releases the device serves, and how."""
    mandate: MandateSettings = MandateSettings()
    """Whose word lets jobs train on the device."""
    identity: IdentitySettings = IdentitySettings()
    """The device's own keys."""
    metrics_port: MetricsPort = 0
    """Serve figures for Prometheus on 127.0.0.1 at this port; 0: none. Needs `pip install 'sojourn[metrics]'`."""
