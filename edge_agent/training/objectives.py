"""The objectives of training on a device: the plain gradient, a pull on it, or a second stream with frozen models."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any, Protocol

from sojourn import parts
from sojourn.parts import TwoStreamPart, custom_code

if TYPE_CHECKING:
    import numpy as np
    from numpy.typing import NDArray

    Vector = NDArray[np.float32]


# The direction of one training step: the plain gradient, or the gradient with further terms.
#
# The objectives work on vectors of shape (..., P) and use only operators that numpy and torch share, because a device
# steps one model and a simulation may step many at once. They work in place where possible: for a model with a million
# parameters, a new vector costs more than the arithmetic.
#
# With g the plain gradient, w the current model and w_in the received model:
#
#     SGD       g
#     FedProx   g + mu (w - w_in)                  Li et al. 2020
#     FedDyn    g - h + a (w - w_in)               Acar et al. 2021
#     SCAFFOLD  g - c_k + c                        Karimireddy et al. 2020, option II
#     SAM       the gradient at w + rho g / |g|    Foret et al. 2021
#     logit adjustment   the gradient at w + shift, which is tau log p in the output bias and 0 elsewhere
#                        (Menon et al. 2021; with device-specific p: FedLC, Zhang et al. 2022)
#
# Objectives that compare the model with frozen ones use a separate graph (see `TwoStream`). FedELMY trains several
# models in a visit (`edge_agent.training.fedelmy`). Devices keep an own model, or a part of one, with MetaFed
# (`edge_agent.training.metafed`) and FedBN (`edge_agent.training.fedbn`).

Array = Any
"""One or several vectors, as a numpy array or a torch tensor."""
LossAndGrad = Callable[[Array], tuple[Array, Array]]
"""Returns the plain loss and its gradient at a vector; all calls in a step use the same batch and noise.

The caller may overwrite the gradient.
"""

SHIFT = "shift"
"""The vector of a logit adjustment, which the device computes (`edge_agent.training.trainer`)."""


@dataclass(frozen=True)
class VisitOutput:
    """The output of a visit in addition to the model: vectors to send, and vectors to store when it is accepted."""

    vectors: Mapping[str, Array] = field(default_factory=dict)
    memory: Mapping[str, Array] = field(default_factory=dict)


class Objective(Protocol):
    """The objective of one visit; `begin` creates a new one for each visit."""

    def direction(self, w: Array, loss_and_grad: LossAndGrad) -> tuple[Array, Array]:
        """Return the plain loss at w, and the direction of this step, which the caller may overwrite."""

    def end(self, w_out: Array, steps: int, lr: float) -> VisitOutput:
        """Return the output of the visit."""


class Plain:
    """SGD: the gradient itself."""

    def direction(self, w: Array, loss_and_grad: LossAndGrad) -> tuple[Array, Array]:
        """Follow the gradient."""
        return loss_and_grad(w)

    def end(self, w_out: Array, steps: int, lr: float) -> VisitOutput:
        """Return an empty output."""
        del w_out, steps, lr
        return VisitOutput()


class Proximal(Plain):
    """FedProx: a pull towards the received model."""

    def __init__(self, settings: parts.Prox, w_in: Array) -> None:
        self._mu, self._w_in = settings.mu, w_in

    def direction(self, w: Array, loss_and_grad: LossAndGrad) -> tuple[Array, Array]:
        """Follow g + mu (w - w_in)."""
        loss, gradient = loss_and_grad(w)
        gradient += _pull(w, self._w_in, self._mu)
        return loss, gradient


class Dynamic:
    """FedDyn: the pull of FedProx, and a linear term with this device's earlier updates."""

    def __init__(self, settings: parts.Dyn, w_in: Array, memory: Mapping[str, Array]) -> None:
        self._a, self._w_in, self._h = settings.a, w_in, memory.get("h", 0.0)

    def direction(self, w: Array, loss_and_grad: LossAndGrad) -> tuple[Array, Array]:
        """Follow g - h + a (w - w_in)."""
        loss, gradient = loss_and_grad(w)
        gradient -= self._h
        gradient += _pull(w, self._w_in, self._a)
        return loss, gradient

    def end(self, w_out: Array, steps: int, lr: float) -> VisitOutput:
        """Store h <- h - a (w_out - w_in)."""
        del steps, lr
        return VisitOutput(memory={"h": self._h - self._a * (w_out - self._w_in)})


