"""Typed settings of a visit and of a tour, whatever the strategy."""

from __future__ import annotations

from typing import Annotated, Literal

import msgspec

from sojourn.parts.part import BelowOne, Count, Natural, NotNegative, Positive, Share


class Training(msgspec.Struct, frozen=True, forbid_unknown_fields=True, kw_only=True):
    """How one device trains: mini-batch steps from the model it was handed; the optimiser starts anew at each visit."""

    epochs: Count = 1
    batch: Count = 32
    lr: Positive = 0.05
    optimiser: Literal["sgd", "adam"] = "sgd"
    momentum: BelowOne = 0.0
    weight_decay: NotNegative = 0.0


class TourPolicy(msgspec.Struct, frozen=True, forbid_unknown_fields=True, kw_only=True):
    """What happens when a visit or a whole site fails, as every tour carries it. Leases are seconds without a word."""

    lease: Positive = 60.0
    on_lost_visit: Literal["skip", "retry", "swap"] = "skip"
    retries: Natural = 1
    spares: Natural = 1
    site_lease: Positive = 180.0
    on_lost_site: Literal["wait", "drop", "reassign"] = "reassign"


Factor = Annotated[float, msgspec.Meta(gt=1, le=1e9)]
Cosine = Annotated[float, msgspec.Meta(ge=-1, le=1)]
Samples = Annotated[int, msgspec.Meta(ge=1, lt=1 << 53)]


class Gate(msgspec.Struct, frozen=True, forbid_unknown_fields=True, kw_only=True):
    """What a returned model must pass, as every tour carries it: an update norm in line, a loss that did not leap."""

    norm_factor: Factor | None = 10.0
    loss_factor: Factor | None = None


class TourBounds(msgspec.Struct, frozen=True, kw_only=True, omit_defaults=True):
    """What bounds a tour besides its policy and its gate; an edge server from before 0.3.0 passes over it.

    deadline: seconds that one visit may take in all. against_factor: the loss on the exemplars may grow by this factor
    at most where the update points against them, which is a cosine under least_cosine. clip: whether an update that is
    only too long is shortened. most_samples, most_share: how much one device may weigh. usual_samples: how many a
    device of the job has, by the median. usual_rise: the factor by which a visit made the loss on the exemplars grow in
    the round before, by the median; both factors are on top of it. None: no bound, or not known.
    """

    deadline: Positive | None = None
    against_factor: Factor | None = None
    least_cosine: Cosine = 0.0
    clip: bool = False
    most_samples: Samples | None = None
    most_share: Share | None = None
    usual_samples: Samples | None = None
    usual_rise: Annotated[float, msgspec.Meta(ge=1, le=1e9)] = 1.0


class TourSettings(TourPolicy, frozen=True, forbid_unknown_fields=True, kw_only=True):
    """`[tours]` of a job: the policy, and the seconds that one visit may take in all, however often it speaks."""

    deadline: Positive | None = None
    """None: as long as 60 leases."""

    @property
    def policy(self) -> TourPolicy:
        """What every version of an edge server understands."""
        return TourPolicy(**{name: getattr(self, name) for name in TourPolicy.__struct_fields__})

    @property
    def visit_deadline(self) -> float:
        """The seconds that one visit may take."""
        return LEASES * self.lease if self.deadline is None else self.deadline


class GateSettings(Gate, frozen=True, forbid_unknown_fields=True, kw_only=True):
    """`[gate]` of a job: what results must pass, and how much one device may weigh.

    on: whether anything is checked but that models are finite and of the right length. The rules on the loss need
    exemplars: without them they are off. The others are explained at `TourBounds`.
    """

    on: bool = True
    loss_factor: Factor | None = 2.0
    against_factor: Factor = 1.2
    least_cosine: Cosine = -0.5
    clip: bool = True
    most_samples: Samples = 1_000_000
    most_share: Share = 0.5

    @property
    def rules(self) -> Gate:
        """What every version of an edge server understands."""
        return Gate(norm_factor=self.norm_factor, loss_factor=self.loss_factor) if self.on else OPEN

    def bounds(self, deadline: float, usual_samples: int | None = None, usual_rise: float = 1.0) -> TourBounds:
        """What an edge server is told besides; with the gate off, only the deadline."""
        if not self.on:
            return TourBounds(deadline=deadline)
        return TourBounds(
            deadline=deadline,
            against_factor=self.against_factor,
            least_cosine=self.least_cosine,
            clip=self.clip,
            most_samples=self.most_samples,
            most_share=self.most_share,
            usual_samples=usual_samples,
            usual_rise=usual_rise,
        )


LEASES = 60
"""Unless a job says how long one visit may take, it is as long as so many leases."""
OPEN = Gate(norm_factor=None, loss_factor=None)
"""A gate that every finite model passes."""
