"""Settings of objectives with a second stream, which compare the trained model with frozen ones on the same samples.

Only the trained model gets a gradient, never an anchor. The graph is part of the kit
(`coordinator.compiling.two_streams`), and the objective's weights are inputs of it. If the weight is 0, a device runs
the plain graph, so that the objective is the plain loss bit for bit.
"""

from __future__ import annotations

from typing import Annotated, ClassVar, Literal, Self

import msgspec

from sojourn.parts.part import Natural, NotNegative, ObjectivePart, Positive

LayerName = Annotated[str, msgspec.Meta(min_length=1, max_length=200)]
"""`logits`, `penultimate`, or the name of a layer of the model."""
Anchor = Literal["received", "round"]
ROUND = "round"
"""The name of the model at the start of the round."""
OWN = "own"
"""The name of the model that the device returned last."""


class TwoStreamPart(ObjectivePart, frozen=True):
    """The properties of an objective with a second stream that compilers and devices use."""

    one_descent: ClassVar[bool] = False
    layer: LayerName = "penultimate"
    """The compared values: `logits` (the model's outputs), `penultimate` (the input of its last linear layer), or the
    output of a layer, by its name in the model. Example: `"encoder"`."""
    anchor: Anchor = "received"
    """The frozen model: the one that the visit received (`received`), or the one at the start of the round (`round`),
    which differs from the second device of a tour on."""

    @property
    def scalars(self) -> tuple[float, ...]:
        """The scalar inputs of the graph at every step; if the first is 0, devices run the plain graph."""
        return ()

    @property
    def anchors(self) -> tuple[str, ...]:
        """The frozen models by name: `received`, `round`, or `own`, the model that the device returned last."""
        return (self.anchor,)

    @property
    def receives(self) -> tuple[str, ...]:  # type: ignore[override]  # depends on the settings
        """The round's model, if it is the anchor."""
        return (ROUND,) if self.anchor == ROUND else ()

    @property
    def compiled(self) -> Self:
        """The settings that are compiled into the graph, without its inputs (models and scalars)."""
        return msgspec.structs.replace(self, anchor="received")


class WeightedPart(TwoStreamPart, frozen=True):
    """An objective that adds a weighted distance to the loss."""

    weight: NotNegative = 1.0

    @property
    def scalars(self) -> tuple[float, ...]:
        """The weight."""
        return (self.weight,)

    @property
    def compiled(self) -> Self:
        """Without the weight."""
        return msgspec.structs.replace(super().compiled, weight=1.0)


class FeatureMatch(WeightedPart, frozen=True, tag="feature-match"):
    """loss + weight MSE(phi(w, x), phi(anchor, x)): features stay near an anchor's."""

    weight: NotNegative = 1.0
    """The weight of the distance to the anchor's features; 0 is the plain loss."""


class Mmd(WeightedPart, frozen=True, tag="mmd"):
    """FedMMD: loss + weight max(floor, MMD2(f(anchor, x), f(w, x))), a distance between two sets of rows."""

    layer: LayerName = "logits"
    """The compared values: `logits` (the model's outputs), `penultimate` (the input of its last linear layer), or the
    output of a layer, by its name in the model. Example: `"penultimate"`."""
    weight: NotNegative = 0.1
    """The weight of the distance to the anchor's rows (lambda); 0 is FedAvg."""
    distance: Literal["mmd", "mmd-relative", "l2"] = "mmd"
    """The distance. `mmd`: 19 Gaussian kernels of fixed widths. `mmd-relative`: 5 kernels whose widths depend on the
    mean distance of the batch's rows. `l2`: half the sum of squared differences from the anchor's rows, with a usual
    weight of 0.001."""
    floor: NotNegative = 1e-4
    """Distances below this have no gradient; not used by `l2`."""


class Moon(TwoStreamPart, frozen=True, tag="moon"):
    """MOON: loss + mu CE([cos(p, p_anchor), cos(p, p_own)] / tau, 0), with p_own from the device's previous model.

    On a device's first visit, without a previous model, it is the plain loss.
    """

    keeps: ClassVar[bool] = True
    keeps_model: ClassVar[bool] = True
    mu: NotNegative = 5.0
    """The weight of the contrastive loss, which draws representations to the anchor's and away from the device's
    previous ones; 0 is FedAvg with the projection."""
    tau: Positive = 0.5
    """The temperature of the contrastive loss; a smaller one emphasises the nearer of the two."""
    projection: Natural = 256
    """The size of the representation, which two linear layers before the model's last one compute; they are part of the
    model. 0 compares the model's `layer` without additional layers."""

    @property
    def scalars(self) -> tuple[float, ...]:
        """The weight and the temperature."""
        return self.mu, self.tau

    @property
    def anchors(self) -> tuple[str, ...]:
        """The anchor, and the device's previous model."""
        return self.anchor, OWN

    @property
    def compiled(self) -> Self:
        """Without the weight and the temperature."""
        return msgspec.structs.replace(super().compiled, mu=1.0, tau=1.0)


class Fusion(TwoStreamPart, frozen=True, tag="fusion"):
    """FedFusion: the loss of h(F(E(w, x), E(anchor, x))), where the fusion F is trained and part of the model."""

    layer: LayerName = "trunk"
    """Where trunk E ends and head h begins: `trunk` is the last feature map of an image model, and the input of the
    last linear layer of other models; or the output of a layer, by its name in the model. Example: `"blocks"`."""
    operator: Literal["single", "multi", "conv"] = "multi"
    """The fusion. `single`: gamma g + (1 - gamma) l with one gamma. `multi`: one gamma for each channel. `conv`: a 1x1
    convolution of the concatenated features, which starts as l."""
    evaluate: Literal["fused", "same"] = "fused"
    """How a round's model is evaluated: `fused` with the trunk that its devices started from, as in the paper, or with
    the `same` model's trunk, as a release ships it."""

    @property
    def compiled(self) -> Self:
        """Without settings that do not affect training."""
        return msgspec.structs.replace(super().compiled, evaluate="fused")
