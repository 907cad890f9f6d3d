"""A multi-layer perceptron for flat inputs and small images."""

from __future__ import annotations

from itertools import pairwise
from math import prod
from typing import TYPE_CHECKING

from torch import nn

if TYPE_CHECKING:
    from collections.abc import Sequence

    from sojourn.protocol.spec import InputSpec


def mlp(input: InputSpec, classes: int, hidden: Sequence[int] = (64,), dropout: float = 0.0) -> nn.Module:  # noqa: A002
    """Hidden layers with ReLU, and dropout after each where asked for."""
    layers: list[nn.Module] = [nn.Flatten()]
    for inward, outward in pairwise([prod(input.shape), *hidden]):
        layers += [nn.Linear(inward, outward), nn.ReLU()]
        if dropout:
            layers.append(nn.Dropout(dropout))
    return nn.Sequential(*layers, nn.Linear([prod(input.shape), *hidden][-1], classes))
