"""Training with a second stream: outputs of frozen models (FedMMD, MOON, FedFusion) or soft targets (FedGen)."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from functools import partial
from typing import Any

import msgspec
import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from coordinator.compiling.exporting import exported, trace_with
from coordinator.compiling.extra_layers import LOGITS, fused_with, fusion_in, last_linear, tap_of
from coordinator.compiling.losses import ForwardPass, watched
from coordinator.compiling.probes import Batch, ProbeSamples, exact
from coordinator.compiling.tracing import Trainee
from sojourn.errors import Fault, ModelError
from sojourn.model.generator import last_layer
from sojourn.model.graphs import Graphs, Streams, probe_anchors, probe_targets, probe_vector, state_indices
from sojourn.parts import FeatureMatch, Fusion, Mmd, Moon, TwoStreamPart, name_of
from sojourn.protocol.spec import Kit, MoreGraphs, TwoStreamGraph
from sojourn.randomness import noise

Term = Callable[[Tensor, Sequence[Tensor], Sequence[Tensor]], Tensor]
"""A function of the model's rows, the frozen models' rows, and the scalars."""

# The terms that objectives add to the plain loss, computed from rows of the model and of frozen models.
#
# FedMMD: Yao, Huang and Sun, "Two-Stream Federated Learning: Reduce the Communication Costs", VCIP 2018. MOON: Li, He
# and Song, "Model-Contrastive Federated Learning", CVPR 2021.

WIDTHS = (1e-6, 1e-5, 1e-4, 1e-3, 0.01, 0.1, 1, 5, 10, 15, 20, 25, 30, 35, 100, 1e3, 1e4, 1e5, 1e6)
"""s of exp(-d / (2 s)), with d the squared distance: 2 s, and not 2 s^2, as in the authors' code."""
RELATIVE = (0.25, 0.5, 1.0, 2.0, 4.0)
"""Widths of exp(-d / width) as multiples of the mean of d."""
MIN_MEAN_DISTANCE = 1e-30
"""The minimum of the mean distance, in case all rows are equal."""
MIN_NORM = 1e-4
"""The minimum norm of a representation: a zero vector has no direction, and the gradient near it is unbounded."""


def term_of(objective: TwoStreamPart) -> Term:
    """Return the term that an objective adds to the plain loss; FedFusion changes the model instead."""
    match objective:
        case FeatureMatch():
            return feature_match
        case Mmd(distance="l2"):
            return row_distance
        case Mmd():
            return partial(discrepancy, floor=objective.floor, relative=objective.distance == "mmd-relative")
        case Moon():
            return contrast
        case _:
            raise Fault(f"the objective {name_of(objective)!r} has no second stream")


def feature_match(here: Tensor, anchors: Sequence[Tensor], numbers: Sequence[Tensor]) -> Tensor:
    """Return weight MSE(phi(w, x), phi(anchor, x))."""
    return numbers[0] * (here - anchors[0]).square().mean()


def row_distance(here: Tensor, anchors: Sequence[Tensor], numbers: Sequence[Tensor]) -> Tensor:
    """Return weight / 2 times the sum over the batch of |f - f_anchor|^2."""
    return 0.5 * numbers[0] * (here - anchors[0]).square().sum()


def discrepancy(
    here: Tensor, anchors: Sequence[Tensor], numbers: Sequence[Tensor], *, floor: float, relative: bool
) -> Tensor:
    """Return weight max(floor, MMD2); below the floor there is no gradient."""
    found: Tensor = MeanDiscrepancy.apply(here, anchors[0], relative)
    return numbers[0] * torch.where(found > floor, found, floor)


