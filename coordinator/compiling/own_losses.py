"""Losses of one's own: found by name, made a function of each sample, and refused where a graph could not be one.

`function(outputs, targets)` or `function(outputs, targets, context)` returns a number for each sample, or more than one
for each, whose mean counts. One that returns a single number for a batch is asked about each sample by itself: the loss
of a batch is always the mean of its samples', so that losses add up over batches and devices.
"""

from __future__ import annotations

import inspect
from copy import copy
from dataclasses import replace
from typing import TYPE_CHECKING, Any

import numpy as np
import torch
from torch import Tensor
from torch.func import vmap
from torch.utils._pytree import tree_map

from coordinator.compiling.layers import Operators, Whereabouts
from coordinator.compiling.learning import ForwardPass, LossContext, by_sample
from sojourn.errors import ConfigError, ModelError
from sojourn.parts.own import own_module
from sojourn.randomness import derive

if TYPE_CHECKING:
    from collections.abc import Callable

    from coordinator.compiling.learning import Learning
    from coordinator.compiling.samples import ProbeSamples
    from coordinator.compiling.tracing import Trainee
    from sojourn.model.exemplars import Exemplars

    Function = Callable[..., Any]

TRIED = 6
"""Samples on which a loss is tried."""
SAME = 1e-4
"""Of its size: so far may a sample's loss lie from the one that it has in another batch."""
WITH_CONTEXT = 3
"""Arguments of a function that looks at more than outputs and targets."""


def own_loss(name: str, folder: str | None) -> Function:
    """The function `package.module:function`; ModelError where there is none."""
    path, _, attribute = name.partition(":")
    try:
        module = own_module(path, folder)
    except ConfigError as error:
        raise ModelError(f"task.loss = {name!r}: {error}") from error
    function = getattr(module, attribute, None)
    if not callable(function):
        found = [key for key, value in vars(module).items() if inspect.isfunction(value)][:8]
        raise ModelError(f"task.loss: {path} has no function {attribute!r}; its functions are {', '.join(found)}")
    return function


class OwnLoss:
    """A function as a loss of each sample."""

    def __init__(self, function: Function, name: str) -> None:
        self._function, self._name = function, name
        self._with_context = _arguments(function) >= WITH_CONTEXT

    def __call__(self, outputs: Tensor, targets: Tensor, context: LossContext) -> Tensor:
        """The loss of each sample."""
        found = self.returned(outputs, targets, context)
        if found.dim() == 0:
            found = vmap(self._alone)(outputs, targets, _taken_apart(context))
        return by_sample(found)

    def returned(self, outputs: Tensor, targets: Tensor, context: LossContext) -> Tensor:
        """What the function itself returns."""
        more = (context,) if self._with_context else ()
        found = self._function(outputs, targets, *more)
        if not isinstance(found, Tensor) or not found.is_floating_point():
            kind = f"a tensor of {found.dtype}" if isinstance(found, Tensor) else f"a {type(found).__name__}"
            raise ModelError(
                f"the loss {self._name} returns {kind}: it must return a tensor of floats, one for each sample"
            )
        return found

    def _alone(self, outputs: Tensor, targets: Tensor, parts: Any) -> Tensor:
        """Of a batch of one sample."""
        one = tree_map(lambda each: each.unsqueeze(0), (outputs, targets, parts))
        return self.returned(one[0], one[1], _put_together(one[2]))


def blind_loss(learning: Learning, exemplars: Exemplars) -> float:
    """The mean loss of outputs that are all zero; 1 where that is no loss to compare with."""
    x, _ = exemplars.arrays()
    inputs, y = torch.from_numpy(np.array(x)), torch.from_numpy(np.array(exemplars.compared()))
    zeros = torch.zeros((len(y), *learning.task.output))
    passed = ForwardPass(zeros)
    try:
        with torch.no_grad():
            beside = dict.fromkeys(map(str, learning.task.beside), passed)
            found = float(learning.losses(passed, inputs, y, beside).mean())
    except KeyError:  # it looks at features, of which there are none here
        return 1.0
    return found if 0 < found < float("inf") else 1.0


