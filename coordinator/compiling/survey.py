"""Check a module's layers and operators before it is traced."""

from __future__ import annotations

from collections import Counter
from collections.abc import Set as AbstractSet
from dataclasses import dataclass
from math import prod

import torch
from torch import Tensor, nn
from torch.nn.modules.batchnorm import _BatchNorm
from torch.nn.modules.instancenorm import _InstanceNorm
from torch.nn.parameter import is_lazy

from coordinator.compiling.layer_errors import LayerRefused, Operators, RunningLayer, describe
from coordinator.compiling.normalisation import INPUT_AXES
from coordinator.compiling.randomness import NoiseFeed, learn_draws
from coordinator.compiling.recurrent_layers import Recurrence
from sojourn.errors import ModelError
from sojourn.protocol.task import TaskSpec

REFUSED = (
    nn.RReLU,
    nn.FractionalMaxPool2d,
    nn.FractionalMaxPool3d,
    nn.MaxUnpool1d,
    nn.MaxUnpool2d,
    nn.MaxUnpool3d,
    nn.EmbeddingBag,
)
MAX_OPERATORS = 4_000
"""The maximum for a forward pass: about 250 steps of a GRUCell, or four times a DenseNet of 201 layers; minutes to
compile.
"""
REPLACEMENTS = {
    "EmbeddingBag": "Embedding and a mean over its second axis",
    "FractionalMaxPool": "MaxPool2d",
    "grid_sampler": "Upsample, or Conv2d with a stride",
    "MaxUnpool": "Upsample or ConvTranspose2d",
    "max_unpool": "Upsample or ConvTranspose2d",
    "RReLU": "LeakyReLU",
}
"""Replacements for layers and operators that cannot be translated, by the beginning of their names."""


_OUTPUTS = {
    "multilabel": "a number for each label, without a sigmoid",
    "regression": "a number for each quantity",
    "reconstruction": "as many numbers as a sample has, in its shape",
    "forecast": "for each predicted step a number for each channel",
    "tokens": "at each place a number for each token, without a softmax",
}
"""The required outputs for a sample, by kind of task."""


@dataclass(frozen=True)
class Survey:
    """The results of one forward pass: the shapes of its noise, and its operators with their layers."""

    noise: tuple[tuple[int, ...], ...]
    operators: dict[str, str]

    def layer_of(self, operator: str) -> str:
        """Return the layer that runs an operator such as `gelu`, or its gradient `gelu_backward`."""
        forward = operator.removesuffix("_backward").strip("_")
        return self.operators.get(operator) or self.operators.get(forward) or "the model"


def check_layers(module: nn.Module) -> None:
    """Refuse layers and tensors that cannot become one float32 vector and a pure function."""
    for name, layer in module.named_modules():
        reason = _refusal(layer)
        if reason:
            raise ModelError(f"{describe(name, layer)} cannot be compiled: {reason}")
    trainable = [(name, p) for name, p in module.named_parameters() if p.requires_grad]
    if not trainable:
        raise ModelError("the model has no trainable tensor")
    for name, parameter in trainable:
        if parameter.dtype != torch.float32:
            raise ModelError(f"{name} is {parameter.dtype}: a model's tensors must be float32")


def suggestion_for(layer: str) -> str:
    """Return the suggested replacement for a layer that cannot be translated, as the end of a sentence."""
    found = next((better for kind, better in REPLACEMENTS.items() if f"({kind}" in layer), "")
    return f": use {found}" if found else ""


def linear_weights(module: nn.Module, trained: AbstractSet[str]) -> tuple[str, ...]:
    """Return the names of the trained weights of fully connected layers, in the order of the layers."""
    layers = (name for name, layer in module.named_modules() if isinstance(layer, nn.Linear))
    return tuple(name for name in (f"{layer}.weight".lstrip(".") for layer in layers) if name in trained)


def take_survey(module: nn.Module, feed: NoiseFeed, x: Tensor, task: TaskSpec, *, unknown: bool = False) -> Survey:
    """Run the module once in training and check its operators and outputs."""
    module.train()
    before = {name: buffer.clone() for name, buffer in module.named_buffers()}
    with torch.no_grad(), torch.random.fork_rng(devices=[]), RunningLayer(module) as running:
        operators = Operators(running)
        try:
            with operators:
                outputs = learn_draws(module, feed, x)
        except LayerRefused as error:
            raise ModelError(f"{running.layer} cannot be compiled: {error}") from error
        except Exception as error:
            shape = tuple(x.shape[1:])
            raise ModelError(f"{running.layer} fails on an input of shape {shape}: {error}") from error
    _check_randomness(operators)
    _check_operators(operators)
    _check_length(module, operators.runs, passes=2 if feed.draws else 1)
    _check_buffers(module, before)
    _check_outputs(outputs, len(x), task, unknown=unknown)
    names = {_name(operator): layer for operator, layer in reversed(operators.seen.items())}
    return Survey(noise=tuple(draw.shape for draw in feed.draws), operators=names)


def _refusal(layer: nn.Module) -> str | None:
    if any(is_lazy(tensor) for tensor in (*layer.parameters(recurse=False), *layer.buffers(recurse=False))):
        return "its shape is not known yet; replace the lazy layer by one with sizes"
    if isinstance(layer, _BatchNorm):
        return _refusal_of_batchnorm(layer)
    if isinstance(layer, _InstanceNorm) and layer.track_running_stats:
        return "it keeps running statistics; use track_running_stats=False or GroupNorm"
    if isinstance(layer, REFUSED):
        return f"it cannot become a graph{suggestion_for(describe('', layer))}"
    if isinstance(layer, nn.Embedding) and layer.max_norm is not None:
        return "max_norm changes the weights during a forward pass; remove it"
    if isinstance(layer, nn.Embedding) and (layer.scale_grad_by_freq or layer.sparse):
        return "scale_grad_by_freq and sparse gradients cannot become a graph; remove them"
    return None


