"""The loss of a model in torch, and the scaling of its targets.

The loss of a batch is the mean over its samples. If targets are quantities, a model's output is on a scale on which the
exemplars' targets have mean 0 and standard deviation 1. The scaling is part of the graphs, so targets and predictions
on a device are in their original units.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field
from typing import TYPE_CHECKING

import torch
from torch import Tensor, nn

from sojourn.protocol.task import TaskSpec, classes_as_strata

if TYPE_CHECKING:
    import numpy as np
    from numpy.typing import NDArray

    Scale = Sequence[float] | NDArray[np.float32] | None

HUBER = 1.0
"""The error, in standard deviations of the target, at which Huber's loss changes from a square to a line."""


@dataclass(frozen=True)
class ForwardPass:
    """The results of one pass through a model: its outputs, and those of the layers that a loss needs."""

    outputs: Tensor
    features: Mapping[str, Tensor] = field(default_factory=dict)


@dataclass(frozen=True)
class LossContext:
    """The further arguments of a custom loss.

    inputs: the samples. features: outputs of layers, by name. reference_models: the results of further models for the
    same samples, by name; they get no gradient.
    """

    inputs: Tensor
    features: Mapping[str, Tensor]
    reference_models: Mapping[str, ForwardPass]


@dataclass(frozen=True)
class Learning:
    """The task, a loss for each sample, and the scale of targets.

    plain: cross-entropy over classes, which a kit does not describe.
    """

    task: TaskSpec
    loss: Callable[[Tensor, Tensor, LossContext], Tensor]
    mean: Tensor | None = None
    std: Tensor | None = None
    plain: bool = False
    features: tuple[str, ...] = ()
    loss_name: str = ""
    """The name of a custom loss."""

    def batch_loss(
        self, passed: ForwardPass, x: Tensor, y: Tensor, reference_models: Mapping[str, ForwardPass]
    ) -> Tensor:
        """Return the mean loss of a batch."""
        if self.plain:
            # Not nll_loss: the exporter silently turns its backward into a wrong constant.
            chances = torch.log_softmax(passed.outputs, 1)
            hot = (y.unsqueeze(1) == torch.arange(self.task.output[0])).to(torch.float32)
            return -(chances * hot).sum(1).mean()
        return self.losses(passed, x, y, reference_models).mean()

    def losses(self, passed: ForwardPass, x: Tensor, y: Tensor, reference_models: Mapping[str, ForwardPass]) -> Tensor:
        """Return the loss of each sample."""
        target = x if self.task.target is None else y
        return self.loss(passed.outputs, self.standardised(target), LossContext(x, passed.features, reference_models))

    def standardised(self, target: Tensor) -> Tensor:
        """Return targets on the scale of the model's outputs."""
        if self.mean is not None:
            target = target - self.mean
        return target if self.std is None else target / self.std

    def predictions(self, outputs: Tensor) -> Tensor:
        """Return the model's outputs in the units of the targets."""
        if self.std is not None:
            outputs = outputs * self.std
        return outputs if self.mean is None else outputs + self.mean


@dataclass(frozen=True)
class OpenLearning(Learning):
    """A classification with a last class for unknown samples, which predictions omit."""

    def predictions(self, outputs: Tensor) -> Tensor:
        """Return the outputs of the known classes."""
        return super().predictions(outputs)[:, :-1]


@contextmanager
def watched(module: nn.Module, layers: Iterable[str]) -> Iterator[dict[str, Tensor]]:
    """Collect the outputs of these layers of a normalised module while it runs."""
    seen: dict[str, Tensor] = {}
    hooks = [
        module.get_submodule(f"module.{name}").register_forward_hook(
            lambda _layer, _inputs, output, name=name: seen.update({name: output})
        )
        for name in layers
    ]
    try:
        yield seen
    finally:
        for hook in hooks:
            hook.remove()


def classifying(classes: int, *, unknown: bool = False) -> Learning:
    """Return a classification by cross-entropy; with `unknown`, a further class that predictions omit."""
    if unknown:
        return OpenLearning(classes_as_strata(classes + 1), cross_entropy, plain=True)
    return Learning(classes_as_strata(classes), cross_entropy, plain=True)


def learning_of(task: TaskSpec, mean: Scale = None, std: Scale = None, **custom: object) -> Learning:
    """Return a task with one of the named losses; `mean` and `std` broadcast with the targets.

    A custom loss is given as `loss`, with its name as `loss_name` and the layers that it needs as `features`.
    """
    loss = custom.pop("loss", None) or NAMED[task.loss]
    tensors = [None if each is None else torch.as_tensor(each, dtype=torch.float32) for each in (mean, std)]
    return Learning(task, loss, *tensors, **custom)  # type: ignore[arg-type]


def cross_entropy(outputs: Tensor, targets: Tensor, _context: object = None) -> Tensor:
    """Return the cross-entropy of class numbers, or of the token at each place, over the last axis of the outputs."""
    numbers = torch.arange(outputs.shape[-1], device=outputs.device)
    hot = (targets.unsqueeze(-1) == numbers).to(outputs.dtype)
    return by_sample(-(torch.log_softmax(outputs, -1) * hot).sum(-1))


def binary_cross_entropy(outputs: Tensor, targets: Tensor, _context: object = None) -> Tensor:
    """Return the binary cross-entropy, averaged over the labels."""
    each = torch.nn.functional.binary_cross_entropy_with_logits(outputs, targets, reduction="none")
    return by_sample(each)


def squares(outputs: Tensor, targets: Tensor, _context: object = None) -> Tensor:
    """Return the mean squared error."""
    return by_sample((outputs - targets).square())


def absolutes(outputs: Tensor, targets: Tensor, _context: object = None) -> Tensor:
    """Return the mean absolute error."""
    return by_sample((outputs - targets).abs())


def huber(outputs: Tensor, targets: Tensor, _context: object = None) -> Tensor:
    """Return the mean of Huber's loss: square for small errors, linear for large ones."""
    error = (outputs - targets).abs()
    return by_sample(torch.where(error <= HUBER, 0.5 * error.square(), HUBER * (error - 0.5 * HUBER)))


def by_sample(values: Tensor) -> Tensor:
    """Return the mean over all but the first axis."""
    return values if values.dim() == 1 else values.flatten(1).mean(1)


NAMED = {
    "cross-entropy": cross_entropy,
    "binary-cross-entropy": binary_cross_entropy,
    "mse": squares,
    "l1": absolutes,
    "huber": huber,
}
"""The named losses (`coordinator.jobs.settings_tables.LOSSES`)."""
