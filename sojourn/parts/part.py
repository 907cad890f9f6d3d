"""Common base of strategy parts: bounded number types, the part structs, and the declarations of an objective."""

from __future__ import annotations

from typing import Annotated, Any, ClassVar, Literal

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
"""The result of a strategy: one model, several models that vote, or a separate model on each device."""
PartName = Annotated[str, msgspec.Meta(pattern=r"^[A-Za-z_][\w.]*:[A-Za-z_]\w*\Z", max_length=200)]
"""A custom class, as `package.module:Class`."""


class Part(msgspec.Struct, frozen=True, forbid_unknown_fields=True, kw_only=True, tag_field="name"):
    """A part of a strategy: its name and its settings."""


class Own(Part, frozen=True, tag="own"):
    """A custom part: its class, which is a msgspec struct, and its settings.

    In a job file: `objective = { name = "package.module:Class", mu = 0.1 }`.
    """

    part: PartName
    """The class, as `package.module:Class`. Example: `"mine:Neighbours"`."""
    settings: dict[str, Any] = {}
    """The settings of that class."""


def name_of(part: Part) -> str:
    """Return the part's name as written in a job file."""
    return part.part if isinstance(part, Own) else str(part.__struct_config__.tag)


class ObjectivePart(Part, frozen=True):
    """The properties of an objective that the coordinator and edge servers use."""

    receives: ClassVar[tuple[str, ...]] = ()
    """The job's vectors that a device receives in addition to the model."""
    returns: ClassVar[tuple[str, ...]] = ()
    """The vectors that a device returns in addition to its model; an edge server sums them over a tour."""
    reports: ClassVar[tuple[str, ...]] = ()
    """The vectors of another length (`sojourn.model.vectors`) that a device returns in addition to its model; a
    finisher gets each device's vectors, without a sum."""
    finisher_half: ClassVar[str | None] = None
    """The name of the finisher that it requires."""
    consent: ClassVar[str | None] = None
    """What a device's owner must share for it, as named by `shares` in agent.toml; None: nothing."""
    keeps: ClassVar[bool] = False
    """Whether a device keeps vectors from one visit to the next."""
    server_half: ClassVar[str | None] = None
    """The name of the aggregator that it requires."""
    plain_sgd: ClassVar[bool] = False
    """Whether it is valid only with plain SGD, without momentum or another optimiser."""
    keeps_model: ClassVar[bool] = False
    """Whether a device keeps the whole model that it returned last, under the name `own`."""
    one_descent: ClassVar[bool] = True
    """Whether a visit is a single descent from the received model, so that several visits can run in one batch."""
    outcome: ClassVar[Outcome] = "one model"
    """The result of the strategy."""
    shared: ClassVar[str] = ""
    """A description of the job's one model for users, if that model is not the result."""

    @property
    def starts_elsewhere(self) -> bool:
        """Whether a visit may start from another model than the received one, so that its update means little."""
        return False

    @property
    def norm_comparable(self) -> bool:
        """Whether the gate can compare the norm of an update with those of others."""
        return True

    def passes(self, epochs: int, earlier: int) -> int:
        """Return the epochs of a visit; `earlier`: the number of earlier visits on this tour."""
        del earlier
        return epochs

    def learns_from(self, samples: int) -> int:
        """Return how many of a device's samples are used for training; the others are held out."""
        return samples


def held_out(samples: int, *shares: float) -> tuple[int, ...]:
    """Return how many samples each share holds out; all 0 if no samples would be left for training."""
    each = tuple(int(share * samples + 0.5) for share in shares)
    return each if sum(each) < samples else (0,) * len(each)


def kept_for_training(samples: int, *shares: float) -> int:
    """Return how many samples are left for training after holding out these shares."""
    return samples - sum(held_out(samples, *shares))
