"""FedGen's server half, in numpy: it trains a generator of inputs on which the members' last layers agree.

Zhuangdi Zhu, Junyuan Hong and Jiayu Zhou: "Data-Free Knowledge Distillation for Heterogeneous Federated Learning", ICML
2021. With z = G(eps, y) for a batch of drawn classes y, steps of Adam on

    alpha sum_k mean_b[omega_k,y CE(h_k(z), y)] + eta exp(-mean_ij(|eps_i - eps_j|^2 |z_i - z_j|_1)),

where omega_k,c = n_k,c / sum_j n_j,c and distances are means over coordinates. The shapes in the authors' code
broadcast to mean(omega) mean(CE); here it is the product of each sample, as the paper intends. Moments are kept between
rounds, and the learning rate shrinks with each. The round's model is the aggregator's.
"""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
from numpy.typing import NDArray

from coordinator.finishers.task import Finished, FinishTask, State
from sojourn.errors import JobError
from sojourn.model.generator import EPSILON, TRAINED, GeneratorLayout, last_layer
from sojourn.model.metrics import softmax
from sojourn.parts import Generated, GeneratorServer
from sojourn.protocol.spec import Kit
from sojourn.randomness import generator as draws

Array = NDArray[np.floating]
Parts = dict[str, Array]

BETAS = (0.9, 0.999)
TINY = 1e-8
KEPT = 0.1
"""The share of a batch's statistics in the update of the running ones."""


def first_generator(objective: Generated, kit: Kit, seed: int) -> State:
    """Return an initial generator, and moments of 0; its classes are known after the first round."""
    layout = GeneratorLayout.of(objective, kit)
    vector, draw = np.zeros(layout.size, np.float32), draws(seed, "generator")
    it = layout.split(vector)
    for weight, bias in (("first", "first_bias"), ("last", "last_bias")):
        limit = 1 / np.sqrt(it[weight].shape[1])
        for name in (weight, bias):
            it[name][...] = draw.uniform(-limit, limit, it[name].shape)
    it["scale"][...] = it["variance"][...] = 1
    return {"generator": vector, "moments": np.zeros(2 * layout.size + 1, np.float32)}


def learn_generator(settings: GeneratorServer, task: FinishTask) -> Finished:
    """Train the generator on the members' last layers."""
    objective = task.job.parts().objective
    if not isinstance(objective, Generated):
        raise JobError("the finisher generator needs the objective generated")
    layout, last = GeneratorLayout.of(objective, task.kit), last_layer(task.kit)
    counts = np.stack([each.reported["class-counts"]().astype(np.float64) for each in task.members])
    if counts.min() < 1:
        raise JobError("a device reported a negative sample count")
    heads = []
    for each in task.members:
        model = each.load().astype(np.float64)
        weight = model[last.weight].reshape(last.classes, last.inputs).copy()
        heads.append((weight, model[last.bias].copy() if last.bias else np.zeros(last.classes)))
    vector = task.state["generator"].astype(np.float64)
    moments = task.state["moments"].astype(np.float64)
    there = (counts > 1).any(axis=0)
    it = layout.split(vector)
    it["there"][...] = there
    lr = settings.lr * settings.decay ** (task.round - 1)
    draw, known = draws(task.seed, "generator"), np.flatnonzero(there)
    share = counts / counts.sum(axis=0)
    for _ in range(settings.steps if len(known) else 0):
        classes = known[draw.integers(0, len(known), settings.batch)]
        noise = draw.random((settings.batch, objective.noise))
        _, gradients = loss_and_gradients(it, layout, heads, share[:, classes], noise, classes, settings, keep=True)
        adam(it, gradients, layout, moments, lr, settings.weight_decay)
    return Finished(state={"generator": vector.astype(np.float32), "moments": moments.astype(np.float32)})


def loss_and_gradients(
    it: Parts,
    layout: GeneratorLayout,
    heads: Sequence[tuple[Array, Array]],
    weights: Array,
    noise: Array,
    classes: NDArray[np.int64],
    settings: GeneratorServer,
    *,
    keep: bool = False,
) -> tuple[float, Parts]:
    """Return the generator's loss and its gradient by each part; with `keep`, update running statistics in place."""
    count, rows = len(noise), np.arange(len(noise))
    given = layout.layer_input(noise, classes)
    raw = given @ it["first"].T + it["first_bias"]
    mean, variance = raw.mean(0), raw.var(0)
    spread = np.sqrt(variance + EPSILON)
    usual = (raw - mean) / spread
    inner = usual * it["scale"] + it["shift"]
    active = np.maximum(inner, 0)
    z = active @ it["last"].T + it["last_bias"]
    if keep:
        it["mean"] += KEPT * (mean - it["mean"])
        it["variance"] += KEPT * (variance * count / max(count - 1, 1) - it["variance"])
    loss, slope = 0.0, np.zeros_like(z)
    for (weight, bias), importance in zip(heads, weights, strict=True):
        probabilities = softmax(z @ weight.T + bias)
        loss -= settings.alpha * float((importance * np.log(np.maximum(probabilities[rows, classes], 1e-300))).mean())
        probabilities[rows, classes] -= 1
        slope += settings.alpha / count * (importance[:, None] * probabilities) @ weight
    similar, by_z = similarity(noise, z)
    loss, slope = loss + settings.eta * similar, slope + settings.eta * by_z
    by_inner = (slope @ it["last"]) * (inner > 0)
    by_usual = by_inner * it["scale"]
    by_raw = (by_usual - by_usual.mean(0) - usual * (by_usual * usual).mean(0)) / spread
    return loss, {
        "first": by_raw.T @ given, "first_bias": by_raw.sum(0),
        "scale": (by_inner * usual).sum(0), "shift": by_inner.sum(0),
        "last": slope.T @ active, "last_bias": slope.sum(0),
    }  # fmt: skip


def similarity(noise: Array, z: Array) -> tuple[float, Array]:
    """Return exp(-mean_ij(|eps_i - eps_j|^2 |z_i - z_j|_1)), which is 1 if all are equal, and its gradient by z."""
    apart = np.square(noise[:, None] - noise[None]).mean(2)
    ways = z[:, None] - z[None]
    value = float(np.exp(-(apart * np.abs(ways).mean(2)).mean()))
    slope: Array = -value * 2 / (len(z) ** 2 * z.shape[1]) * (apart[:, :, None] * np.sign(ways)).sum(1)
    return value, slope


def adam(it: Parts, gradients: Parts, layout: GeneratorLayout, moments: Array, lr: float, weight_decay: float) -> None:
    """Take one step in place; decay is part of the gradient, as in torch's Adam. The last moment counts the steps."""
    moments[-1] += 1
    first, second = (layout.split(moments[at * layout.size : (at + 1) * layout.size]) for at in (0, 1))
    corrections = [1 - beta ** moments[-1] for beta in BETAS]
    for name in TRAINED:
        slope = gradients[name] + weight_decay * it[name]
        first[name] += (1 - BETAS[0]) * (slope - first[name])
        second[name] += (1 - BETAS[1]) * (np.square(slope) - second[name])
        it[name] -= lr * (first[name] / corrections[0]) / (np.sqrt(second[name] / corrections[1]) + TINY)
