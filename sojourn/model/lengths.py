"""How long the vectors are that travel beside a model: as long as it, unless the objective says otherwise."""

from __future__ import annotations

from typing import TYPE_CHECKING

from sojourn.model.generator import GeneratorLayout
from sojourn.parts import Echo, Generated
from sojourn.protocol.spec import ModelSpec, TensorSpec

if TYPE_CHECKING:
    from sojourn.parts import Objective
    from sojourn.protocol.spec import Kit

TOLD_BYTES = 256 << 20
"""No vector that a device tells of itself is larger."""


def spec_of_vector(name: str, objective: Objective, kit: Kit) -> ModelSpec:
    """The shape of a vector that an objective receives, returns or tells."""
    length = length_of(name, objective, kit)
    return kit.model if length is None else flat(length)


def length_of(name: str, objective: Objective, kit: Kit) -> int | None:
    """How many numbers such a vector has; None: as many as the model."""
    if isinstance(objective, Echo) and name in objective.tells:
        return sum(told_numbers(objective, kit)) + len(kit.classes)
    if isinstance(objective, Generated) and name in objective.tells:
        return len(kit.classes)
    if isinstance(objective, Generated) and name in objective.receives:
        return GeneratorLayout.of(objective, kit).size
    return None


def told_numbers(objective: Echo, kit: Kit) -> list[int]:
    """How many numbers are told of each layer: d x d of a whole projection, else d of each direction."""
    layers = kit.more.taps.layers if kit.more and kit.more.taps else ()
    widths = (layer.inputs for layer in layers[:-1])  # the last layer does not move
    return [width * (min(objective.rank, width) or width) for width in widths]


def flat(length: int) -> ModelSpec:
    """The shape of a vector that is no model: its numbers in a row."""
    return ModelSpec((TensorSpec("", (length,)),))
