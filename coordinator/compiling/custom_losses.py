"""Custom losses: load them by name, apply them to each sample, and refuse those that cannot become a graph.

`function(outputs, targets)` or `function(outputs, targets, context)` returns one number for each sample, or several,
which are averaged. A function that returns one number for a batch is called for each sample separately. The loss of a
batch is always the mean over its samples, so losses add up over batches and devices.
"""

from __future__ import annotations

import inspect
from collections.abc import Callable
from copy import copy
from dataclasses import replace
from typing import TYPE_CHECKING, Any

import numpy as np
import torch
from torch import Tensor
from torch.func import vmap
from torch.utils._pytree import tree_map

from coordinator.compiling.layer_errors import Operators, RunningLayer
from coordinator.compiling.losses import ForwardPass, Learning, LossContext, by_sample
from coordinator.compiling.tracing import Trainee
from sojourn.errors import ConfigError, ModelError
from sojourn.model.exemplars import Exemplars
from sojourn.parts.custom_code import own_module
from sojourn.randomness import derive

if TYPE_CHECKING:
    from coordinator.compiling.probes import ProbeSamples

    Function = Callable[..., Any]

TRIAL_SAMPLES = 6
"""How many samples a loss is tried on."""
BATCH_TOLERANCE = 1e-4
"""The maximum relative difference between a sample's losses in two batches."""
ARGUMENTS_WITH_CONTEXT = 3
"""The number of arguments of a function that also uses the context."""


def load_loss(name: str, folder: str | None) -> Function:
    """Return the function `package.module:function`; ModelError if it does not exist."""
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


class CustomLoss:
    """A custom function as a loss of each sample."""

    def __init__(self, function: Function, name: str) -> None:
        self._function, self._name = function, name
        self._with_context = _arguments(function) >= ARGUMENTS_WITH_CONTEXT

    def __call__(self, outputs: Tensor, targets: Tensor, context: LossContext) -> Tensor:
        """Return the loss of each sample."""
        found = self.returned(outputs, targets, context)
        if found.dim() == 0:
            found = vmap(self._alone)(outputs, targets, _as_tree(context))
        return by_sample(found)

    def returned(self, outputs: Tensor, targets: Tensor, context: LossContext) -> Tensor:
        """Return the unchanged result of the function."""
        more = (context,) if self._with_context else ()
        found = self._function(outputs, targets, *more)
        if not isinstance(found, Tensor) or not found.is_floating_point():
            kind = f"a tensor of {found.dtype}" if isinstance(found, Tensor) else f"a {type(found).__name__}"
            raise ModelError(
                f"the loss {self._name} returns {kind}: it must return a tensor of floats, one for each sample"
            )
        return found

    def _alone(self, outputs: Tensor, targets: Tensor, parts: Any) -> Tensor:
        """Return the loss of a batch of one sample."""
        one = tree_map(lambda each: each.unsqueeze(0), (outputs, targets, parts))
        return self.returned(one[0], one[1], _as_context(one[2]))


def blind_loss(learning: Learning, exemplars: Exemplars) -> float:
    """Return the mean loss of outputs that are all zero; 1 if it is not positive and finite."""
    x, _ = exemplars.arrays()
    inputs, y = torch.from_numpy(np.array(x)), torch.from_numpy(np.array(exemplars.expected()))
    zeros = torch.zeros((len(y), *learning.task.output))
    passed = ForwardPass(zeros)
    try:
        with torch.no_grad():
            reference_models = dict.fromkeys(map(str, learning.task.reference_models), passed)
            found = float(learning.losses(passed, inputs, y, reference_models).mean())
    except KeyError:  # the loss uses features, which are not available here
        return 1.0
    return found if 0 < found < float("inf") else 1.0


