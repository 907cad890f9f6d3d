"""ResNet-8 (He et al. 2016, three blocks) with GroupNorm (Wu and He 2018), which keeps no running statistics."""

from __future__ import annotations

from itertools import pairwise
from typing import TYPE_CHECKING

from torch import Tensor, nn
from torch.nn import functional

if TYPE_CHECKING:
    from sojourn.protocol.spec import InputSpec

IMAGE_AXES = 3


class ResidualBlock(nn.Module):
    """Two 3x3 convolutions beside a shortcut, which is a 1x1 convolution where the shape changes."""

    def __init__(self, inward: int, outward: int, stride: int, groups: int) -> None:
        """From `inward` to `outward` channels."""
        super().__init__()
        self.conv1 = nn.Conv2d(inward, outward, 3, stride=stride, padding=1, bias=False)
        self.norm1 = nn.GroupNorm(groups, outward)
        self.conv2 = nn.Conv2d(outward, outward, 3, padding=1, bias=False)
        self.norm2 = nn.GroupNorm(groups, outward)
        self.shortcut: nn.Module = nn.Identity()
        if stride != 1 or inward != outward:
            self.shortcut = nn.Sequential(
                nn.Conv2d(inward, outward, 1, stride=stride, bias=False), nn.GroupNorm(groups, outward)
            )

    def forward(self, x: Tensor) -> Tensor:
        """The residual sum."""
        inner = functional.relu(self.norm1(self.conv1(x)))
        return functional.relu(self.norm2(self.conv2(inner)) + self.shortcut(x))


class ResNet8(nn.Module):
    """A stem, three blocks of `width`, 2 `width` and 4 `width` channels, and the mean over the image."""

    def __init__(self, channels: int, classes: int, width: int, groups: int) -> None:
        """Take images of `channels`."""
        super().__init__()
        self.stem = nn.Conv2d(channels, width, 3, padding=1, bias=False)
        self.norm = nn.GroupNorm(groups, width)
        widths = [width, width, 2 * width, 4 * width]
        self.blocks = nn.Sequential(*(ResidualBlock(a, b, 1 if a == b else 2, groups) for a, b in pairwise(widths)))
        self.pool = nn.AdaptiveAvgPool2d(1)
        self.head = nn.Linear(widths[-1], classes)

    def forward(self, x: Tensor) -> Tensor:
        """The logits."""
        features = self.blocks(functional.relu(self.norm(self.stem(x))))
        logits: Tensor = self.head(self.pool(features).flatten(1))
        return logits


def resnet8(input: InputSpec, classes: int, width: int = 16, groups: int = 8) -> nn.Module:  # noqa: A002
    """ResNet-8 for images of any size."""
    if len(input.shape) != IMAGE_AXES:
        raise ValueError(f"resnet8 takes images (channels, height, width), not {input.shape}")
    return ResNet8(input.shape[0], classes, width, groups)
