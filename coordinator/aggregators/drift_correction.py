"""The server halves of the objectives that correct drift: FedDyn and SCAFFOLD. N is the number of all devices.

A device that is new to the job brings a memory of zeros: when N grows, h and c are the same sums over more devices.

FedDyn: Acar et al., "Federated Learning Based on Dynamic Regularization", ICLR 2021. SCAFFOLD: Karimireddy et al.,
"SCAFFOLD: Stochastic Controlled Averaging for Federated Learning", ICML 2020.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

import numpy as np

from coordinator.aggregators.contributions import State, Vector, mean_of, stepped, with_weight
from sojourn.errors import JobError
from sojourn.parts import Dyn, DynServer, OwnObjective, Scaffold, ScaffoldServer, name_of

if TYPE_CHECKING:
    from collections.abc import Sequence

    from coordinator.aggregators.contributions import Contribution, MergeContext, Wide


def dyn(
    _: DynServer, previous: Vector, contributions: Sequence[Contribution], state: State, merge: MergeContext
) -> tuple[Vector, State]:
    """h <- h - a / N sum(w_k - w_prev); w = mean(w_k) - h / a; the mean is uniform, and a is the objective's.

    `drift` is h, 0 at first. A tour of several devices contributes its model once: the steps of its visits telescope.
    Without any model there is no mean, and nothing happens.
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

    `control` is c, 0 at first. It follows what devices returned even when no model came home: they have changed their
    own c_k, and c stays the mean of these.
    """
    if not isinstance(merge.objective, Scaffold | OwnObjective):
        raise JobError(f'aggregator "scaffold" needs objective "scaffold", not "{name_of(merge.objective)}"')
    state = _over_all(state, "control", merge)
    if (change := merge.returned.get("control_delta")) is not None:
        control = state.get("control", np.zeros_like(previous)).astype(np.float64) + change / np.float64(merge.devices)
        state = {**state, "control": control.astype(np.float32)}
    voices = with_weight(contributions, settings.weighting)
    if not voices:
        return previous, state

    def rule(mean: Wide, w: Wide, _: dict[str, Wide]) -> tuple[Wide, dict[str, Wide]]:
        # Written so that lr = 1 gives the mean itself, not w + (mean - w).
        return (1 - settings.lr) * w + settings.lr * mean, {}

    return stepped(rule, mean_of(voices, settings.weighting), previous, {})[0], state


def _over_all(state: State, name: str, merge: MergeContext) -> State:
    """A mean over the devices of before as one over all: those who are new have nothing yet."""
    if name not in state or merge.grown == 1:
        return state
    return {**state, name: (state[name] * merge.grown).astype(np.float32)}
