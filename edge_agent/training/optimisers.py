"""How a step is made of a direction: SGD with momentum, or Adam, as torch does them; started anew at each visit.

Like `edge_agent.training.objectives`, written with the operators that numpy and torch share, for one model or for many.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, Protocol

if TYPE_CHECKING:
    from sojourn.parts import Training

    Array = Any

BETA1, BETA2, EPSILON = 0.9, 0.999, 1e-8


class Optimiser(Protocol):
    """Moves a model; weight decay is an L2 term: it is added to the direction."""

    def move(self, w: Array, direction: Array) -> None:
        """Make one step, in place. The direction is used up."""


class MomentumOptimiser:
    """v <- momentum v + direction; w <- w - lr v."""

    def __init__(self, training: Training) -> None:
        self._training = training
        self._velocity: Array = None

    def move(self, w: Array, direction: Array) -> None:
        """Make one step."""
        training = self._training
        if training.weight_decay:
            direction += training.weight_decay * w
        if training.momentum:
            self._velocity = direction * 0.0 if self._velocity is None else self._velocity
            self._velocity *= training.momentum
            self._velocity += direction
            direction[...] = self._velocity
        direction *= training.lr
        w -= direction


class AdamOptimiser:
    """m and v are running means of the direction and of its square; w <- w - lr m' / (sqrt(v') + epsilon).

    m' and v' are m and v over 1 - beta^step, which undoes their start at zero.
    """

    def __init__(self, training: Training) -> None:
        self._training = training
        self._m: Array = None
        self._v: Array = None
        self._step = 0

    def move(self, w: Array, direction: Array) -> None:
        """Make one step."""
        if self._training.weight_decay:
            direction += self._training.weight_decay * w
        if not self._step:
            self._m, self._v = direction * 0.0, direction * 0.0
        self._step += 1
        self._m *= BETA1
        self._m += (1 - BETA1) * direction
        direction *= direction
        direction *= 1 - BETA2
        self._v *= BETA2
        self._v += direction
        root = self._v**0.5
        root /= (1 - BETA2**self._step) ** 0.5
        root += EPSILON
        direction[...] = self._m
        direction /= root
        direction *= self._training.lr / (1 - BETA1**self._step)
        w -= direction


def begin(training: Training) -> Optimiser:
    """The optimiser of one descent."""
    return AdamOptimiser(training) if training.optimiser == "adam" else MomentumOptimiser(training)
