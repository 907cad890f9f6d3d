"""The form of a device's speed and of its network line.

Used by the table of boards, by `sojourn agent profile` and by the simulation.
"""

from __future__ import annotations

from typing import Annotated

import msgspec

from sojourn.protocol.limits import Name

Rate = Annotated[float, msgspec.Meta(gt=0, le=1e18)]
Duration = Annotated[float, msgspec.Meta(ge=0, le=1e6)]


class DeviceProfile(msgspec.Struct, frozen=True, forbid_unknown_fields=True, kw_only=True):
    """A device that trains on its processor, with all its cores.

    flops: the float32 operations a second that training sustains.
    step_seconds: what a step takes besides its arithmetic.
    visit_seconds: what a visit takes besides its steps: a worker starts, and loads its libraries and graphs.
    memory: in bytes.
    """

    flops: Rate
    step_seconds: Duration
    visit_seconds: Duration
    memory: Annotated[int, msgspec.Meta(ge=1, le=1 << 53)]
    cores: Annotated[int, msgspec.Meta(ge=1, le=1024)]


class LinkProfile(msgspec.Struct, frozen=True, forbid_unknown_fields=True, kw_only=True):
    """A device's line to its broker: bytes a second each way, and the one-way latency in seconds."""

    up: Rate
    down: Rate
    latency: Duration


class Profile(msgspec.Struct, frozen=True, forbid_unknown_fields=True, kw_only=True):
    """A device and its line, and for each number where it comes from (`device.flops`, `link.up` ...)."""

    name: Name
    device: DeviceProfile
    link: LinkProfile
    sources: dict[str, str] = {}


NUMBERS = tuple(
    f"{part}.{field}"
    for part, form in (("device", DeviceProfile), ("link", LinkProfile))
    for field in form.__struct_fields__
)
"""The names of all numbers of a profile."""