class MeanDiscrepancy(torch.autograd.Function):
    """MMD2(A, B) = mean k(A, A) + mean k(B, B) - 2 mean k(A, B) over all pairs of rows; only A gets a gradient.

    Distances are computed from differences, because rounding would dominate those below 1e-6 from inner products. The
    gradient is computed together with the value, from the same differences. With K the kernel as a function of d, the
    gradient of row i of A is 4 / B^2 (sum_j K'(d(a_i, a_j)) (a_i - a_j) - sum_j K'(d(a_i, b_j)) (a_i - b_j)). It takes
    memory for 3 B^2 C numbers for B samples with rows of C, and for one kernel per width.
    """

    @staticmethod
    def forward(ctx: Any, a: Tensor, b: Tensor, relative: bool) -> Tensor:
        """Return the value; `sojourn.parts.two_stream.Mmd` defines `relative`."""
        # Samples last: broadcasting along a short last axis, such as ten classes, takes several times as long.
        one, other = a.t(), b.t()
        ones = torch.ones_like(one[0])
        count = ones.sum()
        apart = one.unsqueeze(2) - torch.cat([one, other], 1).unsqueeze(1)
        beyond = other.unsqueeze(2) - other.unsqueeze(1)
        squares = torch.cat([(apart * apart).sum(0), (beyond * beyond).sum(0)], 1)  # a row: a_i to all, b_i to b
        scale = 1 / _mean_square(squares, ones, count) if relative else torch.ones(())
        rates = torch.tensor([-1 / each if relative else -0.5 / each for each in (RELATIVE if relative else WIDTHS)])
        kernels = torch.exp(rates.unsqueeze(1) * (squares * scale if relative else squares).reshape(1, -1))
        sums = torch.stack([torch.ones_like(rates), rates]) @ kernels  # of the kernels, and of their derivatives
        value, slope = sums.reshape(2, *squares.shape)
        pulls = slope[:, : 2 * one.shape[1]] * torch.cat([ones, -ones])  # the last third is only from b
        by_row = (apart * pulls).sum(2)
        ctx.save_for_backward((4 * scale / (count * count) * by_row).t())
        return (value * torch.cat([ones, -2 * ones, ones])).sum() / (count * count)

    @staticmethod
    def backward(ctx: Any, *gradients: Tensor) -> tuple[Tensor | None, ...]:
        """Return the gradient of the rows of A."""
        return gradients[0] * ctx.saved_tensors[0], None, None


def _mean_square(squares: Tensor, ones: Tensor, count: Tensor) -> Tensor:
    """Return the mean of d over pairs of different rows of both sets."""
    total = (squares * torch.cat([ones, 2 * ones, ones])).sum()
    return (total / (4 * count * count - 2 * count)).clamp(min=MIN_MEAN_DISTANCE)


def contrast(here: Tensor, anchors: Sequence[Tensor], numbers: Sequence[Tensor]) -> Tensor:
    """Return mu CE([cos(p, p_anchor), cos(p, p_own)] / tau, 0)."""
    mu, tau = numbers
    p, *others = (_normalised(rows) for rows in (here, *anchors))
    similarity = torch.stack([(p * other).sum(1) for other in others], 1) / tau
    return -mu * torch.log_softmax(similarity, 1)[:, 0].mean()


def _normalised(rows: Tensor) -> Tensor:
    return rows * (rows * rows).sum(1, keepdim=True).clamp(min=MIN_NORM**2).rsqrt()


# Training with a second stream: frozen models receive the same samples, and the objective compares their outputs.
#
# One trace contains all streams. A frozen model runs as in prediction: with its own running statistics, and without
# dropout. If the trained model's layers run differently in training, it also runs once more as in prediction for the
# comparison, which costs a forward and a backward pass. Otherwise the streams would differ even for equal models, and
# noise would drive the first step of a visit.

TAP = "the second stream's"
"""The key of a pass's features at the objective's layer."""


