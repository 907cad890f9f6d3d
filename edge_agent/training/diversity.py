"""FedELMY's pull on the gradient: away from the models of the pool, and not too far from the first of them.

l(w) - alpha s d1 + beta s d2, where d1 is the mean squared distance of w to the models of the pool, and
d2 = |w - m_0|^2. The gradient of d1 is 2 (w - mean of the pool), so the pool itself is not needed.

Like `edge_agent.training.objectives`, written on vectors of shape (..., P) with the operators that numpy and torch
share.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from edge_agent.training.objectives import Plain

if TYPE_CHECKING:
    from edge_agent.training.objectives import Array, Slope
    from sojourn import parts

_ORDERS = range(-44, 39)
"""The orders of magnitude of float32."""


class Diverse(Plain):
    """The objective of one model that is to join the pool."""

    def __init__(self, settings: parts.Elmy, first: Array, mean: Array) -> None:
        self._alpha, self._beta = settings.alpha, settings.beta
        self._first, self._mean = first, mean

    def direction(self, w: Array, slope: Slope) -> tuple[Array, Array]:
        """Follow g - alpha s 2 (w - mean) + beta s 2 (w - m_0)."""
        loss, gradient = slope(w)
        far = w - self._first
        scale = distance_scale(loss, (far * far).sum(-1))
        away = w - self._mean
        away *= self._alpha
        far *= self._beta
        far -= away
        far *= 2.0 * scale[..., None]  # in place: it keeps its type, whatever the scale's
        gradient += far
        return loss, gradient


def distance_scale(loss: Any, d2: Any) -> Any:
    """What brings d2 one order of magnitude below the loss: s = min(1, 10^(floor(log10 l) - 1 - floor(log10 d2))).

    l = 6.02 and d2 = 45 give 0.01, so 45 counts as 0.45. Where d2 or l is 0, s = 1. A constant to the gradient.
    """
    exponent = _order(loss) - 1 - _order(d2)
    return 10.0 ** (exponent * (exponent < 0) * (loss > 0) * (d2 > 0))


def _order(value: Any) -> Any:
    """floor(log10 value), by comparison: a rounded logarithm errs at powers of ten, and this takes one or many."""
    return sum(value >= 10.0**order for order in _ORDERS) + _ORDERS.start - 1
