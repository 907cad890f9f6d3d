"""Training towards given answers besides the labels (FedGen): one more input, a row of weights of all classes.

The gradient is that of l(x, y) - mean_b(sum_c soft_b,c log softmax(f(x))_c); the loss that is told is the plain one.
With soft = b p and p probabilities this is l + b KL(p || f(x)) but for a constant.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

import msgspec
import numpy as np
import torch

from coordinator.compiling.exporting import exported, trace_with
from coordinator.compiling.taps import last_linear
from sojourn.errors import ModelError
from sojourn.model.generator import last_layer
from sojourn.model.graphs import Graphs
from sojourn.protocol.spec import MoreGraphs

if TYPE_CHECKING:
    from collections.abc import Sequence

    from torch import Tensor

    from coordinator.compiling.samples import ProbeSamples
    from coordinator.compiling.tracing import Trainee
    from sojourn.protocol.spec import Kit

TOLERANCE = 1e-3
"""Of a gradient's length, beside torch's."""
ROWS, TRACED_ROWS = 3, 5


def with_soft_answers(kit: Kit, trainee: Trainee, samples: ProbeSamples, seed: int) -> Kit:
    """The kit with a graph that also learns from given answers, compared with torch."""
    if kit.model.state:
        raise ModelError(
            'the objective generated does not go with layers that have state: set model.batchnorm = "frozen", or '
            "normalise with GroupNorm"
        )
    batch = samples.batch(TRACED_ROWS, seed)
    x, y = torch.from_numpy(batch.x), torch.from_numpy(batch.y)
    name = last_linear(trainee.module.get_submodule("module"), x, "the objective generated")
    last_layer(kit)
    if f"{name}.weight" != kit.linear[-1]:
        raise ModelError(f"the model's answers come from {name}, which is not its last linear layer")
    soft = torch.full((TRACED_ROWS, len(kit.classes)), 0.1)
    drawn = [torch.from_numpy(values) for values in batch.noise]

    def function(vector: Tensor, rows: list[Tensor]) -> tuple[Tensor, ...]:
        loss, gradients = loss_and_slope(trainee, trainee.split(vector), rows[0], rows[1], rows[2], rows[3:])
        return loss, torch.cat([each.reshape(-1) for each in gradients])

    inputs = ["vector", "x", "y", "soft", *(f"noise_{at}" for at in range(len(drawn)))]
    graph = exported(trace_with(function, trainee, [x, y, soft, *drawn], inputs, ["loss", "gradient"]))
    made = msgspec.structs.replace(kit, more=MoreGraphs(soft=graph))
    _check(made, trainee, samples, seed)
    return made


def loss_and_slope(
    trainee: Trainee, tensors: Sequence[Tensor], x: Tensor, y: Tensor, soft: Tensor, noise: Sequence[Tensor]
) -> tuple[Tensor, list[Tensor]]:
    """The plain loss, and the gradient with the given answers, by each tensor."""
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
    """Compare the graph with torch on a batch that is not the traced one; ModelError where they differ."""
    batch = samples.batch(ROWS, seed + 1)
    soft = np.linspace(0.0, 2.0, ROWS * len(kit.classes), dtype=np.float32).reshape(ROWS, -1)
    found = Graphs(kit).soft_loss_and_gradient(trainee.initial.numpy(), batch.x, batch.y, soft, batch.noise)
    drawn = [torch.from_numpy(values) for values in batch.noise]
    told = loss_and_slope(
        trainee,
        trainee.split(trainee.initial),
        torch.from_numpy(batch.x),
        torch.from_numpy(batch.y),
        torch.from_numpy(soft),
        drawn,
    )
    wanted = torch.cat([each.reshape(-1) for each in told[1]]).numpy()
    apart = max(abs(found[0] - float(told[0])), float(np.linalg.norm(found[1] - wanted)))
    if not apart <= TOLERANCE * max(1e-6, float(np.linalg.norm(wanted))):
        raise ModelError(f"the graph with given answers differs from torch by {apart:.3g}: name another model")
