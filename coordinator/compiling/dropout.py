"""Dropout whose noise is given from outside, so that a graph stays a function of its inputs."""

from __future__ import annotations

import copy
from typing import TYPE_CHECKING

from torch import Tensor, nn

if TYPE_CHECKING:
    from collections.abc import Sequence


class NoiseFeed:
    """Hands each dropout its noise in the order of the calls, and remembers the shapes asked for."""

    def __init__(self) -> None:
        """Start without noise."""
        self.shapes: list[tuple[int, ...]] = []
        self._noise: Sequence[Tensor] | None = None

    def give(self, noise: Sequence[Tensor] | None) -> None:
        """Use `noise` for the next forward pass; None only records shapes."""
        self._noise = noise
        self.shapes = []

    def take(self, shape: tuple[int, ...], x: Tensor) -> Tensor:
        """The noise for one call: `shape` is without the batch."""
        self.shapes.append(shape)
        if self._noise is None:
            return x.new_full((x.shape[0], *shape), 0.999)
        return self._noise[len(self.shapes) - 1]


class FedDropout(nn.Module):
    """Dropout with mask = (noise >= p) / (1 - p); whole channels share a number when `channels` is set."""

    def __init__(self, p: float, channels: bool, feed: NoiseFeed) -> None:
        """Take the noise from `feed`."""
        super().__init__()
        self.p, self.channels, self.feed = p, channels, feed
        # Errors name the layer as its author wrote it.
        self.stands_for = "Dropout"

    def forward(self, x: Tensor) -> Tensor:
        """Drop in training, pass through in prediction."""
        if not self.training or self.p == 0:
            return x
        if self.p == 1:
            return x * 0.0
        shape = (int(x.shape[1]), *(1 for _ in x.shape[2:])) if self.channels else tuple(int(n) for n in x.shape[1:])
        keep = (self.feed.take(shape, x) >= self.p).to(x.dtype)
        return x * (keep * (1.0 / (1.0 - self.p)))


def with_fed_dropout(module: nn.Module) -> tuple[nn.Module, NoiseFeed]:
    """A copy of `module` in which every dropout layer takes its noise from the returned feed."""
    feed = NoiseFeed()
    if _is_dropout(module):
        return _fed(module, feed), feed
    module = copy.deepcopy(module)
    for parent in list(module.modules()):
        for name, child in list(parent.named_children()):
            if _is_dropout(child):
                setattr(parent, name, _fed(child, feed))
    return module, feed


def _is_dropout(module: nn.Module) -> bool:
    return type(module) in (nn.Dropout, nn.Dropout1d, nn.Dropout2d, nn.Dropout3d)


def _fed(module: nn.Module, feed: NoiseFeed) -> FedDropout:
    p = module.p
    if not isinstance(p, float | int):
        raise TypeError(f"dropout with p = {p!r}")
    return FedDropout(float(p), type(module) is not nn.Dropout, feed)
