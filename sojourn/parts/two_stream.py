"""Objectives with a second stream: what frozen models make of the same samples. Their graph is a part of the kit.

The gradient goes to the model that is trained, and never to an anchor. The graph is compiled for a job
(`coordinator.compiling.two_streams`) and its weights are inputs, so that a weight of 0 need not be compiled anew: a
device then takes the plain graph, and the objective is the plain loss bit for bit.
"""

from __future__ import annotations

from typing import Annotated, ClassVar, Literal, Self

import msgspec

from sojourn.parts.objective_part import ObjectivePart
from sojourn.parts.part import Natural, NotNegative, Positive  # noqa: TC001  # msgspec reads annotations

LayerName = Annotated[str, msgspec.Meta(min_length=1, max_length=200)]
"""`logits`, `penultimate`, or the name of a layer of the model."""
Anchor = Literal["received", "round"]
ROUND = "round"
"""What an objective calls the model with which the round began."""
OWN = "own"
"""What it calls the model that the device sent back last."""


class TwoStreamPart(ObjectivePart, frozen=True):
    """What compilers and devices ask of an objective with a second stream."""

    one_descent: ClassVar[bool] = False
    layer: LayerName = "penultimate"
    """What is compared: `logits` (the model's answers), `penultimate` (what goes into its last linear layer), or what a
    layer gives, by its name in the model. Example: `"encoder"`."""
    anchor: Anchor = "received"
    """The frozen model: the one that the visit was handed (`received`), or the one with which the round began
    (`round`), which differs from the second device of a tour on."""

    @property
    def scalars(self) -> tuple[float, ...]:
        """The numbers that the graph is given at every step; if the first is 0, the plain graph is taken."""
        return ()

    @property
    def anchors(self) -> tuple[str, ...]:
        """The frozen models by name: `received`, `round` or `own`, the model that the device sent back last."""
        return (self.anchor,)

    @property
    def receives(self) -> tuple[str, ...]:  # type: ignore[override]  # of a class with settings
        """The round's model travels along where it is the anchor."""
        return (ROUND,) if self.anchor == ROUND else ()

    @property
    def compiled(self) -> Self:
        """The settings that are written into the graph: not which models it is given, nor with which numbers."""
        return msgspec.structs.replace(self, anchor="received")


class FeatureMatch(TwoStreamPart, frozen=True, tag="feature-match"):
    """loss + weight MSE(phi(w, x), phi(anchor, x)): a model whose features stay near an anchor's."""

    weight: NotNegative = 1.0
    """How strongly features are held near the anchor's; 0 is the plain loss."""

    @property
    def scalars(self) -> tuple[float, ...]:
        """The weight."""
        return (self.weight,)

    @property
    def compiled(self) -> Self:
        """Without the weight."""
        return msgspec.structs.replace(super().compiled, weight=1.0)


class Mmd(TwoStreamPart, frozen=True, tag="mmd"):
    """FedMMD: loss + weight max(floor, MMD2(f(anchor, x), f(w, x))), the distance of two sets of rows."""

    layer: LayerName = "logits"
    """What is compared: `logits` (the model's answers), `penultimate` (what goes into its last linear layer), or what a
    layer gives, by its name in the model. Example: `"penultimate"`."""
    weight: NotNegative = 0.1
    """How strongly the rows are held near the anchor's (lambda); 0 is FedAvg."""
    distance: Literal["mmd", "mmd-relative", "l2"] = "mmd"
    """`mmd`: 19 Gaussian kernels of fixed widths. `mmd-relative`: 5 kernels whose widths go by the mean distance of the
    batch's rows. `l2`: half the sum of squares from each row to the anchor's own, for which 0.001 is a usual weight."""
    floor: NotNegative = 1e-4
    """A distance below it has no gradient; not for `l2`."""

    @property
    def scalars(self) -> tuple[float, ...]:
        """The weight."""
        return (self.weight,)

    @property
    def compiled(self) -> Self:
        """Without the weight."""
        return msgspec.structs.replace(super().compiled, weight=1.0)


class Moon(TwoStreamPart, frozen=True, tag="moon"):
    """MOON: loss + mu CE([cos(p, p_anchor), cos(p, p_own)] / tau, 0), with p_own of the device's own last model.

    A device's first visit has no last model: then it is the plain loss.
    """

    keeps: ClassVar[bool] = True
    keeps_model: ClassVar[bool] = True
    mu: NotNegative = 5.0
    """How strongly representations are drawn to the anchor's and away from the device's last; 0 is FedAvg with the
    projection."""
    tau: Positive = 0.5
    """The temperature of the comparison: the smaller, the more the nearer of the two counts."""
    projection: Natural = 256
    """Numbers of the representation: two linear layers before the model's last one make them, and are part of the
    model. 0 compares the model's own `layer`, and leaves it as it is."""

    @property
    def scalars(self) -> tuple[float, ...]:
        """The weight and the temperature."""
        return self.mu, self.tau

    @property
    def anchors(self) -> tuple[str, ...]:
        """The global model, and the device's own."""
        return self.anchor, OWN

    @property
    def compiled(self) -> Self:
        """Without the weight and the temperature."""
        return msgspec.structs.replace(super().compiled, mu=1.0, tau=1.0)


class Fusion(TwoStreamPart, frozen=True, tag="fusion"):
    """FedFusion: the loss of h(F(E(w, x), E(anchor, x))), where the fusion F is learnt and a part of the model."""

    layer: LayerName = "trunk"
    """Where trunk E and head h meet: `trunk` is the last map of an image model before it is flattened, and of others
    what goes into the last linear layer; or what a layer gives, by its name in the model. Example: `"blocks"`."""
    operator: Literal["single", "multi", "conv"] = "multi"
    """`single`: gamma g + (1 - gamma) l with one number. `multi`: with one for each channel. `conv`: a 1x1 convolution
    of both, side by side, which starts as l alone."""
    evaluate: Literal["fused", "same"] = "fused"
    """Which model a round is tested as: `fused`, with the trunk that its devices began with, as in the paper, or
    `same`, with its own, which is what a release ships."""

    @property
    def compiled(self) -> Self:
        """Without what is not about training."""
        return msgspec.structs.replace(super().compiled, evaluate="fused")
