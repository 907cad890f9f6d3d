"""What one step of training follows: the plain gradient, or a pull on it.

Written once, on vectors of shape (..., P) and with the operators that numpy and torch share: a device steps one model,
a simulation may step many at once. So nothing here imports either.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from typing import Any, Protocol

from sojourn import parts

Array = Any
"""A vector, or several: numpy's or torch's."""
Slope = Callable[[Array], tuple[Array, Array]]
"""The plain loss and its gradient at a vector, on the batch of this step."""


@dataclass(frozen=True)
class Left:
    """What a visit leaves besides its model: vectors that travel, and what the device keeps if it is accepted."""

    vectors: Mapping[str, Array] = field(default_factory=dict)
    memory: Mapping[str, Array] = field(default_factory=dict)


class Objective(Protocol):
    """One visit's objective; made anew for each visit by `begin`."""

    def direction(self, w: Array, slope: Slope) -> tuple[Array, Array]:
        """The plain loss at w, and the direction of this step, which the caller may overwrite."""

    def end(self, w_out: Array, steps: int, lr: float) -> Left:
        """What is left when the visit is over."""


class Plain:
    """SGD: the gradient itself."""

    def __init__(
        self, settings: parts.Sgd, w_in: Array, received: Mapping[str, Array], memory: Mapping[str, Array]
    ) -> None:
        """Nothing is needed besides the gradient."""

    def direction(self, w: Array, slope: Slope) -> tuple[Array, Array]:
        """Follow the gradient."""
        return slope(w)

    def end(self, w_out: Array, steps: int, lr: float) -> Left:
        """Leave nothing."""
        del w_out, steps, lr
        return Left()


Maker = Callable[[Any, Array, Mapping[str, Array], Mapping[str, Array]], Objective]
_MAKERS: dict[type[parts.Part], Maker] = {parts.Sgd: Plain}
NAMES: tuple[str, ...] = tuple(str(form.__struct_config__.tag) for form in _MAKERS)
"""What this device can do, as it says in its offer."""


def begin(
    settings: parts.Part, w_in: Array, received: Mapping[str, Array], memory: Mapping[str, Array]
) -> Objective | None:
    """The objective of a visit, from the vectors that came with it and those kept; None if it is unknown here."""
    maker = _MAKERS.get(type(settings))
    return maker(settings, w_in, received, memory) if maker else None
