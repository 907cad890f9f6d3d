"""Typed settings of a visit and of a tour, whatever the strategy."""

from __future__ import annotations

from typing import Annotated, Literal

import msgspec

from sojourn.parts.part import BelowOne, Count, Natural, NotNegative, Positive, Share


class Training(msgspec.Struct, frozen=True, forbid_unknown_fields=True, kw_only=True):
    """How one device trains: mini-batch steps from the model it was handed; the optimiser starts anew at each visit."""

    epochs: Count = 1
    """How often a device goes through its data at a visit."""
    batch: Count = 32
    """Samples in a step."""
    lr: Positive = 0.05
    """The learning rate."""
    optimiser: Literal["sgd", "adam"] = "sgd"
    """Plain steps, or Adam; it starts anew at each visit."""
    momentum: BelowOne = 0.0
    """How much of the last step goes on in the next, for `sgd`; 0 for none."""
    weight_decay: NotNegative = 0.0
    """How strongly weights are drawn to zero; 0 for not at all."""


class TourPolicy(msgspec.Struct, frozen=True, forbid_unknown_fields=True, kw_only=True):
    """What happens when a visit or a whole site fails, as every tour carries it. Leases are seconds without a word."""

    lease: Positive = 60.0
    """Seconds without a word of a device after which its visit is lost."""
    on_lost_visit: Literal["skip", "retry", "swap"] = "skip"
    """Go on without the device (`skip`), ask it again (`retry`), or ask a spare one instead (`swap`)."""
    retries: Natural = 1
    """How often a lost visit is tried again, with `retry`."""
    spares: Natural = 1
    """How many spare devices a tour has, with `swap`."""
    site_lease: Positive = 180.0
    """Seconds without a word of a site after which its tours are lost."""
    on_lost_site: Literal["wait", "drop", "reassign"] = "reassign"
    """Wait for it, go on without its tours (`drop`), or give them to another site that reaches the devices
    (`reassign`)."""


Factor = Annotated[float, msgspec.Meta(gt=1, le=1e9)]
Cosine = Annotated[float, msgspec.Meta(ge=-1, le=1)]
Evidence = Annotated[float, msgspec.Meta(ge=-3, le=1e9)]
Samples = Annotated[int, msgspec.Meta(ge=1, le=(1 << 53) - 1)]


class Gate(msgspec.Struct, frozen=True, forbid_unknown_fields=True, kw_only=True):
    """What a returned model must pass, as every tour carries it: an update norm in line, a loss that did not leap."""

    norm_factor: Factor | None = 10.0
    """An update's norm, over the root of its steps, may be so many times the median of others."""
    loss_factor: Factor | None = None
    """The loss on the exemplars may grow by this factor at a visit."""


class TourBounds(msgspec.Struct, frozen=True, kw_only=True, omit_defaults=True):
    """What bounds a tour besides its policy and its gate; an edge server from before 0.3.0 passes over it.

    deadline: seconds that one visit may take in all. against_factor: the loss on the exemplars may grow by this factor
    at most where the update points against them, which is a cosine under least_cosine. clip: whether an update that is
    only too long is shortened. most_samples, most_share: how much one device may weigh. usual_samples: how many a
    device of the job has, by the median. usual_rise: the factor by which a visit made the loss on the exemplars grow in
    the round before, by the median; both factors are on top of it. most_rise: what it may grow by at most, where the
    devices are so alike that this is less. most_evidence: how much may speak for false labels where the loss rose by
    more than against_factor. report: whether results that break a rule are kept and only reported; damaged
    ones are refused all the same. None: no bound, or not known.
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
    report: bool = False
    most_evidence: Evidence | None = None
