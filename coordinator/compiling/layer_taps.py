"""The graph of what the layers of weights are given: for objectives that look at a layer's inputs on the device."""

from __future__ import annotations

from contextlib import ExitStack
from typing import TYPE_CHECKING

import torch
from torch import nn

from coordinator.compiling.exporting import exported, trace_outputs
from coordinator.compiling.taps import Tap, last_linear
from sojourn.errors import ModelError
from sojourn.protocol.spec import TapGraph, TapLayer

if TYPE_CHECKING:
    from collections.abc import Sequence

    from torch import Tensor

    from coordinator.compiling.tracing import Trainee


def tap_graph(trainee: Trainee, x: Tensor) -> TapGraph:
    """What each fully connected layer and each convolution is given, as the model predicts; the answers' layer last."""
    inner = trainee.module.get_submodule("module")
    names = [name for name, layer in inner.named_modules() if _has_plain_weights(layer)]
    last = last_linear(inner, x, "the objective echo")
    ordered = [*(name for name in names if name != last), last]
    taps = [Tap(name, given=True) for name in ordered]

    def given(tensors: Sequence[Tensor], batch: Tensor) -> tuple[Tensor, ...]:
        with ExitStack() as stack:
            seen = [stack.enter_context(tap.watched(inner)) for tap in taps]
            trainee.outputs(tensors, batch)
        for name, each in zip(ordered, seen, strict=True):
            if len(each) != 1:
                raise ModelError(f"the layer {name} runs {len(each)} times for a sample, and echo looks at it once")
        return tuple(each[0] for each in seen)

    with torch.no_grad():
        shapes = [tuple(each.shape[1:]) for each in given(trainee.split(trainee.initial), x)]
    layers = tuple(_layer(inner, name, shape) for name, shape in zip(ordered, shapes, strict=True))
    traced = trace_outputs(given, trainee, x, [f"tap_{at}" for at in range(len(layers))])
    return TapGraph(exported(traced), layers)


def _has_plain_weights(layer: nn.Module) -> bool:
    """Whether a layer's answers are its weights times its inputs, or times each patch of them."""
    if not isinstance(layer, nn.Linear | nn.Conv2d) or not layer.weight.requires_grad:
        return False
    return isinstance(layer, nn.Linear) or (layer.groups == 1 and layer.dilation == (1, 1))


def _layer(inner: nn.Module, name: str, shape: tuple[int, ...]) -> TapLayer:
    layer = inner.get_submodule(name)
    begin = f"{name}." if name else ""
    bias = f"{begin}bias" if getattr(layer, "bias", None) is not None else ""
    kernel = (int(layer.kernel_size[0]), int(layer.kernel_size[1])) if isinstance(layer, nn.Conv2d) else ()
    return TapLayer(f"{begin}weight", bias, shape, kernel)
