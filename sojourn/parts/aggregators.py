"""How the tours' models become the next global model. The arithmetic is in `coordinator.aggregators.aggregating`."""

from __future__ import annotations

from typing import ClassVar, Literal

from sojourn.parts.part import BelowOne, Chance, Count, Own, Part, Positive, Weighting


class AggregatorPart(Part, frozen=True):
    """What the coordinator knows of an aggregator."""

    sends: ClassVar[tuple[str, ...]] = ()
    """The vectors it keeps that travel to the devices."""
    device_half: ClassVar[str | None] = None
    """The name of the objective that it means nothing without."""
    steps: ClassVar[bool] = False
    """Whether a merge moves each number by about its learning rate, however far devices went."""
    compares: ClassVar[bool] = False
    """Whether it compares models, and so does nothing with one."""
    window: Count = 1
    """The model that is tested and shipped is the mean of the last so many merges, in the first rounds of fewer; tours
    depart from the newest one."""


class WeightedMean(AggregatorPart, frozen=True, tag="weighted-mean"):
    """The mean of the tours' models, weighted by the samples each has seen."""

    weighting: ClassVar[Weighting] = "samples"


class UniformMean(AggregatorPart, frozen=True, tag="uniform-mean"):
    """The plain mean of the tours' models: devices need not tell how much data they have."""

    weighting: ClassVar[Weighting] = "uniform"


class AvgM(AggregatorPart, frozen=True, tag="avgm"):
    """FedAvgM: v <- momentum v + d; w <- w + lr v, with d = mean - w."""

    momentum: BelowOne = 0.9
    """How much of the last merge's way goes on in the next; 0 for none."""
    lr: Positive = 1.0
    """The server's learning rate."""
    restart: bool | Literal["each"] = False
    """Whether momentum is given up when a merge points against it: all of it (`true`), or `each` number's by itself,
    which keeps what the others have, and is steady at learning rates that are too high for the whole."""
    against: Chance = 0.8
    """With `each`: the share of the models, rounded down, that must point against a number's momentum besides their
    mean; 0: the mean alone decides."""
    weighting: Weighting = "samples"
    """Whether a mean counts models by the `samples` that they have seen, or all alike (`uniform`)."""


class Adagrad(AggregatorPart, frozen=True, tag="adagrad"):
    """FedAdagrad: v <- v + d^2; w <- w + lr m / (sqrt(v) + tau)."""

    steps: ClassVar[bool] = True
    lr: Positive = 0.1
    """The server's learning rate."""
    beta1: BelowOne = 0.0
    """Momentum of the mean way m; 0 for none."""
    tau: Positive = 1e-3
    """Keeps steps bounded where little has moved."""
    weighting: Weighting = "samples"
    """Whether a mean counts models by the `samples` that they have seen, or all alike (`uniform`)."""


class Adam(AggregatorPart, frozen=True, tag="adam"):
    """FedAdam: v <- beta2 v + (1 - beta2) d^2; w <- w + lr m / (sqrt(v) + tau)."""

    steps: ClassVar[bool] = True
    lr: Positive = 0.1
    """The server's learning rate."""
    beta1: BelowOne = 0.9
    """Momentum of the mean way m; 0 for none."""
    beta2: BelowOne = 0.99
    """Memory of its square v; 0 for none."""
    tau: Positive = 1e-3
    """Keeps steps bounded where little has moved."""
    weighting: Weighting = "samples"
    """Whether a mean counts models by the `samples` that they have seen, or all alike (`uniform`)."""


class Yogi(AggregatorPart, frozen=True, tag="yogi"):
    """FedYogi: v <- v - (1 - beta2) d^2 sign(v - d^2); w <- w + lr m / (sqrt(v) + tau)."""

    steps: ClassVar[bool] = True
    lr: Positive = 0.1
    """The server's learning rate."""
    beta1: BelowOne = 0.9
    """Momentum of the mean way m; 0 for none."""
    beta2: BelowOne = 0.99
    """Memory of its square v; 0 for none."""
    tau: Positive = 1e-3
    """Keeps steps bounded where little has moved."""
    weighting: Weighting = "samples"
    """Whether a mean counts models by the `samples` that they have seen, or all alike (`uniform`)."""


class Ida(AggregatorPart, frozen=True, tag="ida"):
    """Inverse distance: each model weighs 1 / (epsilon + its distance to the mean model)."""

    compares: ClassVar[bool] = True
    epsilon: Positive = 1e-6
    """Keeps weights bounded where a model is at the mean."""
    weighting: Weighting = "samples"
    """Whether a mean counts models by the `samples` that they have seen, or all alike (`uniform`)."""


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
    """Whether a mean counts models by the `samples` that they have seen, or all alike (`uniform`)."""


class FusionMean(AggregatorPart, frozen=True, tag="fusion"):
    """FedFusion's server half: the mean, then gamma <- (1 - smoothing) mean + smoothing gamma of before."""

    device_half: ClassVar[str | None] = "fusion"
    smoothing: BelowOne = 0.9
    """How slowly the numbers of the fusion follow; 0 sends their mean."""
    weighting: Weighting = "uniform"
    """Whether a mean counts models by the `samples` that they have seen, or all alike (`uniform`)."""


class OwnAggregator(Own, frozen=True, tag="own"):
    """An aggregator of one's own."""

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