def check_loss(trainee: Trainee, samples: ProbeSamples, seed: int) -> None:
    """Refuse a loss that mixes samples, has no gradient, or is not finite; the error contains its name."""
    name, learning = trainee.learning.loss_name, trainee.learning
    _check_layers(trainee, name)
    batch = samples.batch(TRIAL_SAMPLES, derive(seed, "loss"))
    x, y = torch.from_numpy(batch.x), torch.from_numpy(batch.y)
    tensors = trainee.split(trainee.initial)
    reference_models = [trainee.split(trainee.initial * 0.9)] * len(learning.task.reference_models)

    def losses(rows: Tensor) -> Tensor:
        return trainee.losses(tensors, x[rows], y[rows], reference_models)

    try:
        with torch.no_grad(), torch.random.fork_rng(devices=[]), Operators(RunningLayer(trainee.module)) as seen:
            whole = losses(torch.arange(TRIAL_SAMPLES))
            again = losses(torch.arange(TRIAL_SAMPLES))
            turned = losses(torch.arange(TRIAL_SAMPLES).flip(0)).flip(0)
            ranges = ((0, 1), (1, 3), (3, TRIAL_SAMPLES))
            parts = torch.cat([losses(torch.arange(first, last)) for first, last in ranges])
            returned = _returned(trainee, x, y, reference_models)
        gradient = _gradient(trainee, x, y, reference_models)
    except ModelError:
        raise
    except Exception as error:
        why = str(error).strip().splitlines()[0] if str(error).strip() else type(error).__name__
        raise ModelError(
            f"the loss {name} fails on generated samples: {why}. It receives outputs and targets of any number of "
            "samples, and must not use another tensor with a row for each of them"
        ) from error
    mean = float(whole.mean())
    if returned.dim() == 0 and not abs(float(returned) - mean) <= BATCH_TOLERANCE * max(1.0, abs(mean)):
        raise ModelError(
            f"the loss {name} depends on the batch as a whole: it is {float(returned):.6g} for {TRIAL_SAMPLES} "
            f"samples, and the mean over the separate samples is {mean:.6g}. It must return a number for each sample, "
            "so that losses add up over batches and devices"
        )
    if wrong := _objection(whole, again, turned, parts, gradient, seen):
        raise ModelError(f"the loss {name} {wrong}")


def _objection(
    whole: Tensor, again: Tensor, turned: Tensor, parts: Tensor, gradient: Tensor | None, seen: Operators
) -> str | None:
    random = [op for op in seen.seen if torch.Tag.nondeterministic_seeded in op.tags]
    if tuple(whole.shape) != (TRIAL_SAMPLES,):
        return f"returns a tensor of {tuple(whole.shape)} for {TRIAL_SAMPLES} samples: it must return a number for each"
    if not torch.isfinite(whole).all():
        return (
            f"is {float(whole[~torch.isfinite(whole)][0])} on generated samples: check its divisions, logarithms and "
            "roots; targets of quantities are standardised, so they may be negative or near 0"
        )
    if random or not torch.equal(whole, again):
        return "gives another result for the same input: it must not draw random numbers or keep state"
    apart = max(float((whole - other).abs().max()) for other in (turned, parts))
    if not apart <= BATCH_TOLERANCE * max(1.0, float(whole.abs().max())):
        return (
            "of a sample depends on the other samples of its batch, or on data other than its arguments: it must "
            "be a function of that sample's outputs and targets, so that losses add up over batches and devices"
        )
    if gradient is None:
        return (
            "cannot be differentiated: its result does not depend on the outputs through differentiable operations "
            "(detach, argmax, round and comparisons block gradients)"
        )
    if not torch.isfinite(gradient).all():
        return "has a gradient that is not finite on generated samples: check its divisions, logarithms and roots"
    return None if gradient.abs().max() > 0 else "has a gradient of 0 for all outputs on generated samples"


def _returned(trainee: Trainee, x: Tensor, y: Tensor, reference_models: Any) -> Tensor:
    """Return the unchanged result of the custom function for a batch."""
    found: list[Tensor] = []
    custom = trainee.learning.loss
    assert isinstance(custom, CustomLoss)  # noqa: S101  # check_loss is only for custom losses

    def recording(outputs: Tensor, targets: Tensor, context: LossContext) -> Tensor:
        found.append(custom.returned(outputs, targets, context))
        return outputs

    other = copy(trainee)
    other.learning = replace(trainee.learning, loss=recording)
    other.losses(trainee.split(trainee.initial), x, y, reference_models)
    return found[0]


def _gradient(trainee: Trainee, x: Tensor, y: Tensor, reference_models: Any) -> Tensor | None:
    """Return the gradient of the parameters; None if the loss does not depend on them."""
    with torch.enable_grad():
        leaves = [tensor.detach().requires_grad_() for tensor in trainee.split(trainee.initial)]
        loss = trainee.losses(leaves, x, y, reference_models).sum()
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
    except (TypeError, ValueError):  # a function that is written in C
        return 2
    usual = (inspect.Parameter.POSITIONAL_ONLY, inspect.Parameter.POSITIONAL_OR_KEYWORD)
    return sum(each.kind in usual and each.default is each.empty for each in parameters)


def _as_tree(context: LossContext) -> tuple[Tensor, dict[str, Tensor], dict[str, tuple[Tensor, dict[str, Tensor]]]]:
    reference_models = {name: (each.outputs, dict(each.features)) for name, each in context.reference_models.items()}
    return context.inputs, dict(context.features), reference_models


def _as_context(parts: Any) -> LossContext:
    inputs, features, reference_models = parts
    return LossContext(inputs, features, {name: ForwardPass(*each) for name, each in reference_models.items()})
