"""Aggregators that take a step as an optimiser does, with d = mean - w for the gradient.

FedAvgM: Hsu, Qi, Brown, "Measuring the Effects of Non-Identical Data Distribution for Federated Visual Classification",
2019. FedAdagrad, FedAdam, FedYogi: Reddi et al., "Adaptive Federated Optimization", ICLR 2021: no bias correction,
v_0 = tau^2, m_0 = 0.

A round in which nobody has a say is no step: momentum and second moments neither decay nor grow.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

import numpy as np

from coordinator.aggregators.contributions import State, Vector, mean_of, stepped, with_weight
from sojourn.parts import Adagrad, Adam, AvgM, Yogi

if TYPE_CHECKING:
    from collections.abc import Sequence

    from numpy.typing import NDArray

    from coordinator.aggregators.contributions import Contribution, MergeContext, Wide


def avgm(
    settings: AvgM, previous: Vector, contributions: Sequence[Contribution], state: State, _: MergeContext
) -> tuple[Vector, State]:
    """v <- momentum v + d; w <- w + lr v. With `restart`, v <- d where d points against v."""
    voices = with_weight(contributions, settings.weighting)
    if not voices:
        return previous, state
    whole, before = mean_of(voices, settings.weighting), state.get("momentum", np.zeros_like(previous))

    def rule(mean: Wide, w: Wide, kept: dict[str, Wide]) -> tuple[Wide, dict[str, Wide]]:
        old = settings.momentum * kept["momentum"]
        # Written so that lr = 1 without momentum gives the mean itself, not w + (mean - w).
        return (1 - settings.lr) * w + settings.lr * (mean + old), {"momentum": old + (mean - w)}

    model, kept = stepped(rule, whole, previous, {"momentum": _kept_up(settings, whole, previous, before, voices)})
    return model, {**state, **kept}


def _kept_up(settings: AvgM, whole: Wide, previous: Vector, momentum: Vector, voices: Sequence[Contribution]) -> Vector:
    """The momentum that a merge does not end."""
    if not settings.restart:
        return momentum
    if settings.restart is True:
        return np.zeros_like(momentum) if float((whole - previous) @ momentum) < 0 else momentum
    votes = sum(_against(voice.vector, previous, momentum).astype(np.int32) for voice in voices)
    ended = _against(whole, previous, momentum) & (votes >= int(settings.against * len(voices)))
    return np.where(ended, np.float32(0), momentum)


def _against(vector: Vector | Wide, previous: Vector, momentum: Vector) -> NDArray[np.bool_]:
    """Where the way from `previous` to a vector points against the momentum; by comparing, which never underflows."""
    back = ((momentum > 0) & (vector < previous)) | ((momentum < 0) & (vector > previous))
    return np.asarray(back)


def adaptive(
    settings: Adagrad | Adam | Yogi,
    previous: Vector,
    contributions: Sequence[Contribution],
    state: State,
    _: MergeContext,
) -> tuple[Vector, State]:
    """m <- beta1 m + (1 - beta1) d; v as each has it; w <- w + lr m / (sqrt(v) + tau).

    Kept as `root`: sqrt(v), which has the range of the models' own numbers. v itself would leave that of float32 with
    differences beyond 1e19 or below 1e-19.
    """
    voices = with_weight(contributions, settings.weighting)
    if not voices:
        return previous, state

    def rule(mean: Wide, w: Wide, kept: dict[str, Wide]) -> tuple[Wide, dict[str, Wide]]:
        d = mean - w
        m = settings.beta1 * kept["momentum"] + (1 - settings.beta1) * d
        root = np.sqrt(_second(settings, np.square(kept["root"]), np.square(d)))
        return w + settings.lr * m / (root + settings.tau), {"momentum": m, "root": root}

    first = np.broadcast_to(np.float64(settings.tau), previous.shape)
    kept = {"momentum": state.get("momentum", np.zeros_like(previous)), "root": state.get("root", first)}
    model, after = stepped(rule, mean_of(voices, settings.weighting), previous, kept)
    return model, {**state, **after}


def _second(settings: Adagrad | Adam | Yogi, v: Wide, squares: Wide) -> Wide:
    """The next v, given d^2."""
    match settings:
        case Adagrad():
            return v + squares
        case Adam(beta2=beta2):
            return beta2 * v + (1 - beta2) * squares
        case Yogi(beta2=beta2):
            return v - (1 - beta2) * squares * np.sign(v - squares)
