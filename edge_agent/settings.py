"""The settings of an agent: a file `agent.toml`, flags of `sojourn agent run`, or both."""

from __future__ import annotations

from typing import Annotated, ClassVar, Literal

import msgspec

from edge_agent.limits import LimitSettings
from sojourn.data.source import DataSettings
from sojourn.links.settings import BrokerSettings, MetricsPort
from sojourn.logs import LogFormat
from sojourn.parts.part import PartName
from sojourn.protocol.limits import Name
from sojourn.settings import Texts, broker_table, path_table


class ReleaseSettings(msgspec.Struct, frozen=True, forbid_unknown_fields=True, kw_only=True):
    """Settings for serving releases to local programs."""

    key_file: str | None = None
    """File with the public key that verifies release orders; without it, the device serves no releases. Example:
    `"release.pub"`."""
    report_seconds: Annotated[float, msgspec.Meta(ge=1, le=86_400)] = 60.0
    """Minimum seconds between two reports on the use of a release; errors are reported immediately."""
    error_token_file: str | None = None
    """File with the token that programs must send to the endpoint to report errors: at least 16 characters, not
    readable by all users. Without it, the endpoint accepts no error reports. Example: `"error.token"`."""
    endpoint_port: Annotated[int, msgspec.Meta(ge=1, le=65_535)] | None = None
    """Port on 127.0.0.1 for predictions over HTTP; by default there is no endpoint. Example: `8800`."""


class MandateSettings(msgspec.Struct, frozen=True, forbid_unknown_fields=True, kw_only=True):
    """The operators who may let jobs train on the device."""

    keys_file: str | None = None
    """File with the public keys of operators, one per line, followed by the operator's name: the device trains only
    jobs that one of them signed. Without it, the device trains any job of the fleet's coordinator. Example:
    `"operators.pub"`."""
    site: Name | None = None
    """The site of the device, for mandates that are limited to some sites; by default the `edges`. Example:
    `"edge-1"`."""


class IdentitySettings(msgspec.Struct, frozen=True, forbid_unknown_fields=True, kw_only=True):
    """The device's own keys, if it joined with a token."""

    folder: str | None = None
    """The folder that `sojourn agent join` created for the keys; without it, the device uses the credentials of a
    bundle and does not sign its results. Example: `"identity"`."""


class AgentSettings(msgspec.Struct, frozen=True, forbid_unknown_fields=True, kw_only=True):
    """The settings of a device."""

    texts: ClassVar[Texts] = {"broker": broker_table, "data": path_table}
    name: Name
    """The device's name, unique in its fleet: a-z, 0-9 and '-'. Example: `"pi-1"`."""
    data: DataSettings
    """The training data: a table, or only the path. Example: `"photos"`."""
    fleet: Name = "sojourn"
    """The fleet's name."""
    broker: BrokerSettings = BrokerSettings()
    """The site's broker: a table, or only the address. Example: `"192.168.1.10:1883"`."""
    store: str | None = None
    """The folder for the journal and the blobs; by default `~/.local/share/sojourn/FLEET/NAME`. Example:
    `"/var/lib/sojourn-agent"`."""
    threads: Annotated[int, msgspec.Meta(ge=1, le=1024)] | None = None
    """Maximum number of training threads; by default one per core. Example: `2`."""
    edges: tuple[Name, ...] = ()
    """The edge servers whose visits this device accepts; empty for every one that can publish on the broker. Example:
    `["edge-1"]`."""
    objectives: tuple[PartName, ...] = ()
    """Custom objectives that may run on this device, as `package.module:Class`; they must be installed on the device,
    since a job cannot contain code. Example: `["mine:Sparse"]`."""
    shares: tuple[Literal["range", "classes", "class-counts", "projections"], ...] = ()
    """What this device may report about its data in addition to the number of samples: `range`, the smallest and the
    largest value; `classes`, their names; `class-counts`, the number of samples per class; `projections`, which inputs
    its layers receive (MA-Echo): those of the first layer reveal its mean samples. Example: `["class-counts"]`."""
    idle_seconds: Annotated[float, msgspec.Meta(ge=0)] = 5.0
    """Seconds that the training process stays in memory after its last work."""
    log_format: LogFormat | None = None
    """Format of the log: `plain` lines, or `json` with one object per line. By default the value of the variable
    SOJOURN_LOG_FORMAT, otherwise plain. Example: `"json"`."""
    limits: LimitSettings = LimitSettings()
    """Limits on when training runs and on what it uses."""
    release: ReleaseSettings = ReleaseSettings()
    """Serving of releases."""
    mandate: MandateSettings = MandateSettings()
    """The operators who may let jobs train on the device."""
    identity: IdentitySettings = IdentitySettings()
    """The device's own keys."""
    metrics_port: MetricsPort = 0
    """Port on 127.0.0.1 for Prometheus metrics; 0 for none. Needs the extra `metrics`."""
