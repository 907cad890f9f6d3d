"""Normalisation that travels inside the graph: a device feeds the numbers its sensor gives."""

from __future__ import annotations

from typing import TYPE_CHECKING

import torch
from torch import Tensor, nn

from sojourn.errors import ModelError

if TYPE_CHECKING:
    from collections.abc import Sequence

    from sojourn.protocol.spec import InputSpec

IMAGE_AXES = 3


class Normalised(nn.Module):
    """The module behind (x - mean) / std."""

    mean: Tensor
    std: Tensor

    def __init__(self, module: nn.Module, mean: Tensor | None, std: Tensor | None) -> None:
        """Normalise what `module` is fed; None leaves it as it is."""
        super().__init__()
        self.module = module
        self.register_buffer("mean", mean)
        self.register_buffer("std", std)

    def forward(self, x: Tensor) -> Tensor:
        """The module's logits for raw values."""
        if self.mean is not None:
            x = x - self.mean
        if self.std is not None:
            x = x / self.std
        out: Tensor = self.module(x)
        return out


def normalised(
    module: nn.Module, spec: InputSpec, mean: Sequence[float] | None, std: Sequence[float] | None
) -> Normalised:
    """Put the normalisation before `module`: per channel for images, per value of the last axis otherwise."""
    if spec.dtype != "float32" and (mean is not None or std is not None):
        raise ModelError(f"an input of {spec.dtype} cannot be normalised: leave mean and std out")
    if std is not None and any(value <= 0 for value in std):
        raise ModelError(f"std must be above 0 everywhere, not {tuple(std)}")
    return Normalised(module, _per_channel(mean, spec, "mean"), _per_channel(std, spec, "std"))


def _per_channel(values: Sequence[float] | None, spec: InputSpec, name: str) -> Tensor | None:
    if values is None:
        return None
    image = len(spec.shape) == IMAGE_AXES
    channels = spec.shape[0] if image else spec.shape[-1] if spec.shape else 1
    if len(values) not in (1, channels):
        raise ModelError(f"{name} has {len(values)} values, the input {channels} channels")
    tensor = torch.tensor(list(values), dtype=torch.float32)
    if not bool(torch.isfinite(tensor).all()):
        raise ModelError(f"{name} must be finite, not {tuple(values)}")
    return tensor.reshape(1, -1, 1, 1) if image else tensor
