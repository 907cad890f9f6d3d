"""Settings of the objectives that devices minimise, except those with a second stream (`two_stream`)."""

from __future__ import annotations

from typing import Annotated, ClassVar, Literal

import msgspec

from sojourn.parts.part import (
    BelowOne,
    Chance,
    Count,
    Natural,
    NotNegative,
    ObjectivePart,
    Outcome,
    Own,
    Positive,
    Share,
    kept_for_training,
)
from sojourn.parts.two_stream import FeatureMatch, Fusion, Mmd, Moon, TwoStreamPart


class Generated(ObjectivePart, frozen=True, tag="generated"):
    """FedGen: l(f(x), y) + a_t l(h(z'), y') + b_t KL(h(z) || f(x)), with z = G(y) and z' = G(y') for drawn classes y'.

    h is the model's last layer, G the generator received with the model, and the first argument of KL is constant. In
    the job's first round it is the plain loss. a_t = a decay^t, likewise b_t; neither falls below `least`.
    """

    receives: ClassVar[tuple[str, ...]] = ("generator",)
    reports: ClassVar[tuple[str, ...]] = ("class-counts",)
    consent: ClassVar[str | None] = "class-counts"
    finisher_half: ClassVar[str | None] = "generator"
    one_descent: ClassVar[bool] = False
    a: NotNegative = 10.0
    """The weight of the loss on generated inputs of the last layer; 0 for none."""
    b: NotNegative = 10.0
    """The weight of the divergence from the last layer's outputs for generated inputs of the same class; 0 for none."""
    decay: Share = 0.98
    """The factor of both weights from round to round."""
    least: NotNegative = 1e-4
    """The minimum of both weights, unless a weight is 0."""
    made: Count = 32
    """Generated inputs per step."""
    noise: Count = 32
    """The size of the generator's noise input."""
    hidden: Count = 256
    """The width of the generator's hidden layer."""

    def weights(self, rounds_before: int) -> tuple[float, float]:
        """Return a_t and b_t after N rounds; both are 0 in the first round."""
        if not rounds_before:
            return 0.0, 0.0
        shrunk = self.decay**rounds_before
        a, b = (max(self.least, each * shrunk) if each else 0.0 for each in (self.a, self.b))
        return a, b


# Objectives of devices that keep a private model, or a part of one: FedBN and MetaFed, implemented in
# `edge_agent.training.fedbn` and `edge_agent.training.metafed`.

Phase = Literal["warm-up", "begin", "accumulate", "personalise"]
"""The phase of a MetaFed job. warm-up: every device alone. begin: the first visit of the ring, with a new model.
accumulate: later visits of the ring. personalise: every device alone, with the result of the ring's last device."""
Threshold = Annotated[float, msgspec.Meta(ge=-1, le=2)]


class LocalNorms(ObjectivePart, frozen=True, tag="local-norms"):
    """FedBN: the plain loss; the BatchNorm layers stay on the device, all other layers are shared."""

    keeps: ClassVar[bool] = True
    one_descent: ClassVar[bool] = False
    outcome: ClassVar[Outcome] = "own models"
    shared: ClassVar[str] = "the shared part, with the BatchNorm layers of the start"
    test: BelowOne = 0.2
    """The share of a device's samples that is held out to test its own model; 0 trains on all samples, without metrics
    of the devices' own models."""

    def learns_from(self, samples: int) -> int:
        """All samples except the test part."""
        return kept_for_training(samples, 0.0, self.test)


