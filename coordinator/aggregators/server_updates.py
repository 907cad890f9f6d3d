"""The update rules of the papers' aggregators: server optimisers, FedDyn, SCAFFOLD, IDA and FedFusion."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
from numpy.typing import NDArray

from coordinator.aggregators.contributions import (
    Contribution,
    MergeContext,
    State,
    Vector,
    Wide,
    mean_of,
    stepped,
    with_weight,
)
from sojourn.errors import JobError
from sojourn.model.vectors import BLOCK, on_all_cores, weighted_mean
from sojourn.parts import (
    Adagrad,
    Adam,
    AvgM,
    Dyn,
    DynServer,
    Fusion,
    FusionMean,
    Ida,
    OwnObjective,
    Scaffold,
    ScaffoldServer,
    Yogi,
    name_of,
)

# Aggregators that take an optimiser's step, with d = mean - w as the gradient.
#
# FedAvgM: Hsu, Qi, Brown, "Measuring the Effects of Non-Identical Data Distribution for Federated Visual
# Classification", 2019. FedAdagrad, FedAdam, FedYogi: Reddi et al., "Adaptive Federated Optimization", ICLR 2021: no
# bias correction, v_0 = tau^2, m_0 = 0.
#
# A round without weighted models is no step: momentum and second moments neither decay nor grow.


def avgm(
    settings: AvgM, previous: Vector, contributions: Sequence[Contribution], state: State, _: MergeContext
) -> tuple[Vector, State]:
    """v <- momentum v + d; w <- w + lr v. With `restart`, v <- d where d points against v."""
    weighted = with_weight(contributions, settings.weighting)
    if not weighted:
        return previous, state
    whole, before = mean_of(weighted, settings.weighting), state.get("momentum", np.zeros_like(previous))

    def rule(mean: Wide, w: Wide, kept: dict[str, Wide]) -> tuple[Wide, dict[str, Wide]]:
        old = settings.momentum * kept["momentum"]
        # In this form lr = 1 without momentum gives the mean itself, not w + (mean - w).
        return (1 - settings.lr) * w + settings.lr * (mean + old), {"momentum": old + (mean - w)}

    momentum = _remaining_momentum(settings, whole, previous, before, weighted)
    model, kept = stepped(rule, whole, previous, {"momentum": momentum})
    return model, {**state, **kept}


def _remaining_momentum(
    settings: AvgM, whole: Wide, previous: Vector, momentum: Vector, weighted: Sequence[Contribution]
) -> Vector:
    """Return the momentum after restarts: 0 where the merge ends it."""
    if not settings.restart:
        return momentum
    if settings.restart is True:
        return np.zeros_like(momentum) if float((whole - previous) @ momentum) < 0 else momentum
    votes = sum(_against(each.vector, previous, momentum).astype(np.int32) for each in weighted)
    ended = _against(whole, previous, momentum) & (votes >= int(settings.against * len(weighted)))
    return np.where(ended, np.float32(0), momentum)


def _against(vector: Vector | Wide, previous: Vector, momentum: Vector) -> NDArray[np.bool_]:
    """Return where a vector lies from `previous` against the momentum; comparisons never underflow."""
    back = ((momentum > 0) & (vector < previous)) | ((momentum < 0) & (vector > previous))
    return np.asarray(back)


def adaptive(
    settings: Adagrad | Adam | Yogi,
    previous: Vector,
    contributions: Sequence[Contribution],
    state: State,
    _: MergeContext,
) -> tuple[Vector, State]:
    """m <- beta1 m + (1 - beta1) d; v as each method defines it; w <- w + lr m / (sqrt(v) + tau).

    Stored as `root`: sqrt(v), whose range is that of the models' parameters. v itself would exceed float32 for
    differences beyond 1e19 or below 1e-19.
    """
    weighted = with_weight(contributions, settings.weighting)
    if not weighted:
        return previous, state

    def rule(mean: Wide, w: Wide, kept: dict[str, Wide]) -> tuple[Wide, dict[str, Wide]]:
        d = mean - w
        m = settings.beta1 * kept["momentum"] + (1 - settings.beta1) * d
        root = np.sqrt(_second(settings, np.square(kept["root"]), np.square(d)))
        return w + settings.lr * m / (root + settings.tau), {"momentum": m, "root": root}

    first = np.broadcast_to(np.float64(settings.tau), previous.shape)
    kept = {"momentum": state.get("momentum", np.zeros_like(previous)), "root": state.get("root", first)}
    model, after = stepped(rule, mean_of(weighted, settings.weighting), previous, kept)
    return model, {**state, **after}


def _second(settings: Adagrad | Adam | Yogi, v: Wide, squares: Wide) -> Wide:
    """Return the next v, given d^2."""
    match settings:
        case Adagrad():
            return v + squares
        case Adam(beta2=beta2):
            return beta2 * v + (1 - beta2) * squares
        case Yogi(beta2=beta2):
            return v - (1 - beta2) * squares * np.sign(v - squares)


# The server halves of the objectives that correct drift: FedDyn and SCAFFOLD. N is the number of all devices.
#
# A new device starts with a memory of zeros: when N grows, h and c are the same sums over more devices.
#
# FedDyn: Acar et al., "Federated Learning Based on Dynamic Regularization", ICLR 2021. SCAFFOLD: Karimireddy et al.,
# "SCAFFOLD: Stochastic Controlled Averaging for Federated Learning", ICML 2020.


def dyn(
    _: DynServer, previous: Vector, contributions: Sequence[Contribution], state: State, merge: MergeContext
) -> tuple[Vector, State]:
    """h <- h - a / N sum(w_k - w_prev); w = mean(w_k) - h / a; the mean is uniform, and a is the objective's.

    `drift` is h, initially 0. A tour of several devices contributes its model once: the steps of its visits telescope.
    Without any model nothing changes.
    """
    if not isinstance(merge.objective, Dyn):
        raise JobError(f'aggregator "dyn" needs objective "dyn", not "{name_of(merge.objective)}"')
    state = _over_all(state, "drift", merge)
    if not contributions:
        return previous, state
    a, share = merge.objective.a, len(contributions) / merge.devices

    def rule(mean: Wide, w: Wide, kept: dict[str, Wide]) -> tuple[Wide, dict[str, Wide]]:
        h = kept["drift"] - a * share * (mean - w)
        return mean - h / a, {"drift": h}

    kept = {"drift": state.get("drift", np.zeros_like(previous))}
    model, kept = stepped(rule, mean_of(contributions, "uniform"), previous, kept)
    return model, {**state, **kept}


def scaffold(
    settings: ScaffoldServer, previous: Vector, contributions: Sequence[Contribution], state: State, merge: MergeContext
) -> tuple[Vector, State]:
    """c <- c + 1 / N sum(delta c_k); w <- w + lr (mean - w).

    `control` is c, initially 0. It follows what devices returned even without any model: they have changed their c_k,
    and c stays the mean of these.
    """
    if not isinstance(merge.objective, Scaffold | OwnObjective):
        raise JobError(f'aggregator "scaffold" needs objective "scaffold", not "{name_of(merge.objective)}"')
    state = _over_all(state, "control", merge)
    if (change := merge.returned.get("control_delta")) is not None:
        control = state.get("control", np.zeros_like(previous)).astype(np.float64) + change / np.float64(merge.devices)
        state = {**state, "control": control.astype(np.float32)}
    weighted = with_weight(contributions, settings.weighting)
    if not weighted:
        return previous, state

    def rule(mean: Wide, w: Wide, _: dict[str, Wide]) -> tuple[Wide, dict[str, Wide]]:
        # In this form lr = 1 gives the mean itself, not w + (mean - w).
        return (1 - settings.lr) * w + settings.lr * mean, {}

    return stepped(rule, mean_of(weighted, settings.weighting), previous, {})[0], state


def _over_all(state: State, name: str, merge: MergeContext) -> State:
    """Rescale a mean over the previous devices to all devices; new ones contribute 0."""
    if name not in state or merge.grown == 1:
        return state
    return {**state, name: (state[name] * merge.grown).astype(np.float32)}


def ida(
    settings: Ida, previous: Vector, contributions: Sequence[Contribution], state: State, _: MergeContext
) -> tuple[Vector, State]:
    """Weight each model by 1 / (epsilon + its distance to the mean model), independently of its weight in that mean."""
    weighted = with_weight(contributions, settings.weighting)
    if not weighted:
        return previous, state
    models = [each.vector for each in weighted]
    far = distances(models, mean_of(weighted, settings.weighting))
    return weighted_mean(models, [1 / (settings.epsilon + distance) for distance in far]), state


def distances(vectors: Sequence[Vector], centre: Wide) -> list[float]:
    """Return the L2 distance of each vector to the centre, in float64, summed block by block in their order."""
    squares = np.zeros((-(-len(centre) // BLOCK), len(vectors)))

    def measure(mine: Sequence[slice]) -> None:
        room = np.empty(min(BLOCK, len(centre)))
        for block in mine:
            middle, sums = centre[block], squares[block.start // BLOCK]
            gap = room[: len(middle)]
            for at, vector in enumerate(vectors):
                gap[:] = vector[block]
                gap -= middle
                sums[at] = np.einsum("i,i->", gap, gap)  # a dot product would depend on BLAS and its threads

    on_all_cores(len(centre), measure)
    total = np.zeros(len(vectors))
    for sums in squares:
        total += sums
    return [float(each) for each in np.sqrt(total)]


# FedFusion's server half: the mean, with smoothed parameters of the fusion.
#
# Yao et al., "Towards Faster and Better Federated Learning: A Feature Fusion Approach", ICIP 2019.


def fusion(
    settings: FusionMean, previous: Vector, contributions: Sequence[Contribution], state: State, merge: MergeContext
) -> tuple[Vector, State]:
    """Return the mean; then gamma <- (1 - smoothing) mean + smoothing previous gamma.

    A convolution is not smoothed, because it does not start at 0.
    """
    if not isinstance(merge.objective, Fusion):
        raise JobError(f'aggregator "fusion" needs objective "fusion", not "{name_of(merge.objective)}"')
    weighted = with_weight(contributions, settings.weighting)
    if not weighted:
        return previous, state
    mean = mean_of(weighted, settings.weighting)
    if merge.gamma is not None:
        old = previous[merge.gamma].astype(np.float64)
        mean[merge.gamma] = (1 - settings.smoothing) * mean[merge.gamma] + settings.smoothing * old
    return mean.astype(np.float32), state
