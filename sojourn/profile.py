"""Profiles of a device's speed and network, for the table of boards, `sojourn agent profile` and the simulation."""

from __future__ import annotations

from typing import Annotated

import msgspec

from sojourn.protocol.limits import Name

Rate = Annotated[float, msgspec.Meta(gt=0, le=1e18)]
Duration = Annotated[float, msgspec.Meta(ge=0, le=1e6)]


class DeviceProfile(msgspec.Struct, frozen=True, forbid_unknown_fields=True, kw_only=True):
    """The speed of a device that trains with all its cores.

    flops: sustained float32 operations per second in training. step_seconds: the fixed time of a step.
    visit_seconds: the fixed time of a visit, in which a worker starts and loads libraries and graphs. memory: in bytes.
    """

    flops: Rate
    step_seconds: Duration
    visit_seconds: Duration
    memory: Annotated[int, msgspec.Meta(ge=1, le=1 << 53)]
    cores: Annotated[int, msgspec.Meta(ge=1, le=1024)]


class LinkProfile(msgspec.Struct, frozen=True, forbid_unknown_fields=True, kw_only=True):
    """A device's network: bytes per second in each direction, and the one-way latency in seconds."""

    up: Rate
    down: Rate
    latency: Duration


class Profile(msgspec.Struct, frozen=True, forbid_unknown_fields=True, kw_only=True):
    """A device and its network, with the source of each number (`device.flops`, `link.up` ...)."""

    name: Name
    device: DeviceProfile
    link: LinkProfile
    sources: dict[str, str] = {}


NUMBERS = tuple(
    f"{part}.{field}"
    for part, form in (("device", DeviceProfile), ("link", LinkProfile))
    for field in form.__struct_fields__
)
"""The names of all numbers in a profile."""
