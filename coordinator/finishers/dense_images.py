"""DENSE's images: the generator that makes them, how they are shifted, and what BatchNorm layers find unusual."""

from __future__ import annotations

from typing import TYPE_CHECKING

import torch
from torch import Tensor, nn
from torch.nn import functional

if TYPE_CHECKING:
    from collections.abc import Iterable, Sequence

CHANNELS, LATER_CHANNELS = 128, 64
SLOPE = 0.2
SPREAD = 0.02
"""Of the normal distribution that a generator's weights are drawn from."""


class Generator(nn.Module):
    """Noise becomes images with values from 0 to 1: linear, then twice as large, convolved, and again."""

    def __init__(self, noise: int, shape: Sequence[int]) -> None:
        """Make images of `shape` (channels, height, width) of `noise` numbers each."""
        super().__init__()
        channels, self._height, self._width = shape
        self._base = -(-self._height // 4), -(-self._width // 4)
        self.linear = nn.Linear(noise, CHANNELS * self._base[0] * self._base[1])
        self.layers = nn.Sequential(
            nn.BatchNorm2d(CHANNELS),
            nn.Upsample(scale_factor=2),
            nn.Conv2d(CHANNELS, CHANNELS, 3, padding=1),
            nn.BatchNorm2d(CHANNELS),
            nn.LeakyReLU(SLOPE),
            nn.Upsample(scale_factor=2),
            nn.Conv2d(CHANNELS, LATER_CHANNELS, 3, padding=1),
            nn.BatchNorm2d(LATER_CHANNELS),
            nn.LeakyReLU(SLOPE),
            nn.Conv2d(LATER_CHANNELS, channels, 3, padding=1),
            nn.Sigmoid(),
        )

    def forward(self, z: Tensor) -> Tensor:
        """Images; where a side is no multiple of 4, the rest is cut off."""
        out: Tensor = self.layers(self.linear(z).reshape(len(z), CHANNELS, *self._base))
        return out[:, :, : self._height, : self._width]


def draw_weights(generator: Generator, by: torch.Generator) -> None:
    """Begin anew: weights from N(0, 0.02), scales of BatchNorm layers from N(1, 0.02), all else 0."""
    with torch.no_grad():
        for layer in generator.modules():
            if isinstance(layer, nn.Linear | nn.Conv2d | nn.BatchNorm2d):
                centre = 1.0 if isinstance(layer, nn.BatchNorm2d) else 0.0
                layer.weight.copy_(centre + SPREAD * torch.randn(layer.weight.shape, generator=by))
                if layer.bias is not None:
                    layer.bias.zero_()


def shifted(images: Tensor, padding: int, flip: bool, by: torch.Generator) -> Tensor:
    """Each image cut out of itself with a border of zeros, somewhere; half of them mirrored."""
    count, _, height, width = images.shape
    place = images.device
    if padding:
        framed = functional.pad(images, [padding] * 4)
        corners = torch.randint(0, 2 * padding + 1, (2, count, 1), generator=by).to(place)
        rows = (corners[0] + torch.arange(height, device=place))[:, None, :, None]
        columns = (corners[1] + torch.arange(width, device=place))[:, None, None, :]
        which = torch.arange(count, device=place)[:, None, None, None]
        channel = torch.arange(images.shape[1], device=place)[None, :, None, None]
        images = framed[which, channel, rows, columns]
    if flip:
        turned = torch.rand(count, generator=by).to(place) < 0.5
        images = torch.where(turned[:, None, None, None], images.flip(-1), images)
    return images


class UnusualStatistics:
    """Watches the BatchNorm layers of models: how far a batch's mean and variance are from what they have seen."""

    def __init__(self, models: Iterable[nn.Module]) -> None:
        self._found: list[Tensor] = []
        layers = [layer for model in models for layer in model.modules() if _has_statistics(layer)]
        self._hooks = [layer.register_forward_hook(self._look) for layer in layers]

    def _look(self, layer: nn.Module, given: tuple[Tensor, ...], _out: object) -> None:
        x, axes = given[0], [axis for axis in range(given[0].dim()) if axis != 1]
        mean, variance = x.mean(axes), x.var(axes, unbiased=False)
        seen: list[Tensor] = [layer.get_buffer("running_mean"), layer.get_buffer("running_var")]
        self._found.append(_norm(mean - seen[0]) + _norm(variance - seen[1]))

    def taken(self) -> Tensor | float:
        """The sum since the last time that it was taken; 0 where models have no such layer."""
        found, self._found = self._found, []
        return torch.stack(found).sum() if found else 0.0

    def close(self) -> None:
        """Look no more."""
        for hook in self._hooks:
            hook.remove()


def _norm(vector: Tensor) -> Tensor:
    return (vector.square().sum() + 1e-24).sqrt()  # with a slope also at 0


def _has_statistics(layer: nn.Module) -> bool:
    return getattr(layer, "running_mean", None) is not None and getattr(layer, "running_var", None) is not None
