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
Samples = Annotated[int, msgspec.Meta(ge=1, le=(1 << 53) - 1)]


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
    the round before, by the median; both factors are on top of it. most_rise: what it may grow by at most, where the
    devices are so alike that this is less. None: no bound, or not known.
    """

    deadline: Positive | None = None
    against_factor: Factor | None = None
    least_cosine: Cosine = 0.0
    clip: bool = False
    most_samples: Samples | None = None
    most_share: Share | None = None
    usual_samples: Samples | None = None
    usual_rise: Annotated[float, msgspec.Meta(ge=1, le=1e9)] = 1.0
    most_rise: Factor | None = None