class TwoStreamTrainee(Trainee):
    """A module that is trained next to frozen models; its reference models are those of the loss, then the anchors."""

    def __init__(self, plain: Trainee, objective: TwoStreamPart, x: Tensor) -> None:
        """Train like `plain`, for an objective with a second stream; `x` are some samples."""
        super().__init__(plain.module, plain.feed, plain.learning)
        self.scalars = len(objective.scalars)
        self._anchors = tuple(f"anchor_{at}" for at in range(len(objective.anchors)))
        inner = plain.module.get_submodule("module")
        self._fusion = fusion_in(inner) if isinstance(objective, Fusion) else None
        self._term = None if self._fusion else term_of(objective)
        layer = LOGITS if self._fusion else objective.layer
        self._tap = tap_of(layer, inner, x, f"objective.layer of {name_of(objective)}")
        self._compare_in_prediction = bool(plain.feed.draws or self._with_state)

    @property
    def reference_models(self) -> tuple[str, ...]:
        """The names of the further models that a training step receives."""
        return (*super().reference_models, *self._anchors)

    @property
    def fixed_inputs(self) -> list[str]:
        """The names of the graph's inputs for further models and scalars."""
        of_loss = [f"reference_{at}" for at in range(len(super().reference_models))]
        return [*of_loss, *self._anchors, *(f"scalar_{at}" for at in range(self.scalars))]

    @property
    def fuses(self) -> bool:
        """Whether a model is tested together with a frozen one."""
        return self._fusion is not None and self.learning.plain

    def fused_outputs(self, tensors: Sequence[Tensor], anchor: Sequence[Tensor], x: Tensor) -> Tensor:
        """Return the predictions of the model fused with the trunk of another one."""
        assert self._fusion  # noqa: S101  # only fused models call this
        self.module.eval()
        frozen = self._pass(anchor, x).features[TAP]
        with fused_with(self._fusion, frozen):
            return self.learning.predictions(self._pass(tensors, x).outputs)

    def _minimised(
        self,
        tensors: Sequence[Tensor],
        x: Tensor,
        y: Tensor,
        others: Mapping[str, ForwardPass],
        scalars: Sequence[Tensor],
    ) -> tuple[Tensor, Tensor]:
        """Return the plain loss, and the loss with the term that compares the streams; scalars are 1 by default."""
        frozen = [others[name].features[TAP] for name in self._anchors]
        if self._fusion:
            with fused_with(self._fusion, frozen[0]):
                loss = self.learning.batch_loss(self._pass(tensors, x), x, y, others)
            return loss, loss
        assert self._term  # noqa: S101  # set unless there is a fusion
        compared = None
        if self._compare_in_prediction:
            self.module.eval()
            compared = self._pass(tensors, x).features[TAP]
            self.module.train()
        passed = self._pass(tensors, x)
        loss = self.learning.batch_loss(passed, x, y, others)
        here = passed.features[TAP] if compared is None else compared
        numbers = scalars or [torch.ones((), dtype=loss.dtype)] * self.scalars
        return loss, loss + self._term(here, frozen, numbers)

    def _pass(self, tensors: Sequence[Tensor], x: Tensor) -> ForwardPass:
        """Return the outputs, and those of the layers that the loss and the objective need."""
        inner = self.module.get_submodule("module")
        with watched(self.module, self.learning.features) as seen, self._tap.watched(inner) as tapped:
            outputs = self._call(tensors, x)
        if self._fusion and self._fusion.seen is not None:
            return ForwardPass(outputs, {**seen, TAP: self._fusion.seen})
        return ForwardPass(outputs, {**seen, TAP: tapped[-1].flatten(1)})


class TwoStreamGraphs(Graphs):
    """A kit's graphs with its second training graph: the last of the reference models are anchors; scalars are 1."""

    def loss_gradient_and_state(
        self,
        vector: NDArray[np.float32],
        x: NDArray[np.generic],
        y: NDArray[np.generic],
        noise: Sequence[NDArray[np.float32]] = (),
        reference_models: Sequence[NDArray[np.float32]] = (),
        streams: Streams | None = None,
    ) -> tuple[float, NDArray[np.float32], NDArray[np.float32]]:
        """Return the plain loss, the objective's gradient, and the new state."""
        of_loss, graph = len(self.learns.reference_models), self._kit.two_stream
        numbers = (1.0,) * (graph.scalars if graph else 0)
        streams = streams or Streams(reference_models[of_loss:], numbers)
        return super().loss_gradient_and_state(vector, x, y, noise, reference_models[:of_loss], streams)


def with_stream_probe(graph: bytes, fused: bytes, kit: Kit, trainee: TwoStreamTrainee) -> TwoStreamGraph:
    """Return the graphs with torch's results at the kit's probe, which devices compare with."""
    probe, model = kit.probe, kit.model
    x = np.frombuffer(probe.x, dtype=kit.input.dtype).reshape(len(probe.y), *kit.input.shape).copy()
    vector = probe_vector(model.sizes, probe.spread, model.state)
    anchors = len(trainee.reference_models) - len(kit.learns.reference_models)
    reference_models = (*(vector for _ in kit.learns.reference_models), *probe_anchors(vector, anchors))
    drawn = noise(probe.noise_seed, 0, len(probe.y), kit.noise)
    result = exact(trainee, vector, Batch(x, probe_targets(kit).copy(), drawn, reference_models))
    if not np.isfinite(result.loss) or not np.isfinite(result.gradient).all():
        raise ModelError("the second stream's loss or gradient is not finite on generated samples")
    return TwoStreamGraph(
        graph,
        anchors,
        trainee.scalars,
        float(result.loss),
        float(np.linalg.norm(result.gradient)),
        tuple(float(value) for value in result.gradient[list(probe.places)]),
        tuple(float(value) for value in result.state[state_indices(result.state.size)]),
        fused,
    )


