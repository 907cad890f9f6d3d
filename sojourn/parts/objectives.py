"""What one device minimises: a pull on the gradient. The arithmetic is in `edge_agent.training.objectives`."""

from __future__ import annotations

from typing import Annotated, ClassVar, Literal

import msgspec

from sojourn.parts.part import BelowOne, Chance, Count, Natural, NotNegative, Outcome, Own, Part, Positive

Phase = Literal["warm-up", "begin", "accumulate", "personalise"]
"""Where a job of MetaFed is. warm-up: every device alone. begin: on the ring, with a model that no device has had yet.
accumulate: on the ring. personalise: every device alone, with what the last device of the ring made."""
Threshold = Annotated[float, msgspec.Meta(ge=-1, le=2)]


class ObjectivePart(Part, frozen=True):
    """What the coordinator and an edge server know of an objective."""

    receives: ClassVar[tuple[str, ...]] = ()
    """The job's vectors that travel to a device besides the model."""
    returns: ClassVar[tuple[str, ...]] = ()
    """The vectors that a device sends back besides its model; an edge server sums them over a tour."""
    keeps: ClassVar[bool] = False
    """Whether a device remembers vectors from one visit to the next."""
    server_half: ClassVar[str | None] = None
    """The name of the aggregator that it means nothing without."""
    plain_sgd: ClassVar[bool] = False
    """Whether it is right for plain SGD alone: no momentum, no other optimiser."""
    one_descent: ClassVar[bool] = True
    """Whether a visit is one descent from the model received, so that several visits can step at once."""
    outcome: ClassVar[Outcome] = "one model"
    """Whether a device ends with a model of its own."""

    @property
    def elsewhere(self) -> bool:
        """Whether a visit may start somewhere else than at the model received: then its way says little."""
        return False

    @property
    def length_tells(self) -> bool:
        """Whether the length of an update says something beside those of others: the gate compares them."""
        return True

    def passes(self, epochs: int, earlier: int) -> int:
        """How often a visit goes through the samples; `earlier`: the visits that the model had on this tour before."""
        del earlier
        return epochs

    def learns_from(self, samples: int) -> int:
        """How many of a device's samples are trained on; the others are held out."""
        return samples


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


class LocalNorms(ObjectivePart, frozen=True, tag="local-norms"):
    """FedBN: the plain loss; what BatchNorm layers hold stays on the device, all else is shared."""

    keeps: ClassVar[bool] = True
    one_descent: ClassVar[bool] = False
    outcome: ClassVar[Outcome] = "own models"
    test: BelowOne = 0.2
    """The share of a device's samples that its own model is tested on and not trained on; 0 trains on all, and then
    nobody says how good the devices' own models are."""

    def learns_from(self, samples: int) -> int:
        """All but the test part."""
        return kept_for_training(samples, 0.0, self.test)


class Common(ObjectivePart, frozen=True, tag="common"):
    """MetaFed: a device goes on from its own model, drawn to the features of the one received; or from that one.

    A device whose own model has more than `threshold` right answers on its validation part trains on
    l + lam |phi(w, x) - phi(u, x)|^2, with u the model received and phi what the last layer sees; any other starts
    from u and trains on l alone.
    """

    keeps: ClassVar[bool] = True
    one_descent: ClassVar[bool] = False
    outcome: ClassVar[Outcome] = "own models"
    lam: NotNegative = 1.0
    """How strongly its features are drawn to those of the model received (lambda_0); 0 for not at all."""
    threshold: Threshold = 0.6
    """A device with more right answers than this share keeps its own model; below 0 all do, above 1 none."""
    floor: Chance = 0.5
    """When devices personalise, a model received that is no better than their own and below this share is ignored."""
    warmup: Count = 30
    """Epochs that each device trains alone before the ring."""
    share_norms: bool = True
    """Whether a device that takes the model received takes its BatchNorm layers too, or keeps its own."""
    validation: BelowOne = 0.3
    """The share of the samples that decides which model is better; 0 keeps no own model unless `threshold` is below 0."""
    test: BelowOne = 0.3
    """The share of the samples that a device's own model is tested on; 0 for none."""
    phase: Phase = "warm-up"
    """Where the job is; the schedule says that, not a job file."""

    @property
    def elsewhere(self) -> bool:
        """On the ring: with the device's own model."""
        return self.phase in ("begin", "accumulate")

    @property
    def length_tells(self) -> bool:
        """Not where a device hands on a model of its own: that is as far from the one received as it may be."""
        return not self.elsewhere

    @property
    def alone(self) -> bool:
        """Whether what comes of the visit stays on the device."""
        return self.phase in ("warm-up", "personalise")

    def passes(self, epochs: int, earlier: int) -> int:
        """So many, or those of the warm-up."""
        del earlier
        return self.warmup if self.phase == "warm-up" else epochs

    def learns_from(self, samples: int) -> int:
        """All but the validation and the test part."""
        return kept_for_training(samples, self.validation, self.test)


class OwnObjective(Own, ObjectivePart, frozen=True, tag="own"):
    """An objective of one's own: it runs on the devices where it is installed and whose owners allow it."""

    one_descent: ClassVar[bool] = False
    keeps: bool = True  # type: ignore[misc]
    """Whether it remembers vectors from one visit to the next."""


Objective = Sgd | Prox | Dyn | Scaffold | Sam | Elmy | LocalNorms | Common | OwnObjective


def held_out(samples: int, *shares: float) -> tuple[int, ...]:
    """How many samples each share holds out; none at all where nothing would be left to train on."""
    each = tuple(int(share * samples + 0.5) for share in shares)
    return each if sum(each) < samples else (0,) * len(each)


def kept_for_training(samples: int, *shares: float) -> int:
    """How many samples are trained on, where these shares are held out."""
    return samples - sum(held_out(samples, *shares))
