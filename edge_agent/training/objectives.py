"""What one step of training follows: the plain gradient, or a pull on it.

Written once, on vectors of shape (..., P) and with the operators that numpy and torch share: a device steps one model,
a simulation may step many at once. So nothing here imports either. And in place where it can be: for a model of a
million numbers each new vector costs more than the arithmetic on it.

With g the plain gradient, w the current model and w_in the model received:

    SGD       g
    FedProx   g + mu (w - w_in)                  Li et al. 2020
    FedDyn    g - h + a (w - w_in)               Acar et al. 2021
    SCAFFOLD  g - c_k + c                        Karimireddy et al. 2020, option II
    SAM       the gradient at w + rho g / |g|    Foret et al. 2021
    logit adjustment   the gradient at w + shift, which is tau log p in the bias of the answers and 0 elsewhere
                       (Menon et al. 2021; for each device of a fleet FedLC, Zhang et al. 2022)

Objectives that compare the model with frozen ones have a graph of their own (`edge_agent.training.second_stream`).
FedELMY trains several models at a visit: its pull is in `edge_agent.training.diversity`, its visit in
`edge_agent.training.model_pool`. Devices with a model of their own, or a part of one, are in
`edge_agent.training.own_model` (MetaFed) and `edge_agent.training.own_norms` (FedBN).
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from typing import Any, Protocol

from sojourn import parts
from sojourn.parts import own

Array = Any
"""A vector, or several: numpy's or torch's."""
Slope = Callable[[Array], tuple[Array, Array]]
"""The plain loss and its gradient at a vector, on the batch of this step; asked again, the same batch and noise.

The gradient is the asker's to overwrite.
"""

SHIFT = "shift"
"""The vector of a logit adjustment, which a device makes itself (`edge_agent.training.class_shares`)."""


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

    def direction(self, w: Array, slope: Slope) -> tuple[Array, Array]:
        """Follow the gradient."""
        return slope(w)

    def end(self, w_out: Array, steps: int, lr: float) -> Left:
        """Leave nothing."""
        del w_out, steps, lr
        return Left()


class Proximal(Plain):
    """FedProx: not too far from the model received."""

    def __init__(self, settings: parts.Prox, w_in: Array) -> None:
        self._mu, self._w_in = settings.mu, w_in

    def direction(self, w: Array, slope: Slope) -> tuple[Array, Array]:
        """Follow g + mu (w - w_in)."""
        loss, gradient = slope(w)
        gradient += _pull(w, self._w_in, self._mu)
        return loss, gradient


class Dynamic:
    """FedDyn: the pull of FedProx, and a linear term that remembers where this device went before."""

    def __init__(self, settings: parts.Dyn, w_in: Array, memory: Mapping[str, Array]) -> None:
        self._a, self._w_in, self._h = settings.a, w_in, memory.get("h", 0.0)

    def direction(self, w: Array, slope: Slope) -> tuple[Array, Array]:
        """Follow g - h + a (w - w_in)."""
        loss, gradient = slope(w)
        gradient -= self._h
        gradient += _pull(w, self._w_in, self._a)
        return loss, gradient

    def end(self, w_out: Array, steps: int, lr: float) -> Left:
        """Keep h <- h - a (w_out - w_in)."""
        del steps, lr
        return Left(memory={"h": self._h - self._a * (w_out - self._w_in)})


class Controlled:
    """SCAFFOLD: the gradient, less this device's drift and with the fleet's."""

    def __init__(self, w_in: Array, received: Mapping[str, Array], memory: Mapping[str, Array]) -> None:
        self._w_in, self._c = w_in, received["control"]
        self._c_k = memory["control"] if "control" in memory else self._c * 0.0

    def direction(self, w: Array, slope: Slope) -> tuple[Array, Array]:
        """Follow g - c_k + c."""
        loss, gradient = slope(w)
        gradient -= self._c_k
        gradient += self._c
        return loss, gradient

    def end(self, w_out: Array, steps: int, lr: float) -> Left:
        """Keep c_k' = c_k - c + (w_in - w_out) / (steps lr), send c_k' - c_k; without a step nothing changes."""
        mine = self._c_k - self._c + (self._w_in - w_out) / (steps * lr) if steps else self._c_k
        return Left({"control_delta": mine - self._c_k}, {"control": mine})


class SharpnessAware(Plain):
    """SAM: the gradient a step uphill from here; without a slope it stays where it is."""

    def __init__(self, settings: parts.Sam) -> None:
        self._rho = settings.rho

    def direction(self, w: Array, slope: Slope) -> tuple[Array, Array]:
        """Follow the gradient at w + rho g / |g|; the loss told is the one at w."""
        loss, gradient = slope(w)
        norm = (gradient * gradient).sum(axis=-1, keepdims=True) ** 0.5
        gradient *= self._rho / (norm + (norm == 0))
        gradient += w
        _, uphill = slope(gradient)
        return loss, uphill


class Adjusted(Plain):
    """Logit adjustment: the gradient with the answers' bias moved; the model itself is not."""

    def __init__(self, shift: Array) -> None:
        self._shift = shift

    def direction(self, w: Array, slope: Slope) -> tuple[Array, Array]:
        """Follow the gradient at w + shift."""
        return slope(w + self._shift)


def _pull(w: Array, anchor: Array, strength: float) -> Array:
    """strength (w - anchor)."""
    pull = w - anchor
    pull *= strength
    return pull


NAMES = (
    "sgd", "prox", "dyn", "scaffold", "sam", "logit-adjustment", "elmy", "local-norms", "common", "feature-match",
    "mmd", "moon", "fusion", "echo", "outliers", "generated",
)  # fmt: skip
"""What every device can do, as it says in its offer; what its owner installed comes on top."""


def begin(
    settings: parts.Part, w_in: Array, received: Mapping[str, Array], memory: Mapping[str, Array]
) -> Objective | None:
    """The objective of a visit, from the vectors that came with it and those kept; None if it is unknown here.

    An own objective is loaded here: whoever calls has made sure that the owner allows it.
    """
    match settings:
        case parts.Sgd():
            return Plain()
        case parts.Prox():
            return Proximal(settings, w_in)
        case parts.Dyn():
            return Dynamic(settings, w_in, memory)
        case parts.Scaffold():
            return Controlled(w_in, received, memory)
        case parts.Sam():
            return SharpnessAware(settings)
        case parts.LogitAdjustment():
            return Adjusted(received[SHIFT]) if SHIFT in received else Plain()
        case parts.OwnObjective():
            made: Objective = own.load(settings, "begin").begin(w_in, received, memory)
            return made
        case _:
            return None