# Training towards soft targets in addition to the labels (FedGen): one more input, a row of weights of all classes.
#
# The gradient is that of l(x, y) - mean_b(sum_c soft_b,c log softmax(f(x))_c); the reported loss is the plain one. With
# soft = b p and p probabilities this is l + b KL(p || f(x)) up to a constant.

TOLERANCE = 1e-3
"""The maximum difference from torch, relative to the gradient's norm."""
ROWS, TRACED_ROWS = 3, 5


def with_soft_targets(kit: Kit, trainee: Trainee, samples: ProbeSamples, seed: int) -> Kit:
    """Add a graph that also trains on soft targets to the kit, after a comparison with torch."""
    if kit.model.state:
        raise ModelError(
            'the objective generated does not support layers with state: set model.batchnorm = "frozen", or '
            "normalise with GroupNorm"
        )
    batch = samples.batch(TRACED_ROWS, seed)
    x, y = torch.from_numpy(batch.x), torch.from_numpy(batch.y)
    name = last_linear(trainee.module.get_submodule("module"), x, "the objective generated")
    last_layer(kit)
    if f"{name}.weight" != kit.linear[-1]:
        raise ModelError(f"the model's outputs come from {name}, which is not its last linear layer")
    soft = torch.full((TRACED_ROWS, len(kit.classes)), 0.1)
    drawn = [torch.from_numpy(values) for values in batch.noise]

    def function(vector: Tensor, rows: list[Tensor]) -> tuple[Tensor, ...]:
        loss, gradients = loss_and_gradients(trainee, trainee.split(vector), rows[0], rows[1], rows[2], rows[3:])
        return loss, torch.cat([each.reshape(-1) for each in gradients])

    inputs = ["vector", "x", "y", "soft", *(f"noise_{at}" for at in range(len(drawn)))]
    graph = exported(trace_with(function, trainee, [x, y, soft, *drawn], inputs, ["loss", "gradient"]))
    made = msgspec.structs.replace(kit, more=MoreGraphs(soft=graph))
    _check(made, trainee, samples, seed)
    return made


def loss_and_gradients(
    trainee: Trainee, tensors: Sequence[Tensor], x: Tensor, y: Tensor, soft: Tensor, noise: Sequence[Tensor]
) -> tuple[Tensor, list[Tensor]]:
    """Return the plain loss, and the gradient of each tensor with the soft targets."""
    trainee.module.train()
    leaves = [tensor.detach().requires_grad_() for tensor in tensors]
    with torch.enable_grad():
        trainee.feed.give(noise)
        logs = trainee._call(leaves, x).log_softmax(1)
        hot = (y.unsqueeze(1) == torch.arange(logs.shape[1])).to(logs.dtype)
        loss = -(logs * hot).sum(1).mean()
        gradients = torch.autograd.grad(loss - (logs * soft).sum(1).mean(), leaves, allow_unused=True)
    filled = [torch.zeros_like(t) if g is None else g for t, g in zip(leaves, gradients, strict=True)]
    return loss.detach(), filled


def _check(kit: Kit, trainee: Trainee, samples: ProbeSamples, seed: int) -> None:
    """Compare the graph with torch on another batch than the traced one; ModelError if they differ."""
    batch = samples.batch(ROWS, seed + 1)
    soft = np.linspace(0.0, 2.0, ROWS * len(kit.classes), dtype=np.float32).reshape(ROWS, -1)
    found = Graphs(kit).soft_loss_and_gradient(trainee.initial.numpy(), batch.x, batch.y, soft, batch.noise)
    drawn = [torch.from_numpy(values) for values in batch.noise]
    expected = loss_and_gradients(
        trainee,
        trainee.split(trainee.initial),
        torch.from_numpy(batch.x),
        torch.from_numpy(batch.y),
        torch.from_numpy(soft),
        drawn,
    )
    wanted = torch.cat([each.reshape(-1) for each in expected[1]]).numpy()
    apart = max(abs(found[0] - float(expected[0])), float(np.linalg.norm(found[1] - wanted)))
    if not apart <= TOLERANCE * max(1e-6, float(np.linalg.norm(wanted))):
        raise ModelError(f"the graph with soft targets differs from torch by {apart:.3g}: choose another model")
