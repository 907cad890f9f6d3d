"""The settings of a coordinator: a file `coordinator.toml`, flags of `sojourn coordinator run`, or both."""

from __future__ import annotations

from typing import ClassVar

import msgspec

from coordinator.machine.kept_rounds import KeepSettings
from coordinator.rounds.node_keys import SigningPolicy
from coordinator.tracking.settings import TrackingSettings
from sojourn.links.settings import BrokerSettings, MetricsPort
from sojourn.logs import LogFormat
from sojourn.protocol.limits import Name
from sojourn.settings import Texts, broker_table


class CoordinatorSettings(msgspec.Struct, frozen=True, forbid_unknown_fields=True, kw_only=True):
    """The cloud."""

    texts: ClassVar[Texts] = {"broker": broker_table}
    name: Name = "cloud"
    """The coordinator's own name."""
    fleet: Name = "sojourn"
    """The fleet's name."""
    broker: BrokerSettings = BrokerSettings()
    """The cloud's broker: a table, or an address alone. Example: `"localhost:1883"`."""
    operators: tuple[Name, ...] = ("operator",)
    """The names under which people may submit, stop and export jobs."""
    release_key_file: str | None = None
    """Holds the public key of those who sign releases: orders that it did not sign are refused. Without one, orders are
    passed on unverified; devices verify them in any case. Example: `"release.pub"`."""
    operators_file: str | None = None
    """Holds the operators' public keys and roles: then only what they sign is done, and only what their roles allow;
    `sojourn fleet operators` writes it. It is read again when it changes. Example: `"operators.toml"`."""
    mandate_keys_file: str | None = None
    """Holds the public keys of operators that devices trust: then every job waits until one of them has signed what
    devices may do for it. Example: `"operators.pub"`."""
    node_keys_file: str | None = None
    """Holds the keys of the devices that have joined with some of their own, as `sojourn fleet keys` prints them; it is
    read again when it changes. Without one nobody has to sign. Example: `"node-keys.toml"`."""
    signed_hops: SigningPolicy = "enrolled"
    """Whose results must be signed: `enrolled`, of devices that have a key in `node_keys_file`; `require`, of all, and
    others are left out; `off`, nobody's."""
    store: str | None = None
    """The folder for journal and blobs; `~/.local/share/sojourn/FLEET/NAME` unless told. Example:
    `"/var/lib/sojourn-coordinator"`."""
    log_format: LogFormat | None = None
    """How the log is written: `plain` lines for people, or `json`, an object on each line. Unless told, as the variable
    SOJOURN_LOG_FORMAT says, else plain. Example: `"json"`."""
    tracking: TrackingSettings = TrackingSettings()
    """Rounds as runs of MLflow, or as scalars of TensorBoard."""
    keep: KeepSettings = KeepSettings()
    """Which models of finished rounds are kept."""
    metrics_port: MetricsPort = 0
    """Serve figures for Prometheus on 127.0.0.1 at this port; 0: none. Needs `pip install 'sojourn[metrics]'`."""
