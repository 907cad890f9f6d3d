"""What one device minimises: a pull on the gradient. The arithmetic is in `edge_agent.training.objectives`."""

from __future__ import annotations

from typing import ClassVar, Literal

from sojourn.parts.generated import Generated
from sojourn.parts.objective_part import ObjectivePart, kept_for_training
from sojourn.parts.own_models import Common, LocalNorms
from sojourn.parts.part import BelowOne, Count, Natural, NotNegative, Own, Positive
from sojourn.parts.two_stream import FeatureMatch, Fusion, Mmd, Moon


class Sgd(ObjectivePart, frozen=True, tag="sgd"):
    """The plain loss."""


class Prox(ObjectivePart, frozen=True, tag="prox"):
    """FedProx: g + mu (w - w_in)."""

    mu: NotNegative = 0.01
    """How strongly a device is held near the model that it got; 0 is FedAvg."""


class Dyn(ObjectivePart, frozen=True, tag="dyn"):
    """FedDyn: g - h_k + a (w - w_in); after the visit h_k <- h_k - a (w_out - w_in). a = 0 is not FedAvg: refused."""

    keeps: ClassVar[bool] = True
    a: Positive = 0.1
    """How strongly devices are held together."""


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
    """How far ahead the gradient is taken."""


class LogitAdjustment(ObjectivePart, frozen=True, tag="logit-adjustment"):
    """Cross-entropy of z + tau log p, with z the model's answers and p the device's own shares of the classes.

    A class that a device has none of is then no mistake to be unlearnt there, and one that it has many of no answer to
    be learnt by heart. p_c = (n_c + smoothing) / (n + C smoothing) stays on the device. The gradient is taken with the
    bias of the answers moved by tau log p. Where a task has no classes it is the plain loss.
    """

    tau: NotNegative = 1.0
    """How far answers are moved by the device's shares; 0 is the plain loss."""
    smoothing: Positive = 1.0
    """Samples that every class is taken to have besides."""


class Elmy(ObjectivePart, frozen=True, tag="elmy"):
    """FedELMY: the mean of a pool of diverse models, each the epoch with the best accuracy on a validation split."""

    one_descent: ClassVar[bool] = False
    models: Count = 5
    """How many are trained at a visit (S)."""
    alpha: NotNegative = 0.06
    """How strongly a model is pushed away from the others of the pool; 0 for not at all."""
    beta: NotNegative = 1.0
    """How strongly a model is held near the pool's first; 0 for not at all."""
    warmup: Natural = 30
    """Epochs that the first device of a journey trains the model before it starts its pool (E_w)."""
    validation: BelowOne = 0.1
    """The share of the samples that is held out; 0 keeps the last epoch."""
    start: Literal["received", "own"] = "received"
    """`own` shuffles the numbers of each tensor of the model received, which makes it another random model of the same
    kind: every device of FedELMY's parallel form begins with its own."""

    @property
    def elsewhere(self) -> bool:
        """With another random model."""
        return self.start == "own"

    def passes(self, epochs: int, earlier: int) -> int:
        """Each model of the pool, and the warm-up of a new one."""
        return self.models * epochs + (0 if earlier else self.warmup)

    def learns_from(self, samples: int) -> int:
        """All but the validation split."""
        return kept_for_training(samples, self.validation)


class Echo(ObjectivePart, frozen=True, tag="echo"):
    """MA-Echo: the plain loss; then, for each weight layer, the projection onto what the device's data leaves free.

    P = I; for each batch, with r the mean of the layer's inputs (of a convolution: each patch of the mean map),
    P <- P - c (P r)(P r)^T / (a + r^T P r). Moving the layer's weights along P leaves its answers as they are.
    """

    tells: ClassVar[tuple[str, ...]] = ("projections",)
    finisher_half: ClassVar[str | None] = "echo"
    consent: ClassVar[str | None] = "projections"
    one_descent: ClassVar[bool] = False
    form: Literal["damped", "exact"] = "damped"
    """`damped` has c = 0.5, as the authors' code; `exact` c = 1, which is a (aI + sum r r^T)^-1 in any order."""
    rank: Natural = 0
    """How many directions of each layer are told that its data uses; 0 tells the whole projection, d x d numbers."""
    a_dense: Positive = 0.0251
    """a of fully connected layers."""
    a_conv: Positive = 1e-4
    """a of convolutions."""
    start: Literal["received", "own"] = "own"
    """`own` begins with another random model of the same kind, made by shuffling the numbers of each tensor."""
    memory: Positive = 512.0
    """Megabytes that the projections may take on a device; a model that needs more is refused."""

    @property
    def elsewhere(self) -> bool:
        """With another random model."""
        return self.start == "own"

    @property
    def length_tells(self) -> bool:
        """From one random model to another it is always far."""
        return not self.elsewhere


Outlier = Literal["crop", "blur", "erase", "cut", "rot"]


class Outliers(ObjectivePart, frozen=True, tag="outliers"):
    """FedOV: a model with one more class, the unknown C, which it learns from images that it should not know.

    l(x, y) + outlier l(o, C) + masked l(x without y, C) + mix l(two samples mixed, C) + adversarial l(o_adv, C), with l
    the cross-entropy over C + 1 answers and o an outlier made of each sample. Of a model with BatchNorm the first two
    terms alone, in one batch.
    """

    finisher_half: ClassVar[str | None] = "vote"
    one_descent: ClassVar[bool] = False
    outlier: NotNegative = 1.0
    """How much outliers count; 0 for not at all."""
    masked: NotNegative = 1.0
    """How much it counts that without its own class a sample is unknown."""
    mix: NotNegative = 0.01
    """How much mixtures of two samples of unlike classes count, which are mixed at a layer."""
    adversarial: NotNegative = 1.0
    """How much outliers count that were changed so as to look known."""
    steps: Natural = 5
    """Steps of that change."""
    reach: Positive = 0.002
    """How far each step goes, in deviations of the job's data."""
    kinds: tuple[Outlier, ...] = ("crop", "blur", "erase", "cut", "cut", "rot", "rot")
    """What an outlier is made by, each as often as it stands here."""
    layer: str = ""
    """The layer at which samples are mixed; the first fully connected one but the last unless told."""
    start: Literal["received", "own"] = "own"
    """`own` begins with another random model of the same kind, made by shuffling the numbers of each tensor."""

    @property
    def plain(self) -> bool:
        """Whether nothing but the plain loss counts."""
        return not (self.outlier or self.masked or self.mix or self.adversarial)

    @property
    def elsewhere(self) -> bool:
        """With another random model."""
        return self.start == "own"

    @property
    def length_tells(self) -> bool:
        """From one random model to another it is always far."""
        return not self.elsewhere


class OwnObjective(Own, ObjectivePart, frozen=True, tag="own"):
    """An objective of one's own: it runs on the devices where it is installed and whose owners allow it."""

    one_descent: ClassVar[bool] = False
    keeps: bool = True  # type: ignore[misc]
    """Whether it remembers vectors from one visit to the next."""


Objective = (
    Sgd | Prox | Dyn | Scaffold | Sam | LogitAdjustment | Elmy | LocalNorms | Common | FeatureMatch | Mmd | Moon
    | Fusion | Echo | Outliers | Generated | OwnObjective
)  # fmt: skip
