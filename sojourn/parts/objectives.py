"""What one device minimises: a pull on the gradient. The arithmetic is in `edge_agent.training.objectives`."""

from __future__ import annotations

from typing import ClassVar, Literal

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


class OwnObjective(Own, ObjectivePart, frozen=True, tag="own"):
    """An objective of one's own: it runs on the devices where it is installed and whose owners allow it."""

    one_descent: ClassVar[bool] = False
    keeps: bool = True  # type: ignore[misc]
    """Whether it remembers vectors from one visit to the next."""


Objective = (
    Sgd | Prox | Dyn | Scaffold | Sam | Elmy | LocalNorms | Common | FeatureMatch | Mmd | Moon | Fusion | OwnObjective
)
