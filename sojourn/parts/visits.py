"""Typed settings of a visit and of a tour, whatever the strategy."""

from __future__ import annotations

from typing import Annotated, Literal

import msgspec

from sojourn.parts.part import BelowOne, Count, Natural, NotNegative, Positive


class Training(msgspec.Struct, frozen=True, forbid_unknown_fields=True, kw_only=True):
    """How one device trains: mini-batch steps from the model it was handed; the optimiser starts anew at each visit."""

    epochs: Count = 1
    batch: Count = 32
    lr: Positive = 0.05
    optimiser: Literal["sgd", "adam"] = "sgd"
    momentum: BelowOne = 0.0
    weight_decay: NotNegative = 0.0


class TourPolicy(msgspec.Struct, frozen=True, forbid_unknown_fields=True, kw_only=True):
    """What happens when a visit or a whole site fails. Leases are seconds without a sign of life."""

    lease: Positive = 60.0
    on_lost_visit: Literal["skip", "retry", "swap"] = "skip"
    retries: Natural = 1
    spares: Natural = 1
    site_lease: Positive = 180.0
    on_lost_site: Literal["wait", "drop", "reassign"] = "reassign"


class Gate(msgspec.Struct, frozen=True, forbid_unknown_fields=True, kw_only=True):
    """What a returned model must pass: finite, an update norm in line, a loss on the exemplars that did not leap."""

    norm_factor: Annotated[float, msgspec.Meta(gt=1, le=1e9)] | None = 10.0
    loss_factor: Annotated[float, msgspec.Meta(gt=1, le=1e9)] | None = None
