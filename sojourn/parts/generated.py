"""FedGen's device half: samples that a generator makes for the model's last layer."""

from __future__ import annotations

from typing import ClassVar

from sojourn.parts.objective_part import ObjectivePart
from sojourn.parts.part import Count, NotNegative, Share  # noqa: TC001  # msgspec reads annotations


class Generated(ObjectivePart, frozen=True, tag="generated"):
    """FedGen: l(f(x), y) + a_t l(h(z'), y') + b_t KL(h(z) || f(x)), with z = G(y) and z' = G(y') for drawn classes y'.

    h is the model's last layer, G the generator that came with the model, and KL's first side is held fixed. In the
    job's first round it is the plain loss. a_t = a decay^t, and so b_t; neither falls below `least`.
    """

    receives: ClassVar[tuple[str, ...]] = ("generator",)
    tells: ClassVar[tuple[str, ...]] = ("class-counts",)
    consent: ClassVar[str | None] = "class-counts"
    finisher_half: ClassVar[str | None] = "generator"
    one_descent: ClassVar[bool] = False
    a: NotNegative = 10.0
    """How much made-up inputs of the last layer count; 0 for not at all."""
    b: NotNegative = 10.0
    """How much it counts that the model answers as its last layer does for made-up inputs of the same class; 0 for not
    at all."""
    decay: Share = 0.98
    """By how much both shrink from round to round."""
    least: NotNegative = 1e-4
    """Below which neither shrinks, unless it is 0."""
    made: Count = 32
    """How many made-up inputs a step takes."""
    noise: Count = 32
    """Numbers that the generator makes an input of, besides the class."""
    hidden: Count = 256
    """Width of the generator's inner layer."""

    def weights(self, rounds_before: int) -> tuple[float, float]:
        """a_t and b_t after so many rounds; before the first both are 0."""
        if not rounds_before:
            return 0.0, 0.0
        shrunk = self.decay**rounds_before
        a, b = (max(self.least, each * shrunk) if each else 0.0 for each in (self.a, self.b))
        return a, b
