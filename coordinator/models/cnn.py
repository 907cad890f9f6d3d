"""A small convolutional network for images of 8x8 and up: two convolutions, two poolings, two linear layers."""

from __future__ import annotations

from itertools import pairwise
from typing import TYPE_CHECKING

from torch import nn

if TYPE_CHECKING:
    from collections.abc import Sequence

    from sojourn.protocol.spec import InputSpec

IMAGE_AXES = 3


def cnn(
    input: InputSpec,  # noqa: A002
    classes: int,
    channels: Sequence[int] = (16, 32),
    hidden: int = 64,
    dropout: float = 0.0,
) -> nn.Module:
    """One 3x3 convolution and one 2x2 pooling per entry of `channels`, then `hidden` units."""
    if len(input.shape) != IMAGE_AXES:
        raise ValueError(f"cnn takes images (channels, height, width), not {input.shape}")
    first, height, width = input.shape
    shrink = 2 ** len(channels)
    if height < shrink or width < shrink:
        raise ValueError(f"{height}x{width} is too small for {len(channels)} poolings")
    layers: list[nn.Module] = []
    for inward, outward in pairwise([first, *channels]):
        # Pooling first: the same numbers as after ReLU, which then has a quarter of them to look at.
        layers += [nn.Conv2d(inward, outward, 3, padding=1), nn.MaxPool2d(2), nn.ReLU()]
    flat = [first, *channels][-1] * (height // shrink) * (width // shrink)
    layers += [nn.Flatten(), nn.Linear(flat, hidden), nn.ReLU()]
    if dropout:
        layers.append(nn.Dropout(dropout))
    return nn.Sequential(*layers, nn.Linear(hidden, classes))