class Controlled:
    """SCAFFOLD: the gradient minus this device's drift plus the fleet's."""

    def __init__(self, w_in: Array, received: Mapping[str, Array], memory: Mapping[str, Array]) -> None:
        self._w_in, self._c = w_in, received["control"]
        self._c_k = memory["control"] if "control" in memory else self._c * 0.0

    def direction(self, w: Array, loss_and_grad: LossAndGrad) -> tuple[Array, Array]:
        """Follow g - c_k + c."""
        loss, gradient = loss_and_grad(w)
        gradient -= self._c_k
        gradient += self._c
        return loss, gradient

    def end(self, w_out: Array, steps: int, lr: float) -> VisitOutput:
        """Store c_k' = c_k - c + (w_in - w_out) / (steps lr), and send c_k' - c_k; without a step, c_k' = c_k."""
        c_k = self._c_k - self._c + (self._w_in - w_out) / (steps * lr) if steps else self._c_k
        return VisitOutput({"control_delta": c_k - self._c_k}, {"control": c_k})


class SharpnessAware(Plain):
    """SAM: the gradient at a point uphill of the model, or at the model itself where the gradient is 0."""

    def __init__(self, settings: parts.Sam) -> None:
        self._rho = settings.rho

    def direction(self, w: Array, loss_and_grad: LossAndGrad) -> tuple[Array, Array]:
        """Follow the gradient at w + rho g / |g|; return the loss at w."""
        loss, gradient = loss_and_grad(w)
        norm = (gradient * gradient).sum(axis=-1, keepdims=True) ** 0.5
        gradient *= self._rho / (norm + (norm == 0))
        gradient += w
        _, uphill = loss_and_grad(gradient)
        return loss, uphill


class Adjusted(Plain):
    """Logit adjustment: the gradient with a shifted output bias; the model itself is not shifted."""

    def __init__(self, shift: Array) -> None:
        self._shift = shift

    def direction(self, w: Array, loss_and_grad: LossAndGrad) -> tuple[Array, Array]:
        """Follow the gradient at w + shift."""
        return loss_and_grad(w + self._shift)


def _pull(w: Array, anchor: Array, strength: float) -> Array:
    """Return strength (w - anchor)."""
    pull = w - anchor
    pull *= strength
    return pull


NAMES = (
    "sgd", "prox", "dyn", "scaffold", "sam", "logit-adjustment", "elmy", "local-norms", "common", "feature-match",
    "mmd", "moon", "fusion", "echo", "outliers", "generated",
)  # fmt: skip
"""The built-in objectives, which every device lists in its offer, followed by the owner's custom objectives."""


def begin(
    settings: parts.Part, w_in: Array, received: Mapping[str, Array], memory: Mapping[str, Array]
) -> Objective | None:
    """Create the objective of a visit from the received and the stored vectors; None if it is unknown.

    This imports custom objectives: the caller must have checked that the owner allows them.
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
            made: Objective = custom_code.load(settings, "begin").begin(w_in, received, memory)
            return made
        case _:
            return None


# Objectives with a second stream: which graph a visit trains with, and which frozen models are its inputs.
#
# The term itself is part of the kit's graph (`coordinator.compiling.two_streams`). With a weight of 0, or if a frozen
# model is missing, the visit uses the plain graph, so that the result equals plain SGD bit for bit.


class TwoStream(Plain):
    """The gradient of the kit's two-stream graph, with this visit's frozen models and scalars."""

    def __init__(self, anchors: Sequence[Vector], scalars: Sequence[float]) -> None:
        """`anchors` are complete vectors, including state."""
        self.anchors, self.scalars = tuple(anchors), tuple(scalars)


def begin_two_stream(
    settings: TwoStreamPart, start: Vector, received: Mapping[str, Vector], memory: Mapping[str, Vector]
) -> Plain:
    """Create the objective of a visit from the model it starts with and further vectors by name, all with state."""
    known = {"received": start.copy(), **received, **memory}
    anchors = [known[name] for name in settings.anchors if name in known]
    if len(anchors) < len(settings.anchors) or (settings.scalars and not settings.scalars[0]):
        return Plain()
    return TwoStream(anchors, settings.scalars)
