"""A small dense autoencoder: what it cannot bring through its narrow middle it cannot reconstruct."""

from __future__ import annotations

from itertools import pairwise
from math import prod
from typing import TYPE_CHECKING

from torch import nn

if TYPE_CHECKING:
    from collections.abc import Sequence

    from sojourn.protocol.spec import InputSpec


def autoencoder(
    input: InputSpec,  # noqa: A002
    classes: int,
    hidden: Sequence[int] = (32, 8),
    dropout: float = 0.0,
) -> nn.Module:
    """Layers of these sizes down to the last, the middle, and back, with ReLU between them."""
    if not hidden:
        raise ValueError("hidden must name at least the size of the middle")
    sizes = [prod(input.shape), *hidden, *reversed(hidden[:-1])]
    layers: list[nn.Module] = [nn.Flatten()]
    for inward, outward in pairwise(sizes):
        layers += [nn.Linear(inward, outward), nn.ReLU()]
        if dropout:
            layers.append(nn.Dropout(dropout))
    return nn.Sequential(*layers, nn.Linear(sizes[-1], classes))
