"""The settings of an agent: a file `agent.toml`, flags of `sojourn agent run`, or both."""

from __future__ import annotations

from typing import Annotated, Literal

import msgspec

from edge_agent.limits.settings import LimitSettings
from sojourn.data.source import DataSettings
from sojourn.links.settings import BrokerSettings
from sojourn.parts.part import PartName
from sojourn.protocol.limits import Name


class ReleaseSettings(msgspec.Struct, frozen=True, forbid_unknown_fields=True, kw_only=True):
    """What the device serves to programs.

    key_file: holds the public key of those whose releases it serves; without one it serves none.
    report_seconds: how often it tells how programs use a release, at most; errors are told at once.
    error_token_file: holds the word that programs must show the endpoint to report errors, at least 16 characters that
    not everybody can read; without one it takes no reports of errors.
    endpoint_port: answer predictions over HTTP on 127.0.0.1 at this port; unless told, there is no such endpoint.
    """

    key_file: str | None = None
    report_seconds: Annotated[float, msgspec.Meta(ge=1, le=86_400)] = 60.0
    error_token_file: str | None = None
    endpoint_port: Annotated[int, msgspec.Meta(ge=1, le=65_535)] | None = None


class AgentSettings(msgspec.Struct, frozen=True, forbid_unknown_fields=True, kw_only=True):
    """A device.

    store: the folder for journal and blobs; unless told, `~/.local/share/sojourn/<fleet>/<name>`.
    threads: how many threads training may use; unless told, one for each core.
    edges: the edge servers that this device listens to; empty for any that the broker lets speak.
    objectives: objectives of other people's making that may run here, as `package.module:Class`; they are installed
    here already, no job can bring them.
    shares: what this device may tell about its data besides its size: `range`, the least and the largest value;
    `classes`, their names; `class-counts`, how many samples it has of each class.
    idle_seconds: how long the training process stays, with its memory, after its last work.
    limits: what training may take of the device, and when.
    release: which releases the device serves, and how.
    """

    name: Name
    data: DataSettings
    fleet: Name = "sojourn"
    broker: BrokerSettings = BrokerSettings()
    store: str | None = None
    threads: Annotated[int, msgspec.Meta(ge=1, le=1024)] | None = None
    edges: tuple[Name, ...] = ()
    objectives: tuple[PartName, ...] = ()
    shares: tuple[Literal["range", "classes", "class-counts"], ...] = ()
    idle_seconds: Annotated[float, msgspec.Meta(ge=0)] = 5.0
    limits: LimitSettings = LimitSettings()
    release: ReleaseSettings = ReleaseSettings()
