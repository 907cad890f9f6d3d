"""What every part of a strategy is made of: bounded numbers, and a struct that is known by its name."""

from __future__ import annotations

from typing import Annotated, Any, Literal

import msgspec

Count = Annotated[int, msgspec.Meta(ge=1, le=1_000_000)]
Natural = Annotated[int, msgspec.Meta(ge=0, le=1_000_000)]
Share = Annotated[float, msgspec.Meta(gt=0, le=1)]
Positive = Annotated[float, msgspec.Meta(gt=0, le=1e9)]
NotNegative = Annotated[float, msgspec.Meta(ge=0, le=1e9)]
Chance = Annotated[float, msgspec.Meta(ge=0, le=1)]
BelowOne = Annotated[float, msgspec.Meta(ge=0, lt=1)]
Encoding = Literal["float32", "float16", "int8"]
Where = Literal["server", "device"]
Weighting = Literal["samples", "uniform"]
Outcome = Literal["one model", "vote", "own models"]
"""What a strategy comes to: one model, several that vote, or one of its own on each device."""
PartName = Annotated[str, msgspec.Meta(pattern=r"^[A-Za-z_][\w.]*:[A-Za-z_]\w*\Z", max_length=200)]
"""A class of a user's own, as `package.module:Class`."""


class Part(msgspec.Struct, frozen=True, forbid_unknown_fields=True, kw_only=True, tag_field="name"):
    """One of the parts of a strategy: its name and its settings."""


class Own(Part, frozen=True, tag="own"):
    """A part that a user wrote: the class, which is a msgspec struct, and its settings.

    In a job file: `objective = { name = "package.module:Class", mu = 0.1 }`.
    """

    part: PartName
    """The class, as `package.module:Class`. Example: `"mine:Neighbours"`."""
    settings: dict[str, Any] = {}
    """The settings of that class."""


def name_of(part: Part) -> str:
    """The part's name, as a person writes it in a job file."""
    return part.part if isinstance(part, Own) else str(part.__struct_config__.tag)
