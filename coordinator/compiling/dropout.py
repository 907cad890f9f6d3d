"""Dropout and stochastic depth whose noise is given from outside."""

from __future__ import annotations

import copy

from torch import Tensor, nn

from coordinator.compiling.noise import NoiseFeed


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
        size = (*x.shape[:2], *(1 for _ in x.shape[2:])) if self.channels else x.shape
        keep = (self.feed.take(size, x) >= self.p).to(x.dtype)
        return x * (keep * (1.0 / (1.0 - self.p)))


def with_fed_dropout(module: nn.Module) -> tuple[nn.Module, NoiseFeed]:
    """A copy of `module` in which all dropout takes its noise from the returned feed."""
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
