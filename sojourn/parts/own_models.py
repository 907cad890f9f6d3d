"""Objectives of devices that keep a model, or a part of one, to themselves: FedBN's and MetaFed's.

What they do is in `edge_agent.training.own_norms` and `edge_agent.training.own_model`.
"""

from __future__ import annotations

from typing import Annotated, ClassVar, Literal

import msgspec

from sojourn.parts.objective_part import ObjectivePart, kept_for_training
from sojourn.parts.part import BelowOne, Chance, Count, NotNegative, Outcome  # noqa: TC001  # msgspec reads annotations
from sojourn.parts.two_stream import FeatureMatch, TwoStreamPart

Phase = Literal["warm-up", "begin", "accumulate", "personalise"]
"""Where a job of MetaFed is. warm-up: every device alone. begin: on the ring, with a model that no device has had yet.
accumulate: on the ring. personalise: every device alone, with what the last device of the ring made."""
Threshold = Annotated[float, msgspec.Meta(ge=-1, le=2)]


class LocalNorms(ObjectivePart, frozen=True, tag="local-norms"):
    """FedBN: the plain loss; what BatchNorm layers hold stays on the device, all else is shared."""

    keeps: ClassVar[bool] = True
    one_descent: ClassVar[bool] = False
    outcome: ClassVar[Outcome] = "own models"
    shared: ClassVar[str] = "the shared part, with the BatchNorm layers of the start"
    test: BelowOne = 0.2
    """The share of a device's samples that its own model is tested on and not trained on; 0 trains on all, and then
    nobody says how good the devices' own models are."""

    def learns_from(self, samples: int) -> int:
        """All but the test part."""
        return kept_for_training(samples, 0.0, self.test)


class Common(TwoStreamPart, frozen=True, tag="common"):
    """MetaFed: a device goes on from its own model, drawn to the features of the one received; or from that one.

    A device whose own model has more than `threshold` right answers on its validation part trains on
    l + lam MSE(phi(w, x), phi(u, x)), with u the model received and phi what the `layer` gives; any other starts from u
    and trains on l alone.
    """

    keeps: ClassVar[bool] = True
    one_descent: ClassVar[bool] = False
    outcome: ClassVar[Outcome] = "own models"
    shared: ClassVar[str] = "that of the ring's last device"
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
    """The share of the samples that decides which model is better; 0 for none, and then no device keeps its own model
    unless `threshold` is below 0."""
    test: BelowOne = 0.3
    """The share of the samples that a device's own model is tested on; 0 for none."""
    phase: Phase = "warm-up"
    """Where the job is; the schedule says that, not a job file."""

    @property
    def receives(self) -> tuple[str, ...]:  # type: ignore[override]  # as of all with a second stream
        """Nothing besides the model."""
        return ()

    @property
    def scalars(self) -> tuple[float, ...]:
        """The strength of the pull; a device works out its own when it personalises."""
        return (self.lam,)

    @property
    def compiled(self) -> TwoStreamPart:  # type: ignore[override]  # of another objective, whose term is the same
        """Features drawn to those of one frozen model."""
        return FeatureMatch(layer=self.layer)

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
