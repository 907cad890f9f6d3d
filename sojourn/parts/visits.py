"""Settings of visits and tours that all strategies share."""

from __future__ import annotations

from typing import Annotated, Literal

import msgspec

from sojourn.parts.part import BelowOne, Count, Natural, NotNegative, Positive, Share

DEFAULT_LEARNING_RATE = 0.05
DEFAULT_VISIT_LEASE = 60.0
"""The default lease of a visit, in seconds."""
DEFAULT_SITE_LEASE = 180.0
"""The default lease of a site, in seconds."""


class Training(msgspec.Struct, frozen=True, forbid_unknown_fields=True, kw_only=True):
    """How a device trains: mini-batch steps from the received model, with a new optimiser state at each visit."""

    epochs: Count = 1
    """Epochs of a device at a visit."""
    batch: Count = 32
    """Samples per step."""
    lr: Positive = DEFAULT_LEARNING_RATE
    """The learning rate."""
    optimiser: Literal["sgd", "adam"] = "sgd"
    """The optimiser, `sgd` or `adam`; its state is reset at each visit."""
    momentum: BelowOne = 0.0
    """The momentum of `sgd`; 0 for none."""
    weight_decay: NotNegative = 0.0
    """The weight decay; 0 for none."""


class TourPolicy(msgspec.Struct, frozen=True, forbid_unknown_fields=True, kw_only=True):
    """What happens if a visit or a site fails; part of every tour. A lease is a maximum time without a message."""

    lease: Positive = DEFAULT_VISIT_LEASE
    """Seconds without a message from a device after which its visit is lost."""
    on_lost_visit: Literal["skip", "retry", "swap"] = "skip"
    """What to do about a lost visit: continue without the device (`skip`), repeat the visit (`retry`), or use a spare
    device instead (`swap`)."""
    retries: Natural = 1
    """The maximum number of retries of a lost visit, with `retry`."""
    spares: Natural = 1
    """The number of spare devices of a tour, with `swap`."""
    site_lease: Positive = DEFAULT_SITE_LEASE
    """Seconds without a message from a site after which its tours are lost."""
    on_lost_site: Literal["wait", "drop", "reassign"] = "reassign"
    """What to do about a lost site: wait for it (`wait`), continue without its tours (`drop`), or assign them to
    another site that reaches the devices (`reassign`)."""


Factor = Annotated[float, msgspec.Meta(gt=1, le=1e9)]
Cosine = Annotated[float, msgspec.Meta(ge=-1, le=1)]
Evidence = Annotated[float, msgspec.Meta(ge=-3, le=1e9)]
Samples = Annotated[int, msgspec.Meta(ge=1, le=(1 << 53) - 1)]


class Gate(msgspec.Struct, frozen=True, forbid_unknown_fields=True, kw_only=True):
    """The checks of returned models that are part of every tour: the norm of the update, and the loss."""

    norm_factor: Factor | None = 10.0
    """The maximum norm of an update, divided by the root of its steps, relative to the median of others."""
    loss_factor: Factor | None = None
    """The maximum factor by which a visit may increase the loss on the exemplars."""


class TourBounds(msgspec.Struct, frozen=True, kw_only=True, omit_defaults=True):
    """The limits of a tour in addition to its policy and gate. None: no limit, or unknown.

    deadline: total seconds of a visit. against_factor: the maximum factor of the loss on the exemplars if the update
    points against them, which means a cosine below least_cosine. clip: whether updates that are only too long are
    shortened. most_samples, most_share: the maximum weight of a device. usual_samples: the median samples of the job's
    devices. usual_rise: the median factor of the loss on the exemplars over a visit of the previous round; both other
    factors are relative to it. most_rise: the maximum factor of the loss, if the devices are similar enough for it to
    be lower. most_evidence: the maximum evidence of false labels if the loss rose by more than against_factor. report:
    whether results that break a rule are kept and only reported; damaged results are always rejected.
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
