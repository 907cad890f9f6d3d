"""What a model is trained for, as torch computes it: its loss, and the scaling of what it is compared with.

A loss is one number for each sample, of a batch their mean. Where targets are quantities, a model answers on a scale on
which the exemplars' have the mean 0 and the deviation 1; the scaling is a part of the graphs, so that targets and
predictions on a device are in their own units.
"""

from __future__ import annotations

from contextlib import contextmanager
from dataclasses import dataclass, field
from typing import TYPE_CHECKING

import torch
from torch import Tensor, nn

from sojourn.protocol.task import TaskSpec, classes_as_strata

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence

    import numpy as np
    from numpy.typing import NDArray

    Scale = Sequence[float] | NDArray[np.float32] | None

HUBER = 1.0
"""Where Huber's loss turns from a square to a line, in deviations of the target."""


@dataclass(frozen=True)
class ForwardPass:
    """What one pass through a model gave: its outputs, and those of the layers that a loss asks for by name."""

    outputs: Tensor
    features: Mapping[str, Tensor] = field(default_factory=dict)


@dataclass(frozen=True)
class LossContext:
    """What a loss of one's own may look at besides outputs and targets.

    inputs: the samples as they are. features: outputs of layers, by name. beside: of further models, by name, what
    the same samples give there; no gradient goes to them.
    """

    inputs: Tensor
    features: Mapping[str, Tensor]
    beside: Mapping[str, ForwardPass]


@dataclass(frozen=True)
class Learning:
    """What is learnt: the task, a loss for each sample, and the scale of targets.

    plain: cross-entropy over classes, of which a kit does not even speak.
    """

    task: TaskSpec
    loss: Callable[[Tensor, Tensor, LossContext], Tensor]
    mean: Tensor | None = None
    std: Tensor | None = None
    plain: bool = False
    features: tuple[str, ...] = ()
    own: str = ""
    """The name of a loss of one's own."""

    def batch_loss(self, passed: ForwardPass, x: Tensor, y: Tensor, beside: Mapping[str, ForwardPass]) -> Tensor:
        """The mean loss of a batch."""
        if self.plain:
            # Not nll_loss: the exporter turns its backward into a wrong constant without a word.
            chances = torch.log_softmax(passed.outputs, 1)
            hot = (y.unsqueeze(1) == torch.arange(self.task.output[0])).to(torch.float32)
            return -(chances * hot).sum(1).mean()
        return self.losses(passed, x, y, beside).mean()

    def losses(self, passed: ForwardPass, x: Tensor, y: Tensor, beside: Mapping[str, ForwardPass]) -> Tensor:
        """The loss of each sample."""
        target = x if self.task.target is None else y
        return self.loss(passed.outputs, self.standardised(target), LossContext(x, passed.features, beside))

    def standardised(self, target: Tensor) -> Tensor:
        """Targets on the scale on which the model answers."""
        if self.mean is not None:
            target = target - self.mean
        return target if self.std is None else target / self.std

    def answers(self, outputs: Tensor) -> Tensor:
        """The model's outputs in the targets' own units."""
        if self.std is not None:
            outputs = outputs * self.std
        return outputs if self.mean is None else outputs + self.mean


@dataclass(frozen=True)
class OpenLearning(Learning):
    """Learning with a last class for samples of none: what predicts answers with the others alone."""

    def answers(self, outputs: Tensor) -> Tensor:
        """The classes that are known."""
        return super().answers(outputs)[:, :-1]


@contextmanager
def watched(module: nn.Module, layers: Iterable[str]) -> Iterator[dict[str, Tensor]]:
    """What these layers of a normalised module give while it runs."""
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
    """One class of several by cross-entropy; with one more for samples of none, which predictions leave out."""
    if unknown:
        return OpenLearning(classes_as_strata(classes + 1), cross_entropy, plain=True)
    return Learning(classes_as_strata(classes), cross_entropy, plain=True)


def learning_of(task: TaskSpec, mean: Scale = None, std: Scale = None, **own: object) -> Learning:
    """A task with one of the losses that have a name; `mean` and `std` of targets as they broadcast with them.

    A loss of one's own is given as `loss`, with its name as `own` and the layers that it asks for as `features`.
    """
    loss = own.pop("loss", None) or NAMED[task.loss]
    tensors = [None if each is None else torch.as_tensor(each, dtype=torch.float32) for each in (mean, std)]
    return Learning(task, loss, *tensors, **own)  # type: ignore[arg-type]


def cross_entropy(outputs: Tensor, targets: Tensor, _context: object = None) -> Tensor:
    """Of class numbers, or of the token at each place, over the last axis of the outputs."""
    numbers = torch.arange(outputs.shape[-1], device=outputs.device)
    hot = (targets.unsqueeze(-1) == numbers).to(outputs.dtype)
    return by_sample(-(torch.log_softmax(outputs, -1) * hot).sum(-1))


def binary_cross_entropy(outputs: Tensor, targets: Tensor, _context: object = None) -> Tensor:
    """Of yes or no for each label."""
    each = torch.nn.functional.binary_cross_entropy_with_logits(outputs, targets, reduction="none")
    return by_sample(each)


def squares(outputs: Tensor, targets: Tensor, _context: object = None) -> Tensor:
    """The mean square of errors."""
    return by_sample((outputs - targets).square())


def absolutes(outputs: Tensor, targets: Tensor, _context: object = None) -> Tensor:
    """The mean of errors without their signs."""
    return by_sample((outputs - targets).abs())


def huber(outputs: Tensor, targets: Tensor, _context: object = None) -> Tensor:
    """Squares of small errors, and large ones as they are."""
    error = (outputs - targets).abs()
    return by_sample(torch.where(error <= HUBER, 0.5 * error.square(), HUBER * (error - 0.5 * HUBER)))


def by_sample(values: Tensor) -> Tensor:
    """The mean over all but the first axis."""
    return values if values.dim() == 1 else values.flatten(1).mean(1)


NAMED = {
    "cross-entropy": cross_entropy,
    "binary-cross-entropy": binary_cross_entropy,
    "mse": squares,
    "l1": absolutes,
    "huber": huber,
}
"""The losses that have a name (`coordinator.jobs.task_settings.LOSSES`)."""