def check_loss(trainee: Trainee, samples: ProbeSamples, seed: int) -> None:
    """Refuse a loss that is no function of each sample alone, has no gradient, or is no number; by its name."""
    name, learning = trainee.learning.own, trainee.learning
    _check_layers(trainee, name)
    batch = samples.batch(TRIED, derive(seed, "loss"))
    x, y = torch.from_numpy(batch.x), torch.from_numpy(batch.y)
    tensors = trainee.split(trainee.initial)
    beside = [trainee.split(trainee.initial * 0.9)] * len(learning.task.beside)

    def losses(rows: Tensor) -> Tensor:
        return trainee.losses(tensors, x[rows], y[rows], beside)

    try:
        with torch.no_grad(), torch.random.fork_rng(devices=[]), Operators(Whereabouts(trainee.module)) as seen:
            whole = losses(torch.arange(TRIED))
            again = losses(torch.arange(TRIED))
            turned = losses(torch.arange(TRIED).flip(0)).flip(0)
            parts = torch.cat([losses(torch.arange(first, last)) for first, last in ((0, 1), (1, 3), (3, TRIED))])
            told = _returned(trainee, x, y, beside)
        slope = _slope(trainee, x, y, beside)
    except ModelError:
        raise
    except Exception as error:
        why = str(error).strip().splitlines()[0] if str(error).strip() else type(error).__name__
        raise ModelError(
            f"the loss {name} fails on made-up samples: {why}. It is given outputs and targets of any number of "
            "samples, and must not use a tensor from elsewhere that has a row for each of them"
        ) from error
    mean = float(whole.mean())
    if told.dim() == 0 and not abs(float(told) - mean) <= SAME * max(1.0, abs(mean)):
        raise ModelError(
            f"the loss {name} looks at a batch as a whole: it is {float(told):.6g} for {TRIED} samples, and the mean "
            f"of each by itself is {mean:.6g}. It must return a number for each sample, so that losses add up over "
            "batches and devices"
        )
    if wrong := _objection(whole, again, turned, parts, slope, seen):
        raise ModelError(f"the loss {name} {wrong}")


def _objection(
    whole: Tensor, again: Tensor, turned: Tensor, parts: Tensor, slope: Tensor | None, seen: Operators
) -> str | None:
    random = [op for op in seen.seen if torch.Tag.nondeterministic_seeded in op.tags]
    if tuple(whole.shape) != (TRIED,):
        return f"returns a tensor of {tuple(whole.shape)} for {TRIED} samples: it must return a number for each"
    if not torch.isfinite(whole).all():
        return (
            f"is {float(whole[~torch.isfinite(whole)][0])} on made-up samples: look at its divisions, logarithms and "
            "roots; targets of quantities are standardised, so that they may be negative and near 0"
        )
    if random or not torch.equal(whole, again):
        return "gives another result when it is asked again: it must not draw random numbers nor remember anything"
    apart = max(float((whole - other).abs().max()) for other in (turned, parts))
    if not apart <= SAME * max(1.0, float(whole.abs().max())):
        return (
            "of a sample depends on the other samples of its batch, or on data from outside of its arguments: it must "
            "be a function of that sample's own outputs and targets, so that losses add up over batches and devices"
        )
    if slope is None:
        return (
            "cannot be differentiated: nothing in it leads from the outputs to what it returns (detach, argmax, round "
            "and comparisons cut that way)"
        )
    if not torch.isfinite(slope).all():
        return "has a gradient that is not finite on made-up samples: look at its divisions, logarithms and roots"
    return None if slope.abs().max() > 0 else "has a gradient of 0 by all outputs on made-up samples: nothing is learnt"


def _returned(trainee: Trainee, x: Tensor, y: Tensor, beside: Any) -> Tensor:
    """What the function itself returns for a batch."""
    found: list[Tensor] = []
    own = trainee.learning.loss
    assert isinstance(own, OwnLoss)  # noqa: S101  # only such are checked

    def watching(outputs: Tensor, targets: Tensor, context: LossContext) -> Tensor:
        found.append(own.returned(outputs, targets, context))
        return outputs

    other = copy(trainee)
    other.learning = replace(trainee.learning, loss=watching)
    other.losses(trainee.split(trainee.initial), x, y, beside)
    return found[0]


def _slope(trainee: Trainee, x: Tensor, y: Tensor, beside: Any) -> Tensor | None:
    """The gradient by the outputs, or by the features that it looks at; None where there is no way to them."""
    with torch.enable_grad():
        leaves = [tensor.detach().requires_grad_() for tensor in trainee.split(trainee.initial)]
        loss = trainee.losses(leaves, x, y, beside).sum()
        if not loss.requires_grad:
            return None
        found = torch.autograd.grad(loss, leaves[: trainee.trained], allow_unused=True)
    there = [each.reshape(-1) for each in found if each is not None]
    return torch.cat(there) if there else None


def _check_layers(trainee: Trainee, name: str) -> None:
    module = trainee.module.get_submodule("module")
    known = [each for each, _ in module.named_modules() if each]
    for layer in trainee.learning.features:
        if layer not in known:
            raise ModelError(
                f"task.features: the model has no layer {layer!r} for the loss {name}; its layers are "
                f"{', '.join(known[:20])}"
            )


def _arguments(function: Function) -> int:
    try:
        parameters = inspect.signature(function).parameters.values()
    except (TypeError, ValueError):  # of a function that is written in C
        return 2
    usual = (inspect.Parameter.POSITIONAL_ONLY, inspect.Parameter.POSITIONAL_OR_KEYWORD)
    return sum(each.kind in usual and each.default is each.empty for each in parameters)


def _taken_apart(context: LossContext) -> tuple[Tensor, dict[str, Tensor], dict[str, tuple[Tensor, dict[str, Tensor]]]]:
    beside = {name: (each.outputs, dict(each.features)) for name, each in context.beside.items()}
    return context.inputs, dict(context.features), beside


def _put_together(parts: Any) -> LossContext:
    inputs, features, beside = parts
    return LossContext(inputs, features, {name: ForwardPass(*each) for name, each in beside.items()})
