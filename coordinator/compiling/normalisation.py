"""Normalisation inside the graph: of the inputs, and BatchNorm (Ioffe and Szegedy 2015) in plain operators."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from math import prod
from typing import Any, Literal

import torch
from torch import Tensor, nn
from torch.nn.modules.batchnorm import _BatchNorm

from sojourn.errors import ModelError
from sojourn.protocol.spec import InputSpec

IMAGE_AXES = 3


class Normalised(nn.Module):
    """The module applied to (x - mean) / std."""

    mean: Tensor
    std: Tensor

    def __init__(self, module: nn.Module, mean: Tensor | None, std: Tensor | None) -> None:
        """Normalise the input of `module`; None leaves it as it is."""
        super().__init__()
        self.module = module
        self.register_buffer("mean", mean)
        self.register_buffer("std", std)

    def forward(self, x: Tensor) -> Tensor:
        """Return the module's logits for raw values."""
        if self.mean is not None:
            x = x - self.mean
        if self.std is not None:
            x = x / self.std
        out: Tensor = self.module(x)
        return out


def normalised(
    module: nn.Module, spec: InputSpec, mean: Sequence[float] | None, std: Sequence[float] | None
) -> Normalised:
    """Put a normalisation before `module`: per channel for images, per value of the last axis otherwise."""
    if spec.dtype != "float32" and (mean is not None or std is not None):
        raise ModelError(f"an input of {spec.dtype} cannot be normalised: do not set mean and std")
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


# BatchNorm (Ioffe and Szegedy 2015) in plain operators, with running statistics as inputs and outputs.
#
# The tracer and the exporter treat torch's own layer as stateless: its statistics stay as they are, and the gradient
# is silently wrong. Here every step is explicit, a forward pass stores the new statistics, and the gradient is derived
# by hand with few passes over the data.
#
# torch refuses to train on one value per channel (a batch of one sample with a 1x1 map), because it has no deviation.
# The last batch of an epoch may be one sample, so here such a batch is normalised with the running statistics, which
# it does not change.

Statistics = Literal["merge", "frozen"]
"""How running statistics are handled: trained and merged, or kept as they are at the start."""
INPUT_AXES: dict[type[nn.Module], tuple[int, ...]] = {
    nn.BatchNorm1d: (2, 3),
    nn.BatchNorm2d: (4,),
    nn.BatchNorm3d: (5,),
}
"""The possible numbers of axes of an input, by layer."""


class PlainBatchNorm(nn.Module):
    """A BatchNorm layer whose parameters and statistics have the same names as in torch's."""

    running_mean: Tensor
    running_var: Tensor

    def __init__(self, layer: _BatchNorm, *, frozen: bool) -> None:
        """Replace `layer`, a BatchNorm with running statistics; if `frozen`, they are constants."""
        super().__init__()
        self.weight: Tensor | None = layer.weight
        self.bias: Tensor | None = layer.bias
        self.register_buffer("running_mean", layer.running_mean)
        self.register_buffer("running_var", layer.running_var)
        self.eps, self.momentum, self.frozen = float(layer.eps), float(layer.momentum or 0), frozen
        self._axes = INPUT_AXES[type(layer)]
        self._scale_learns = self.weight is not None and self.weight.requires_grad
        self.replaces = type(layer).__name__  # errors name the original layer
        self.left: tuple[Tensor, Tensor] | None = None
        """The mean and variance after the last pass; None if there was none since it was reset."""

    def forward(self, x: Tensor) -> Tensor:
        """Normalise by the batch in training, by the running statistics in prediction."""
        if x.dim() not in self._axes:
            raise ValueError(
                f"it takes {' or '.join(map(str, self._axes))} axes, batch and channels first, not {x.dim()}"
            )
        if self.frozen or not self.training:
            return self._by_running(x)
        # A layer that is used twice continues from the result of its first use.
        before = self.left or (self.running_mean, self.running_var)
        out, mean, var = BatchNormalised.apply(x, *self._affine(), *before, self.eps)
        self.left = self._moved(before, (mean, var), x)
        return out

    def _by_running(self, x: Tensor) -> Tensor:
        gamma, beta = self._affine()
        scale = _wide(gamma * torch.rsqrt(self.running_var + self.eps), x)
        mean, beta = _wide(self.running_mean, x), _wide(beta, x)
        # If the scale is trained, its gradient is exact only for centred values; otherwise two constants suffice.
        return (x - mean) * scale + beta if self._scale_learns else x * scale + (beta - mean * scale)

    def _affine(self) -> tuple[Tensor, Tensor]:
        gamma = torch.ones_like(self.running_mean) if self.weight is None else self.weight
        return gamma, torch.zeros_like(self.running_mean) if self.bias is None else self.bias

    def _moved(self, before: tuple[Tensor, Tensor], batch: tuple[Tensor, Tensor], x: Tensor) -> tuple[Tensor, Tensor]:
        """Return the running mean and variance after a batch; the variance is corrected for small batches."""
        count, var = count_of(x), batch[1].detach()
        unbiased = var * (count / (count - 1).clamp(min=1))
        after = [
            (1 - self.momentum) * old.detach() + self.momentum * new
            for old, new in zip(before, (batch[0].detach(), unbiased), strict=True)
        ]
        if _several(x):
            return after[0], after[1]
        mean, var = (torch.where(count > 1, new, old.detach()) for new, old in zip(after, before, strict=True))
        return mean, var


