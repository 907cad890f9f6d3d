"""Operators of torch that nothing takes apart, written in others of its own for the tracer."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import torch
from torch import Tensor

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence

aten = torch.ops.aten


def weight_norm_backward(grad: Tensor, v: Tensor, g: Tensor, norms: Tensor, dim: int) -> tuple[Tensor, Tensor]:
    """Of w = g v / |v|, by v and by g."""
    others = [axis for axis in range(v.dim()) if axis != dim % v.dim()]
    norms = norms.reshape(g.shape)
    by_g = (grad * v).sum(others, keepdim=True) / norms
    return (g / norms) * (grad - v * (by_g / norms)), by_g


def trilinear(
    first: Tensor,
    second: Tensor,
    third: Tensor,
    expand_first: Sequence[int],
    expand_second: Sequence[int],
    expand_third: Sequence[int],
    summed: Sequence[int],
    _unrolled: int = 1,
) -> Tensor:
    """The product of three tensors, each with some axes of size 1 put in, summed over some axes."""
    product = _expanded(first, expand_first) * _expanded(second, expand_second) * _expanded(third, expand_third)
    return product.sum(list(summed)) if summed else product


def _expanded(tensor: Tensor, axes: Sequence[int]) -> Tensor:
    for axis in sorted(axes):
        tensor = tensor.unsqueeze(axis)
    return tensor


TAKEN_APART: dict[Any, Callable[..., Any]] = {
    aten._weight_norm_interface_backward.default: weight_norm_backward,
    aten._trilinear.default: trilinear,
}