class Common(TwoStreamPart, frozen=True, tag="common"):
    """MetaFed: a device continues its own model, drawn to the features of the received one, or continues the latter.

    A device whose own model has an accuracy above `threshold` on its validation part trains on
    l + lam MSE(phi(w, x), phi(u, x)), with u the received model and phi the output of `layer`; any other device starts
    from u and trains only on l.
    """

    keeps: ClassVar[bool] = True
    one_descent: ClassVar[bool] = False
    outcome: ClassVar[Outcome] = "own models"
    shared: ClassVar[str] = "that of the ring's last device"
    lam: NotNegative = 1.0
    """The weight of the distance to the features of the received model (lambda_0); 0 for none."""
    threshold: Threshold = 0.6
    """A device whose accuracy is above this keeps its own model; below 0 all devices do, above 1 none."""
    floor: Chance = 0.5
    """During personalisation, a received model is ignored if it is not better than the device's own and its accuracy is
    below this."""
    warmup: Count = 30
    """Epochs of each device's training alone, before the ring."""
    share_norms: bool = True
    """Whether a device that takes the received model also takes its BatchNorm layers; otherwise it keeps its own."""
    validation: BelowOne = 0.3
    """The share of the samples for comparing models; 0 for none, so that no device keeps its own model unless
    `threshold` is below 0."""
    test: BelowOne = 0.3
    """The share of the samples for testing a device's own model; 0 for none."""
    phase: Phase = "warm-up"
    """The phase of the job; the schedule sets it, not the job file."""

    @property
    def receives(self) -> tuple[str, ...]:  # type: ignore[override]  # as for all two-stream objectives
        """Nothing in addition to the model."""
        return ()

    @property
    def scalars(self) -> tuple[float, ...]:
        """The weight of the feature distance; a device computes its own for personalisation."""
        return (self.lam,)

    @property
    def compiled(self) -> TwoStreamPart:  # type: ignore[override]  # another objective with the same term
        """The feature distance to one frozen model."""
        return FeatureMatch(layer=self.layer)

    @property
    def starts_elsewhere(self) -> bool:
        """On the ring, a visit may start with the device's own model."""
        return self.phase in ("begin", "accumulate")

    @property
    def norm_comparable(self) -> bool:
        """Not on the ring: a device's own model may be at any distance from the received one."""
        return not self.starts_elsewhere

    @property
    def alone(self) -> bool:
        """Whether the result of the visit stays on the device."""
        return self.phase in ("warm-up", "personalise")

    def passes(self, epochs: int, earlier: int) -> int:
        """Return the given epochs, or those of the warm-up."""
        del earlier
        return self.warmup if self.phase == "warm-up" else epochs

    def learns_from(self, samples: int) -> int:
        """All samples except the validation and test parts."""
        return kept_for_training(samples, self.validation, self.test)


class Sgd(ObjectivePart, frozen=True, tag="sgd"):
    """The plain loss."""


class Prox(ObjectivePart, frozen=True, tag="prox"):
    """FedProx: g + mu (w - w_in)."""

    mu: NotNegative = 0.01
    """The weight of the distance to the received model; 0 is FedAvg."""


class Dyn(ObjectivePart, frozen=True, tag="dyn"):
    """FedDyn: g - h_k + a (w - w_in); after the visit h_k <- h_k - a (w_out - w_in). a must be above 0."""

    keeps: ClassVar[bool] = True
    a: Positive = 0.1
    """The weight of the regularisation towards a common model."""


class Scaffold(ObjectivePart, frozen=True, tag="scaffold"):
    """SCAFFOLD, option II: g - c_k + c; after the visit c_k' = c_k - c + (w_in - w_out) / (steps lr)."""

    receives: ClassVar[tuple[str, ...]] = ("control",)
    returns: ClassVar[tuple[str, ...]] = ("control_delta",)
    keeps: ClassVar[bool] = True
    server_half: ClassVar[str | None] = "scaffold"
    plain_sgd: ClassVar[bool] = True


class Sam(ObjectivePart, frozen=True, tag="sam"):
    """Sharpness-aware minimisation: the gradient at w + rho g / |g|."""

    rho: Positive = 0.01
    """The radius: how far ahead the gradient is computed."""


class LogitAdjustment(ObjectivePart, frozen=True, tag="logit-adjustment"):
    """Cross-entropy of z + tau log p, with z the model's logits and p the device's class shares.

    Training then does not suppress classes that a device lacks, or favour classes that are frequent there. p_c = (n_c +
    smoothing) / (n + C smoothing) stays on the device. The gradient is computed with the output bias shifted by
    tau log p. For a task without classes it is the plain loss.
    """

    tau: NotNegative = 1.0
    """The weight of the shift by the device's class shares; 0 is the plain loss."""
    smoothing: Positive = 1.0
    """Samples added to the count of every class."""


class Elmy(ObjectivePart, frozen=True, tag="elmy"):
    """FedELMY: the mean of a pool of diverse models, each from the epoch with the best validation accuracy."""

    one_descent: ClassVar[bool] = False
    models: Count = 5
    """The number of models that a visit trains (S)."""
    alpha: NotNegative = 0.06
    """The weight of the distance from the other models of the pool; 0 for none."""
    beta: NotNegative = 1.0
    """The weight of the distance to the pool's first model; 0 for none."""
    warmup: Natural = 30
    """Epochs that the first device of a tour trains the model before it starts its pool (E_w)."""
    validation: BelowOne = 0.1
    """The share of the samples that is held out for validation; 0 keeps the last epoch."""
    start: Literal["received", "own"] = "received"
    """The start: the `received` model, or an `own` random model of the same kind, made by shuffling the numbers of each
    tensor of the received model: every device of FedELMY's parallel form starts with its own."""

    @property
    def starts_elsewhere(self) -> bool:
        """With `own`, visits start from another random model."""
        return self.start == "own"

    def passes(self, epochs: int, earlier: int) -> int:
        """Return the epochs of all models of the pool, plus the warm-up on the first visit."""
        return self.models * epochs + (0 if earlier else self.warmup)

    def learns_from(self, samples: int) -> int:
        """All samples except the validation split."""
        return kept_for_training(samples, self.validation)


