"""What torch says about a batch: in double precision, as the truth, and in float32, as what rounding makes of it."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import numpy as np
import torch
from torch import Tensor
from torch.utils._python_dispatch import TorchDispatchMode
from torch.utils._pytree import tree_map

from sojourn.randomness import generator

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence

    from numpy.typing import NDArray
    from torch._ops import OpOverload

    from coordinator.compiling.samples import Batch
    from coordinator.compiling.tracing import Trainee

NUDGE = 2e-6


@dataclass(frozen=True)
class TorchAnswer:
    """The loss, the gradient by each tensor, the answers and the new state of one batch, all in float64.

    losses: of each sample, as in prediction; none of a plain classifier, whose kit has no graph for them.
    """

    loss: NDArray[np.float64]
    gradients: list[NDArray[np.float64]]
    outputs: NDArray[np.float64]
    states: list[NDArray[np.float64]]
    losses: NDArray[np.float64]

    @property
    def gradient(self) -> NDArray[np.float64]:
        """All gradients as one vector."""
        return np.concatenate([part.reshape(-1) for part in self.gradients])

    @property
    def state(self) -> NDArray[np.float64]:
        """All of the new state as one vector; empty for a model without."""
        return np.concatenate([np.zeros(0), *(part.reshape(-1) for part in self.states)])


def exact(trainee: Trainee, vector: NDArray[np.float32], batch: Batch) -> TorchAnswer:
    """What torch computes in double precision, from the same float32 numbers."""
    try:
        with _Doubled():
            return _answer(trainee, torch.from_numpy(vector).double(), batch)
    except RuntimeError:  # a layer that knows only float32: then this is as exact as can be had
        return rounded(trainee, vector, batch)


def rounded(trainee: Trainee, vector: NDArray[np.float32], batch: Batch) -> TorchAnswer:
    """What torch computes in float32."""
    return _answer(trainee, torch.from_numpy(vector), batch)


def nudged(trainee: Trainee, vector: NDArray[np.float32], batch: Batch, seed: int) -> list[TorchAnswer]:
    """What torch computes in float32 at two vectors that lie a little beside, to either side of this one.

    Little is some ten times what rounding does to a weight. Where a ReLU's input or the difference of two maxima is so
    near to zero that rounding may turn its sign, and a part of the gradient appears or vanishes, one of the two shows
    it.
    """
    nudge = NUDGE * generator(seed, "nudge").standard_normal(vector.size, dtype=np.float32) * vector
    return [rounded(trainee, vector + nudge, batch), rounded(trainee, vector - nudge, batch)]


def _answer(trainee: Trainee, vector: Tensor, batch: Batch) -> TorchAnswer:
    tensors = trainee.split(vector)
    x, y = torch.from_numpy(np.ascontiguousarray(batch.x)), torch.from_numpy(batch.y)
    x, y = (each.to(vector.dtype) if each.is_floating_point() else each for each in (x, y))
    noise = [torch.from_numpy(values) for values in batch.noise]
    beside = [trainee.split(torch.from_numpy(each).to(vector.dtype)) for each in batch.beside]
    loss, gradients, states = trainee.loss_and_gradient(tensors, x, y, noise, beside)
    with torch.no_grad():
        outputs = trainee.outputs(tensors, x)
        of_loss = beside[: len(trainee.learning.task.beside)]
        losses = torch.zeros(0) if trainee.learning.plain else trainee.losses(tensors, x, y, of_loss)
    parts = _double(outputs), list(map(_double, states)), _double(losses)
    return TorchAnswer(_double(loss), list(map(_double, gradients)), *parts)


def _double(tensor: Tensor) -> NDArray[np.float64]:
    return tensor.detach().numpy().astype(np.float64)


class _Doubled(TorchDispatchMode):
    """Makes float64 of every float32 that an operator is given or asked to make: also where a model says `.float()`."""

    def __torch_dispatch__(
        self,
        func: OpOverload,
        types: Sequence[type],
        args: Sequence[Any] = (),
        kwargs: Mapping[str, Any] | None = None,
    ) -> Any:
        """Run the operator in double precision."""
        return func(*tree_map(_widened, args), **tree_map(_widened, dict(kwargs or {})))


def _widened(value: Any) -> Any:
    if value is torch.float32:
        return torch.float64
    return value.double() if isinstance(value, Tensor) and value.dtype == torch.float32 else value