def _refusal_of_batchnorm(layer: _BatchNorm) -> str | None:
    if type(layer) not in INPUT_AXES:
        return "only torch's BatchNorm1d, BatchNorm2d and BatchNorm3d are supported; use one of these"
    if layer.running_mean is None:
        return (
            "without running statistics an output depends on the other samples of its batch; use "
            "track_running_stats=True or GroupNorm"
        )
    if layer.momentum is None:
        return "with momentum=None its statistics depend on the number of batches; set a number, such as 0.1"
    return None


def _check_randomness(operators: Operators) -> None:
    for operator, layer in operators.seen.items():
        if torch.Tag.nondeterministic_seeded in operator.tags:
            raise ModelError(f"{layer} draws random numbers itself ({_name(operator)}); use nn.Dropout or F.dropout")


def _check_operators(operators: Operators) -> None:
    for operator, layer in operators.seen.items():
        name = _name(operator)
        if better := next((each for start, each in REPLACEMENTS.items() if name.startswith(start)), None):
            raise ModelError(f"{layer} cannot be compiled: its operator {name} cannot become a graph; use {better}")


def _check_length(module: nn.Module, runs: Counter[str], passes: int) -> None:
    """Refuse a model whose number of operators would make compiling take many minutes."""
    single = {describe(name, layer) for name, layer in module.named_modules() if isinstance(layer.forward, Recurrence)}
    written_out = Counter({layer: count // passes for layer, count in runs.items() if layer not in single})
    if written_out.total() > MAX_OPERATORS:
        layer, most = written_out.most_common(1)[0]
        raise ModelError(
            f"the model runs {written_out.total():,} operators in a forward pass, and the maximum is "
            f"{MAX_OPERATORS:,}. {most:,} of them are in {layer}: if it is in a loop over the steps of a sequence, "
            "use nn.RNN, nn.GRU or nn.LSTM over the whole sequence"
        )


def _check_buffers(module: nn.Module, before: dict[str, Tensor]) -> None:
    for name, buffer in module.named_buffers():
        if name not in before or not torch.equal(before[name], buffer):
            owner, _, _ = name.rpartition(".")
            layer = describe(owner, module.get_submodule(owner))
            raise ModelError(
                f"{layer} changes its buffer {name!r} while it runs, and a graph has no state; "
                "use a layer without running state, such as GroupNorm"
            )


def _check_outputs(outputs: object, batch: int, task: TaskSpec, *, unknown: bool) -> None:
    classified = task.kind == "classification"
    if not isinstance(outputs, Tensor):
        raise ModelError(
            f"the model returns a {type(outputs).__name__}: its forward must return one tensor, a row of "
            f"{'logits' if classified else 'outputs'} for each sample. Return only that part (several outputs or "
            "losses are not supported)"
        )
    found, wanted = tuple(outputs.shape), (batch, *task.output)
    if found == wanted:
        return
    if not classified:
        raise ModelError(
            f"the model's output has shape {found} for {batch} samples, and for the task {task.kind!r} it must be "
            f"{wanted}: {_OUTPUTS[task.kind]}. {_reshaping(found[1:], task.output)}"
        )
    classes = task.output[0]
    mismatch = f"the model's output has shape {found} for {batch} samples of {classes} classes: it must be {wanted}"
    if found in ((batch,), (batch, 1)):
        raise ModelError(
            f"{mismatch}, one number for each class. A single output, for yes or no or for a quantity, cannot be "
            f"trained with it: use a last layer with {classes} outputs, without sigmoid or softmax (the loss is "
            'cross-entropy), or set another task, [task] kind = "regression" for a quantity (docs/tasks.md)'
        )
    if len(found) == len(wanted) and found[0] == batch and unknown:
        raise ModelError(
            f"the model's output has shape {found} for {batch} samples: it must be {wanted}, the data's {classes - 1} "
            "classes and one more for unknown samples, which the objective outliers (fedov) needs. Use a last layer "
            f"with {classes} outputs"
        )
    if len(found) == len(wanted) and found[0] == batch:
        raise ModelError(
            f"{mismatch}. Its last layer has {found[1]} outputs, and the data has {classes} classes: make them equal"
        )
    raise ModelError(f"{mismatch}. Average over the other axes, or flatten them, before its last layer")


def _reshaping(found: tuple[int, ...], wanted: tuple[int, ...]) -> str:
    """Describe how to change a model's outputs for a sample to the required shape."""
    flatten = "nn.Flatten(1)" if len(found) > 1 else ""
    unflatten = f"nn.Unflatten(1, {wanted})" if len(wanted) > 1 else ""
    layers = " and ".join(filter(None, (flatten, unflatten)))
    if prod(found) == prod(wanted):
        return f"Put {layers or 'nn.Flatten(0)'} after its last layer"
    return f"Use a last layer with {prod(wanted)} outputs" + (f", and put {layers} after it" if layers else "")


def _name(operator: torch._ops.OpOverload) -> str:
    return operator.overloadpacket.__name__.strip("_")
