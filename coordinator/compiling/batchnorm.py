"""BatchNorm (Ioffe and Szegedy 2015) in plain operators, whose running statistics come in and go out.

The tracer and the exporter take torch's own layer for one without memory: its statistics stay as they are, and the
gradient is wrong, without a word. Here every step is written out, the new statistics are what a forward pass leaves
behind, and the gradient is worked out by hand in few passes over the data.

torch refuses to train on one value per channel (a batch of one sample, where the map is 1x1), for it has no deviation.
The last batch of an epoch may well be one sample, so here such a batch is normalised with the running statistics, which
it leaves as they are.
"""

from __future__ import annotations

from math import prod
from typing import TYPE_CHECKING, Any, Literal

import torch
from torch import Tensor, nn
from torch.nn.modules.batchnorm import _BatchNorm

if TYPE_CHECKING:
    from collections.abc import Iterator

Statistics = Literal["merge", "frozen"]
"""What becomes of running statistics: they are trained and merged, or they stay what they are at the start."""
KINDS: dict[type[nn.Module], tuple[int, ...]] = {nn.BatchNorm1d: (2, 3), nn.BatchNorm2d: (4,), nn.BatchNorm3d: (5,)}
"""How many axes an input may have, by layer."""


class PlainBatchNorm(nn.Module):
    """A BatchNorm layer whose parameters and statistics have the names that they have in torch's."""

    running_mean: Tensor
    running_var: Tensor

    def __init__(self, layer: _BatchNorm, *, frozen: bool) -> None:
        """Stand for `layer`, a BatchNorm with running statistics; `frozen`, they are constants."""
        super().__init__()
        self.weight: Tensor | None = layer.weight
        self.bias: Tensor | None = layer.bias
        self.register_buffer("running_mean", layer.running_mean)
        self.register_buffer("running_var", layer.running_var)
        self.eps, self.momentum, self.frozen = float(layer.eps), float(layer.momentum or 0), frozen
        self._axes = KINDS[type(layer)]
        self._scale_learns = self.weight is not None and self.weight.requires_grad
        self.stands_for = type(layer).__name__  # errors name the layer as its author wrote it
        self.left: tuple[Tensor, Tensor] | None = None
        """The mean and variance that the last pass left; None where there was none since it was set so."""

    def forward(self, x: Tensor) -> Tensor:
        """Normalise by the batch in training, by the running statistics in prediction."""
        if x.dim() not in self._axes:
            raise ValueError(
                f"it takes {' or '.join(map(str, self._axes))} axes, batch and channels first, not {x.dim()}"
            )
        if self.frozen or not self.training:
            return self._by_running(x)
        # A layer that is used twice goes on from what its first use left.
        before = self.left or (self.running_mean, self.running_var)
        out, mean, var = BatchNormalised.apply(x, *self._affine(), *before, self.eps)
        self.left = self._moved(before, (mean, var), x)
        return out

    def _by_running(self, x: Tensor) -> Tensor:
        gamma, beta = self._affine()
        scale = _wide(gamma * torch.rsqrt(self.running_var + self.eps), x)
        mean, beta = _wide(self.running_mean, x), _wide(beta, x)
        # Where the scale learns, its gradient is exact only of centred values; else two constants are enough.
        return (x - mean) * scale + beta if self._scale_learns else x * scale + (beta - mean * scale)

    def _affine(self) -> tuple[Tensor, Tensor]:
        gamma = torch.ones_like(self.running_mean) if self.weight is None else self.weight
        return gamma, torch.zeros_like(self.running_mean) if self.bias is None else self.bias

    def _moved(self, before: tuple[Tensor, Tensor], batch: tuple[Tensor, Tensor], x: Tensor) -> tuple[Tensor, Tensor]:
        """The running mean and variance after a batch; the variance without the bias of a small batch."""
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
    """The normalised input, with the mean and the biased variance that it was normalised by.

    With d = x - mean, r = 1 / sqrt(var + eps), n values per channel, and g the gradient of the output, that of the
    input is gamma r (g - sum(g) / n - d r² sum(g d) / n); of one value it is gamma r g, for then nothing depends on it.
    """

    @staticmethod
    def forward(  # all that a layer is made of
        ctx: Any, x: Tensor, gamma: Tensor, beta: Tensor, mean: Tensor, var: Tensor, eps: float
    ) -> tuple[Tensor, Tensor, Tensor]:
        """Normalise `x`; the running `mean` and `var` count where each channel has one value only."""
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
        """By the input, gamma and beta."""
        centred, rstd, gamma = ctx.saved_tensors
        grad, count, axes = gradients[0], count_of(gradients[0]), _axes(gradients[0])
        by_beta, by_centred = grad.sum(axes), (grad * centred).sum(axes)
        scale = gamma * rstd
        share = scale / count if _several(grad) else torch.where(count > 1, scale / count, 0.0)
        inner = _wide(-share * rstd * rstd * by_centred, grad)
        by_x = grad * _wide(scale, grad) + (centred * inner - _wide(share * by_beta, grad))
        return by_x, by_centred * rstd, by_beta, None, None, None


def with_plain_batchnorm(module: nn.Module, statistics: Statistics) -> nn.Module:
    """The module with every BatchNorm layer in plain operators; its layers are changed in place.

    Where a layer's own parameters are frozen its statistics are so, too.
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
    """The layers whose statistics are part of the model's vector, by name."""
    for name, layer in module.named_modules():
        if isinstance(layer, PlainBatchNorm) and not layer.frozen:
            yield f"{name}." if name else "", layer


def count_of(x: Tensor) -> Tensor:
    """How many values each channel has, as a number of the graph: it depends on the batch."""
    return torch.ones_like(x.select(1, 0)).sum()


def _plain(layer: _BatchNorm, statistics: Statistics, made: dict[nn.Module, PlainBatchNorm]) -> PlainBatchNorm:
    """One for each layer, also where it stands in several places."""
    own = list(layer.parameters(recurse=False))
    frozen = statistics == "frozen" or (bool(own) and not any(each.requires_grad for each in own))
    return made.setdefault(layer, PlainBatchNorm(layer, frozen=frozen))


def _several(x: Tensor) -> bool:
    """Whether each channel has several values even in a batch of one."""
    return prod(int(size) for size in x.shape[2:]) > 1


def _axes(x: Tensor) -> tuple[int, ...]:
    """All but that of the channels."""
    return (0, *range(2, x.dim()))


def _wide(values: Tensor, x: Tensor) -> Tensor:
    """One number per channel, as it goes with `x`."""
    return values.reshape(1, -1, *(1 for _ in x.shape[2:]))