class Echo(ObjectivePart, frozen=True, tag="echo"):
    """MA-Echo: the plain loss; then, for each weight layer, the projection onto directions that the data does not use.

    P = I; for each batch, with r the mean of the layer's inputs (for a convolution: each patch of the mean map),
    P <- P - c (P r)(P r)^T / (a + r^T P r). Moving the layer's weights along P does not change its outputs.
    """

    reports: ClassVar[tuple[str, ...]] = ("projections",)
    finisher_half: ClassVar[str | None] = "echo"
    consent: ClassVar[str | None] = "projections"
    one_descent: ClassVar[bool] = False
    form: Literal["damped", "exact"] = "damped"
    """The form of the projection: `damped` has c = 0.5, as the authors' code; `exact` has c = 1, which is a (aI + sum r
    r^T)^-1 in any order."""
    rank: Natural = 0
    """How many directions used by the data are reported for each layer; 0 reports the whole projection, d x d
    numbers."""
    a_dense: Positive = 0.0251
    """a of fully connected layers."""
    a_conv: Positive = 1e-4
    """a of convolutions."""
    start: Literal["received", "own"] = "own"
    """The start: the `received` model, or an `own` random model of the same kind, made by shuffling the numbers of each
    tensor."""
    memory: Positive = 512.0
    """Maximum megabytes of the projections on a device; a model that needs more is rejected."""

    @property
    def starts_elsewhere(self) -> bool:
        """With `own`, visits start from another random model."""
        return self.start == "own"

    @property
    def norm_comparable(self) -> bool:
        """With `own`, the distance between random models means nothing."""
        return not self.starts_elsewhere


Outlier = Literal["crop", "blur", "erase", "cut", "rot"]


class Outliers(ObjectivePart, frozen=True, tag="outliers"):
    """FedOV: a model with an additional unknown class C, trained on images that do not belong to any class.

    l(x, y) + outlier l(o, C) + masked l(x without y, C) + mix l(two samples mixed, C) + adversarial l(o_adv, C), with l
    the cross-entropy over C + 1 outputs and o an outlier made from each sample. A model with BatchNorm uses only the
    first two terms, in one batch.
    """

    finisher_half: ClassVar[str | None] = "vote"
    one_descent: ClassVar[bool] = False
    outlier: NotNegative = 1.0
    """The weight of the loss on outliers; 0 for none."""
    masked: NotNegative = 1.0
    """The weight of the loss that a sample is unknown if its own class is masked; 0 for none."""
    mix: NotNegative = 0.01
    """The weight of the loss on mixtures of two samples of different classes, mixed at a layer; 0 for none."""
    adversarial: NotNegative = 1.0
    """The weight of the loss on outliers that were changed to look known; 0 for none."""
    steps: Natural = 5
    """The number of steps of that change."""
    reach: Positive = 0.002
    """The size of each step, in standard deviations of the job's data."""
    kinds: tuple[Outlier, ...] = ("crop", "blur", "erase", "cut", "cut", "rot", "rot")
    """The operations that create outliers; repeated ones are more frequent."""
    layer: str = ""
    """The layer at which samples are mixed; by default the first fully connected layer, except the last one."""
    start: Literal["received", "own"] = "own"
    """The start: the `received` model, or an `own` random model of the same kind, made by shuffling the numbers of each
    tensor."""

    @property
    def plain(self) -> bool:
        """Whether it is only the plain loss."""
        return not (self.outlier or self.masked or self.mix or self.adversarial)

    @property
    def starts_elsewhere(self) -> bool:
        """With `own`, visits start from another random model."""
        return self.start == "own"

    @property
    def norm_comparable(self) -> bool:
        """With `own`, the distance between random models means nothing."""
        return not self.starts_elsewhere


class OwnObjective(Own, ObjectivePart, frozen=True, tag="own"):
    """A custom objective, which runs on devices where it is installed and whose owners allow it."""

    one_descent: ClassVar[bool] = False
    keeps: bool = True  # type: ignore[misc]
    """Whether it keeps vectors from one visit to the next."""


Objective = (
    Sgd | Prox | Dyn | Scaffold | Sam | LogitAdjustment | Elmy | LocalNorms | Common | FeatureMatch | Mmd | Moon
    | Fusion | Echo | Outliers | Generated | OwnObjective
)  # fmt: skip
