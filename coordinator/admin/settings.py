"""The settings file of a coordinator, and the file of its operators, which it reads again when it changes."""

from __future__ import annotations

import logging
from collections.abc import Mapping
from pathlib import Path
from typing import ClassVar

import msgspec

from coordinator.machine.kept_models import KeepSettings
from coordinator.rounds.device_signatures import SigningPolicy
from coordinator.tracking.run_stores import TrackingSettings
from sojourn.errors import ConfigError
from sojourn.links.settings import BrokerSettings, MetricsPort
from sojourn.logs import LogFormat
from sojourn.protocol.limits import Name
from sojourn.protocol.operators import OperatorEntry, OperatorsFile
from sojourn.protocol.signing import check_public
from sojourn.settings import Texts, broker_table, read_file


class CoordinatorSettings(msgspec.Struct, frozen=True, forbid_unknown_fields=True, kw_only=True):
    """The settings of the coordinator."""

    texts: ClassVar[Texts] = {"broker": broker_table}
    name: Name = "cloud"
    """The coordinator's name."""
    fleet: Name = "sojourn"
    """The fleet's name."""
    broker: BrokerSettings = BrokerSettings()
    """The coordinator's broker: a table, or an address alone. Example: `"localhost:1883"`."""
    operators: tuple[Name, ...] = ("operator",)
    """The names of operators who may submit, stop and export jobs."""
    release_key_file: str | None = None
    """The file with the public key that verifies releases: the coordinator refuses orders without its signature.
    Without a file it passes on orders unverified; devices always verify them. Example: `"release.pub"`.
    """
    operators_file: str | None = None
    """The file with the operators' public keys and roles: the coordinator then accepts only signed requests that the
    role allows. `sojourn fleet operators` writes it, and the coordinator reads it again when it changes. Example:
    `"operators.toml"`.
    """
    mandate_keys_file: str | None = None
    """The file with the public keys of operators that devices trust: every job waits until one of them has signed what
    devices may do for it. Example: `"operators.pub"`.
    """
    node_keys_file: str | None = None
    """The file with the keys of devices that joined with a token, as `sojourn fleet keys` prints them; it is read again
    when it changes. Without it devices need not sign. Example: `"node-keys.toml"`.
    """
    signed_hops: SigningPolicy = "enrolled"
    """Which results must be signed: `enrolled`, those of devices that have a key in `node_keys_file`; `require`, all,
    and devices without a key are skipped; `off`, none.
    """
    store: str | None = None
    """The folder for journal and blobs; by default `~/.local/share/sojourn/FLEET/NAME`. Example:
    `"/var/lib/sojourn-coordinator"`.
    """
    log_format: LogFormat | None = None
    """The format of the log: `plain` lines, or `json` with an object on each line. By default that of the variable
    SOJOURN_LOG_FORMAT, or plain. Example: `"json"`.
    """
    tracking: TrackingSettings = TrackingSettings()
    """How rounds are tracked, as runs of MLflow or scalars of TensorBoard."""
    keep: KeepSettings = KeepSettings()
    """Which models of finished rounds are kept."""
    metrics_port: MetricsPort = 0
    """The port on 127.0.0.1 at which metrics for Prometheus are served; 0: none. Needs the extra `metrics`."""


log = logging.getLogger("sojourn")


def read_operators(path: Path | str) -> dict[str, OperatorEntry]:
    """Read the operators in a file; ConfigError states what is wrong with it."""
    found = read_file(Path(path).expanduser(), OperatorsFile).operators
    for name, each in found.items():
        check_public(each.key, f"{path}: the key of {name}")
    return found


class OperatorRoles:
    """The current operators and their roles; if the file becomes unreadable, the previous ones with a logged error."""

    def __init__(self, path: Path | str) -> None:
        self._path = Path(path).expanduser()
        self._mark = self._found()
        self._known = read_operators(self._path)

    def __call__(self) -> Mapping[str, OperatorEntry]:
        """Return the current operators."""
        mark = self._found()
        if mark != self._mark:
            self._mark = mark
            try:
                self._known = read_operators(self._path)
            except ConfigError as error:
                log.error("%s: keeping the previous operators", error)  # noqa: TRY400  # the file is wrong, not the code
            else:
                log.info("operators: %s", ", ".join(f"{name} ({it.role})" for name, it in self._known.items()))
        return self._known

    def _found(self) -> tuple[int, int, int] | None:
        try:
            it = self._path.stat()
        except OSError:
            return None
        return it.st_mtime_ns, it.st_size, it.st_ino


def guarded_by(roles: OperatorRoles | None, mandate_keys: Mapping[str, str]) -> list[str]:
    """Describe for the log what a coordinator requires of operators."""
    if roles is None:
        operators_line = "operators: any client that the broker admits under an operator's name may request everything"
        operators_line += " (operators_file in its settings changes that)"
    else:
        operators_line = (
            f"operators: {', '.join(f'{name} ({it.role})' for name, it in roles().items())}; each signs its requests"
        )
    if not mandate_keys:
        return [operators_line, "mandates: not required, jobs go to devices unsigned (mandate_keys_file changes that)"]
    return [
        operators_line,
        f"mandates: jobs wait until one of these has signed them: {', '.join(sorted(mandate_keys.values()))}",
    ]
