"""Settings of aggregators, which merge the tours' models; `coordinator.aggregators.aggregating` implements them."""

from __future__ import annotations

from typing import ClassVar, Literal

from sojourn.parts.part import BelowOne, Chance, Count, Own, Part, Positive, Weighting


class AggregatorPart(Part, frozen=True):
    """The properties of an aggregator that the coordinator uses."""

    sends: ClassVar[tuple[str, ...]] = ()
    """The vectors of its state that are sent to devices."""
    device_half: ClassVar[str | None] = None
    """The name of the objective that it requires."""
    steps: ClassVar[bool] = False
    """Whether a merge moves each number by about the learning rate, regardless of the size of updates."""
    compares: ClassVar[bool] = False
    """Whether it compares models, so that a single model has no effect."""
    window: Count = 1
    """The tested and released model is the mean of the last N merges (of fewer in the first rounds); tours start from
    the newest merge."""


class WeightedMean(AggregatorPart, frozen=True, tag="weighted-mean"):
    """The mean of the tours' models, weighted by the samples each has seen."""

    weighting: ClassVar[Weighting] = "samples"


class UniformMean(AggregatorPart, frozen=True, tag="uniform-mean"):
    """The unweighted mean of the tours' models: devices need not report how much data they have."""

    weighting: ClassVar[Weighting] = "uniform"


class AvgM(AggregatorPart, frozen=True, tag="avgm"):
    """FedAvgM: v <- momentum v + d; w <- w + lr v, with d = mean - w."""

    momentum: BelowOne = 0.9
    """The share of the previous merge's update that is added to the next; 0 for none."""
    lr: Positive = 1.0
    """The server's learning rate."""
    restart: bool | Literal["each"] = False
    """Whether momentum is reset when a merge points against it: all of it (`true`), or `each` number separately, which
    keeps the momentum of the others and stays stable at higher learning rates."""
    against: Chance = 0.8
    """With `each`: the share of the models, rounded down, that must point against a number's momentum in addition to
    their mean; 0: only the mean decides."""
    weighting: Weighting = "samples"
    """Whether models are weighted by the `samples` that they have seen, or equally (`uniform`)."""


class Adagrad(AggregatorPart, frozen=True, tag="adagrad"):
    """FedAdagrad: v <- v + d^2; w <- w + lr m / (sqrt(v) + tau)."""

    steps: ClassVar[bool] = True
    lr: Positive = 0.1
    """The server's learning rate."""
    beta1: BelowOne = 0.0
    """Momentum of the mean update m; 0 for none."""
    tau: Positive = 1e-3
    """Limits the steps of numbers that have hardly changed."""
    weighting: Weighting = "samples"
    """Whether models are weighted by the `samples` that they have seen, or equally (`uniform`)."""


class Adam(AggregatorPart, frozen=True, tag="adam"):
    """FedAdam: v <- beta2 v + (1 - beta2) d^2; w <- w + lr m / (sqrt(v) + tau)."""

    steps: ClassVar[bool] = True
    lr: Positive = 0.1
    """The server's learning rate."""
    beta1: BelowOne = 0.9
    """Momentum of the mean update m; 0 for none."""
    beta2: BelowOne = 0.99
    """Decay rate of the squared update v; 0 for no memory."""
    tau: Positive = 1e-3
    """Limits the steps of numbers that have hardly changed."""
    weighting: Weighting = "samples"
    """Whether models are weighted by the `samples` that they have seen, or equally (`uniform`)."""


class Yogi(AggregatorPart, frozen=True, tag="yogi"):
    """FedYogi: v <- v - (1 - beta2) d^2 sign(v - d^2); w <- w + lr m / (sqrt(v) + tau)."""

    steps: ClassVar[bool] = True
    lr: Positive = 0.1
    """The server's learning rate."""
    beta1: BelowOne = 0.9
    """Momentum of the mean update m; 0 for none."""
    beta2: BelowOne = 0.99
    """Decay rate of the squared update v; 0 for no memory."""
    tau: Positive = 1e-3
    """Limits the steps of numbers that have hardly changed."""
    weighting: Weighting = "samples"
    """Whether models are weighted by the `samples` that they have seen, or equally (`uniform`)."""


class Ida(AggregatorPart, frozen=True, tag="ida"):
    """Inverse distance: each model weighs 1 / (epsilon + its distance to the mean model)."""

    compares: ClassVar[bool] = True
    epsilon: Positive = 1e-6
    """Limits the weight of a model that equals the mean."""
    weighting: Weighting = "samples"
    """Whether models are weighted by the `samples` that they have seen, or equally (`uniform`)."""


class DynServer(AggregatorPart, frozen=True, tag="dyn"):
    """FedDyn's server half: h <- h - a / N sum(w_k - w_prev); w = mean(w_k) - h / a, with the objective's a."""

    device_half: ClassVar[str | None] = "dyn"
    weighting: ClassVar[Weighting] = "uniform"


class ScaffoldServer(AggregatorPart, frozen=True, tag="scaffold"):
    """SCAFFOLD's server half: c <- c + 1 / N sum(delta c_k); w <- w + lr (mean - w)."""

    sends: ClassVar[tuple[str, ...]] = ("control",)
    device_half: ClassVar[str | None] = "scaffold"
    lr: Positive = 1.0
    """The server's learning rate."""
    weighting: Weighting = "uniform"
    """Whether models are weighted by the `samples` that they have seen, or equally (`uniform`)."""


class FusionMean(AggregatorPart, frozen=True, tag="fusion"):
    """FedFusion's server half: the mean, then gamma <- (1 - smoothing) mean + smoothing gamma of before."""

    device_half: ClassVar[str | None] = "fusion"
    smoothing: BelowOne = 0.9
    """Smoothing of the fusion's numbers; 0 uses their mean."""
    weighting: Weighting = "uniform"
    """Whether models are weighted by the `samples` that they have seen, or equally (`uniform`)."""


class OwnAggregator(Own, frozen=True, tag="own"):
    """A custom aggregator."""

    sends: ClassVar[tuple[str, ...]] = ()
    device_half: ClassVar[str | None] = None
    steps: ClassVar[bool] = False
    compares: ClassVar[bool] = False
    window: ClassVar[int] = 1


Aggregator = (
    WeightedMean
    | UniformMean
    | AvgM
    | Adagrad
    | Adam
    | Yogi
    | Ida
    | DynServer
    | ScaffoldServer
    | FusionMean
    | OwnAggregator
)
