"""What a module is made of, and whether it can be compiled at all: asked before anything is traced."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

import torch
from torch import Tensor, nn
from torch.nn.modules.batchnorm import _BatchNorm
from torch.nn.modules.instancenorm import _InstanceNorm
from torch.nn.parameter import is_lazy

from coordinator.compiling.layers import Operators, Whereabouts, describe
from sojourn.errors import ModelError

if TYPE_CHECKING:
    from collections.abc import Set as AbstractSet

    from coordinator.compiling.dropout import NoiseFeed

RANDOM_LAYERS = (nn.AlphaDropout, nn.FeatureAlphaDropout, nn.RReLU, nn.FractionalMaxPool2d)
INSTEAD = {
    "AdaptiveMaxPool": "AdaptiveAvgPool2d, or MaxPool2d with a window of its own",
    "EmbeddingBag": "Embedding and a mean over its second axis",
    "FractionalMaxPool": "MaxPool2d",
    "LPPool": "AvgPool2d",
    "MaxPool3d": "Conv3d with a stride",
    "MaxUnpool": "Upsample or ConvTranspose2d",
}
"""What to use in place of layers that have no translation, by how their names begin."""


@dataclass(frozen=True)
class Survey:
    """What one forward pass showed."""

    noise: tuple[tuple[int, ...], ...]
    operators: dict[str, str]

    def layer_of(self, operator: str) -> str:
        """The layer that runs an operator such as `gelu`, or its gradient `gelu_backward`."""
        forward = operator.removesuffix("_backward").strip("_")
        return self.operators.get(operator) or self.operators.get(forward) or "the model"


def check_layers(module: nn.Module) -> None:
    """Refuse layers and tensors that cannot be one float32 vector and a pure function."""
    for name, layer in module.named_modules():
        reason = _refusal(layer)
        if reason:
            raise ModelError(f"{describe(name, layer)} cannot be compiled: {reason}")
    trainable = [(name, p) for name, p in module.named_parameters() if p.requires_grad]
    if not trainable:
        raise ModelError("the model has no tensor to train")
    for name, parameter in trainable:
        if parameter.dtype != torch.float32:
            raise ModelError(f"{name} is {parameter.dtype}: a model's tensors must be float32")


def instead_of(layer: str) -> str:
    """What a person may use in place of a layer that has no translation, as the rest of a sentence."""
    found = next((better for kind, better in INSTEAD.items() if f"({kind}" in layer), "")
    return f": use {found}" if found else ""


def linear_weights(module: nn.Module, trained: AbstractSet[str]) -> tuple[str, ...]:
    """The names of the weights of its fully connected layers that are trained, in the order of the layers."""
    layers = (name for name, layer in module.named_modules() if isinstance(layer, nn.Linear))
    return tuple(name for name in (f"{layer}.weight".lstrip(".") for layer in layers) if name in trained)


def take_survey(module: nn.Module, feed: NoiseFeed, x: Tensor, classes: int) -> Survey:
    """Run the module once in training and look at what it does."""
    module.train()
    feed.give(None)
    before = {name: buffer.clone() for name, buffer in module.named_buffers()}
    with torch.no_grad(), torch.random.fork_rng(devices=[]), Whereabouts(module) as whereabouts:
        operators = Operators(whereabouts)
        try:
            with operators:
                answers = module(x)
        except Exception as error:
            shape = tuple(x.shape[1:])
            raise ModelError(f"{whereabouts.layer} fails on an input of shape {shape}: {error}") from error
    _check_randomness(operators)
    _check_buffers(module, before)
    _check_answers(answers, len(x), classes)
    names = {_name(operator): layer for operator, layer in reversed(operators.seen.items())}
    return Survey(noise=tuple(feed.shapes), operators=names)


def _refusal(layer: nn.Module) -> str | None:
    if isinstance(layer, _BatchNorm):
        return (
            "it keeps running statistics, which differ from device to device and are no weights. Use GroupNorm or "
            "LayerNorm; models of torchvision take norm_layer=lambda channels: nn.GroupNorm(8, channels)"
        )
    if isinstance(layer, _InstanceNorm) and layer.track_running_stats:
        return "it keeps running statistics; use track_running_stats=False or GroupNorm"
    if isinstance(layer, RANDOM_LAYERS):
        return "it draws its own random numbers; use Dropout"
    if isinstance(layer, nn.Embedding | nn.EmbeddingBag) and layer.max_norm is not None:
        return "max_norm changes the weights during a forward pass; leave it out"
    if isinstance(layer, nn.Embedding | nn.EmbeddingBag) and (layer.scale_grad_by_freq or layer.sparse):
        return "scale_grad_by_freq and sparse gradients have no graph; leave them out"
    if any(is_lazy(parameter) for parameter in layer.parameters(recurse=False)):
        return "its shape is not known yet; give the size instead of a lazy layer"
    return None


def _check_randomness(operators: Operators) -> None:
    for operator, layer in operators.seen.items():
        if torch.Tag.nondeterministic_seeded in operator.tags:
            raise ModelError(f"{layer} draws random numbers of its own ({_name(operator)}); use an nn.Dropout layer")


def _check_buffers(module: nn.Module, before: dict[str, Tensor]) -> None:
    for name, buffer in module.named_buffers():
        if name not in before or not torch.equal(before[name], buffer):
            owner, _, _ = name.rpartition(".")
            layer = describe(owner, module.get_submodule(owner))
            raise ModelError(
                f"{layer} changes its buffer {name!r} while it runs, and a graph has no memory; "
                "use a layer without running state, such as GroupNorm"
            )


def _check_answers(answers: object, batch: int, classes: int) -> None:
    if not isinstance(answers, Tensor):
        raise ModelError(
            f"the model returns a {type(answers).__name__}: its forward must return one tensor, a row of logits for "
            "each sample. Return that part alone (several outputs or losses cannot be trained today)"
        )
    found, wanted = tuple(answers.shape), (batch, classes)
    if found == wanted:
        return
    told = f"the model answers {found} for {batch} samples of {classes} classes: it must be {wanted}"
    if found in ((batch,), (batch, 1)):
        raise ModelError(
            f"{told}, one number for each class. A single output, for yes or no or for a quantity, cannot be trained "
            f"today: let its last layer have {classes} outputs, without sigmoid or softmax (the loss is cross-entropy)"
        )
    if len(found) == len(wanted) and found[0] == batch:
        raise ModelError(
            f"{told}. Its last layer has {found[1]} outputs, and the data {classes} classes: make them equal"
        )
    raise ModelError(f"{told}. Take a mean over the other axes, or flatten them, before its last layer")


def _name(operator: torch._ops.OpOverload) -> str:
    return operator.overloadpacket.__name__.strip("_")
