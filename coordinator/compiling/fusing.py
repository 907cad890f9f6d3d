"""FedFusion's operator: what the trunk gives, and what a frozen trunk gives, as one input of the head.

Yao, Huang, Wu, Zhang and Sun: "Towards Faster and Better Federated Learning: A Feature Fusion Approach", ICIP 2019.
"""

from __future__ import annotations

from contextlib import contextmanager
from typing import TYPE_CHECKING

import torch
from torch import Tensor, nn

if TYPE_CHECKING:
    from collections.abc import Iterator


class FusionLayer(nn.Module):
    """F(l, g) with l of the trunk that is trained and g of the frozen one; alone, g is l.

    `single` and `multi`: gamma g + (1 - gamma) l, which starts at gamma 0 and alone is l for any gamma. `conv`: a 1x1
    convolution of both, which starts as [I | 0], so that it gives l.
    """

    def __init__(self, operator: str, channels: int, *, first: bool) -> None:
        """For maps of so many channels, which stand in the first axis after the samples or in the last one."""
        super().__init__()
        self._first, self.given, self.seen = first, None, None
        if operator == "conv":
            self.weight = nn.Parameter(torch.cat([torch.eye(channels), torch.zeros(channels, channels)], 1))
            self.bias = nn.Parameter(torch.zeros(channels))
        else:
            self.gamma = nn.Parameter(torch.zeros(channels if operator == "multi" else 1))

    given: Tensor | None
    """What the frozen trunk gives, while there is one."""
    seen: Tensor | None
    """What the trunk gave last."""

    def forward(self, here: Tensor) -> Tensor:
        """What the head is given."""
        self.seen, there = here, self.given
        if hasattr(self, "weight"):
            return self._mixed(here, here if there is None else there)
        if there is None:
            return here
        gamma = self._wide(self.gamma, here)
        return gamma * there + (1 - gamma) * here

    def _mixed(self, here: Tensor, there: Tensor) -> Tensor:
        both = torch.cat([here, there], 1 if self._first else -1)
        if not self._first:
            return nn.functional.linear(both, self.weight, self.bias)
        flat = both.flatten(2).transpose(1, 2)
        return nn.functional.linear(flat, self.weight, self.bias).transpose(1, 2).reshape(here.shape)

    def _wide(self, values: Tensor, like: Tensor) -> Tensor:
        return values.reshape(1, -1, *(1 for _ in like.shape[2:])) if self._first else values


class FusedLayer(nn.Module):
    """A layer with the fusion behind it, or before it where it is the head."""

    def __init__(self, layer: nn.Module, fusion: FusionLayer, *, before: bool) -> None:
        super().__init__()
        self.layer, self.fusion, self._before = layer, fusion, before

    def forward(self, x: Tensor) -> Tensor:
        """What the layer gives, or what it makes of both."""
        found: Tensor = self.layer(self.fusion(x)) if self._before else self.fusion(self.layer(x))
        return found


def fusion_in(module: nn.Module) -> FusionLayer:
    """The one fusion of a model."""
    return next(layer for layer in module.modules() if isinstance(layer, FusionLayer))


@contextmanager
def fused_with(fusion: FusionLayer, given: Tensor) -> Iterator[None]:
    """While open, the model is fused with what a frozen trunk gave."""
    fusion.given = given
    try:
        yield
    finally:
        fusion.given = None