class BatchNormalised(torch.autograd.Function):
    """The normalised input, with the mean and the biased variance that normalised it.

    With d = x - mean, r = 1 / sqrt(var + eps), n values per channel, and g the gradient of the output, the gradient of
    the input is gamma r (g - sum(g) / n - d r² sum(g d) / n). For one value it is gamma r g, because the statistics do
    not depend on it.
    """

    @staticmethod
    def forward(
        ctx: Any, x: Tensor, gamma: Tensor, beta: Tensor, mean: Tensor, var: Tensor, eps: float
    ) -> tuple[Tensor, Tensor, Tensor]:
        """Normalise `x`; the running `mean` and `var` are used if each channel has only one value."""
        axes, count = _axes(x), count_of(x)
        middle = x.mean(axes)
        if not _several(x):
            middle = torch.where(count > 1, middle, mean)
        centred = x - _wide(middle, x)
        spread = (centred * centred).mean(axes)
        if not _several(x):
            spread = torch.where(count > 1, spread, var)
        rstd = torch.rsqrt(spread + eps)
        ctx.save_for_backward(centred, rstd, gamma)
        ctx.mark_non_differentiable(middle, spread)
        return centred * _wide(gamma * rstd, x) + _wide(beta, x), middle, spread

    @staticmethod
    def backward(ctx: Any, *gradients: Tensor) -> tuple[Tensor | None, ...]:
        """Return the gradients of the input, gamma and beta."""
        centred, rstd, gamma = ctx.saved_tensors
        grad, count, axes = gradients[0], count_of(gradients[0]), _axes(gradients[0])
        by_beta, by_centred = grad.sum(axes), (grad * centred).sum(axes)
        scale = gamma * rstd
        share = scale / count if _several(grad) else torch.where(count > 1, scale / count, 0.0)
        inner = _wide(-share * rstd * rstd * by_centred, grad)
        by_x = grad * _wide(scale, grad) + (centred * inner - _wide(share * by_beta, grad))
        return by_x, by_centred * rstd, by_beta, None, None, None


def with_plain_batchnorm(module: nn.Module, statistics: Statistics) -> nn.Module:
    """Replace every BatchNorm layer of the module in place with plain operators.

    If a layer's own parameters are frozen, its statistics are frozen, too.
    """
    made: dict[nn.Module, PlainBatchNorm] = {}
    if isinstance(module, _BatchNorm):
        return _plain(module, statistics, made)
    for parent in list(module.modules()):
        for name, child in list(parent._modules.items()):
            if isinstance(child, _BatchNorm):
                setattr(parent, name, _plain(child, statistics, made))
    return module


def layers_with_state(module: nn.Module) -> Iterator[tuple[str, PlainBatchNorm]]:
    """Yield the layers whose statistics are part of the model's vector, by name."""
    for name, layer in module.named_modules():
        if isinstance(layer, PlainBatchNorm) and not layer.frozen:
            yield f"{name}." if name else "", layer


def count_of(x: Tensor) -> Tensor:
    """Return the number of values of each channel as a value of the graph: it depends on the batch."""
    return torch.ones_like(x.select(1, 0)).sum()


def _plain(layer: _BatchNorm, statistics: Statistics, made: dict[nn.Module, PlainBatchNorm]) -> PlainBatchNorm:
    """Return one replacement per layer, even if the layer is used in several places."""
    own = list(layer.parameters(recurse=False))
    frozen = statistics == "frozen" or (bool(own) and not any(each.requires_grad for each in own))
    return made.setdefault(layer, PlainBatchNorm(layer, frozen=frozen))


def _several(x: Tensor) -> bool:
    """Whether each channel has several values even in a batch of one."""
    return prod(int(size) for size in x.shape[2:]) > 1


def _axes(x: Tensor) -> tuple[int, ...]:
    """Return all axes except that of the channels."""
    return (0, *range(2, x.dim()))


def _wide(values: Tensor, x: Tensor) -> Tensor:
    """Reshape one number per channel so that it broadcasts with `x`."""
    return values.reshape(1, -1, *(1 for _ in x.shape[2:]))
