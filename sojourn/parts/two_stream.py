"""Objectives with a second stream: what frozen models make of the same samples. Their graph is a part of the kit.

The gradient goes to the model that is trained, and never to an anchor. The graph is compiled for a job
(`coordinator.compiling.two_streams`) and its weights are inputs, so that a weight of 0 need not be compiled anew: a
device then takes the plain graph, and the objective is the plain loss bit for bit.
"""

from __future__ import annotations

from typing import Annotated, ClassVar, Literal, Self

import msgspec

from sojourn.parts.objective_part import ObjectivePart
from sojourn.parts.part import NotNegative  # noqa: TC001  # msgspec reads annotations

LayerName = Annotated[str, msgspec.Meta(min_length=1, max_length=200)]
"""`logits`, `penultimate`, or the name of a layer of the model."""
Anchor = Literal["received", "round"]
ROUND = "round"
"""What an objective calls the model with which the round began."""


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
        """The settings that are written into the graph: all but those that it is given as numbers."""
        return self


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
        return msgspec.structs.replace(self, weight=1.0)
