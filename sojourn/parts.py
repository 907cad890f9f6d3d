"""Typed settings of the parts of a strategy and of a visit. The parts themselves live where they run."""

from __future__ import annotations

from typing import Annotated, ClassVar, Literal

import msgspec

Count = Annotated[int, msgspec.Meta(ge=1, le=1_000_000)]
Natural = Annotated[int, msgspec.Meta(ge=0, le=1_000_000)]
Share = Annotated[float, msgspec.Meta(gt=0, le=1)]
Positive = Annotated[float, msgspec.Meta(gt=0, le=1e9)]
NotNegative = Annotated[float, msgspec.Meta(ge=0, le=1e9)]
Encoding = Literal["float32", "float16", "int8"]


class Part(msgspec.Struct, frozen=True, forbid_unknown_fields=True, kw_only=True, tag_field="name"):
    """One of the four parts of a strategy: its name and its settings."""


class Training(msgspec.Struct, frozen=True, forbid_unknown_fields=True, kw_only=True):
    """How one device trains: mini-batch SGD from the model it was handed."""

    epochs: Count = 1
    batch: Count = 32
    lr: Positive = 0.05
    momentum: NotNegative = 0.0
    weight_decay: NotNegative = 0.0


class Sgd(Part, frozen=True, tag="sgd"):
    """The plain loss."""

    returns: ClassVar[tuple[str, ...]] = ()
    """The vectors that a device sends back besides its model."""


Objective = Sgd


class NoEstimator(Part, frozen=True, tag="none"):
    """The arranger asks for nothing."""


class SignatureEstimator(Part, frozen=True, tag="signature"):
    """VISIT's signature: mean softmax answers on the exemplars after a few epochs from the same model."""

    epochs: Count = 10
    where: Literal["server", "device"] = "server"


Estimator = NoEstimator | SignatureEstimator


class SingleArranger(Part, frozen=True, tag="single"):
    """Tours of one device: a random share of the fleet each round (FedAvg)."""

    fraction: Share = 1.0


class VisitArranger(Part, frozen=True, tag="visit"):
    """VISIT's greedy client sets: `sets` (the paper's L) of `size` devices (its k)."""

    sets: Count = 2
    size: Count = 4
    order: Literal["addition", "shuffled"] = "addition"
    passes: Count = 1


Arranger = SingleArranger | VisitArranger


class EveryRound(Part, frozen=True, tag="every-round"):
    """All tours start from the global model and merge after the round; arranged anew every so many rounds."""

    rearrange_every: Count = 1


Schedule = EveryRound


class WeightedMean(Part, frozen=True, tag="weighted-mean"):
    """The mean of the tours' models, weighted by the samples each has seen."""


class UniformMean(Part, frozen=True, tag="uniform-mean"):
    """The plain mean of the tours' models: devices need not tell how much data they have."""


Aggregator = WeightedMean | UniformMean


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
