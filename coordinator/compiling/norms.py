"""GroupNorm (Wu and He 2018) and its gradient in few passes over the data."""

# mypy: disable-error-code="no-untyped-call"
from __future__ import annotations

from typing import TYPE_CHECKING

import numpy as np
from onnxscript import opset18 as op

from coordinator.compiling.operators import Value, constant, ints, mean, reshape, total

if TYPE_CHECKING:
    from collections.abc import Sequence


def native_group_norm(
    x: Value, gamma: Value | None, beta: Value | None, batch: int, channels: int, area: int, groups: int, eps: float
) -> tuple[Value, Value, Value]:
    """The normalised input, with each group's mean and inverse deviation."""
    grouped = reshape(x, 0, groups, -1)
    middle = mean(grouped, 2)
    centred = op.Sub(grouped, middle)
    rstd = op.Reciprocal(op.Sqrt(op.Add(mean(op.Mul(centred, centred), 2), constant(float(eps)))))
    # Scale and shift are worked out per channel first, so that the data is passed over only twice more.
    scale = _per_channel(rstd, channels, groups)
    if gamma is not None:
        scale = op.Mul(scale, reshape(gamma, 1, channels, 1))
    shift = op.Neg(op.Mul(_per_channel(middle, channels, groups), scale))
    if beta is not None:
        shift = op.Add(shift, reshape(beta, 1, channels, 1))
    out = op.Add(op.Mul(reshape(x, 0, channels, -1), scale), shift)
    return op.Reshape(out, op.Shape(x)), reshape(middle, 0, groups), reshape(rstd, 0, groups)


def native_group_norm_backward(
    grad: Value,
    x: Value,
    middle: Value,
    rstd: Value,
    gamma: Value | None,
    batch: int,
    channels: int,
    area: int,
    groups: int,
    wanted: Sequence[bool],
) -> tuple[Value, Value, Value]:
    """The gradients by input, gamma and beta.

    That by the input is grad·a + x·b + c, with a, b, c per sample and channel; those not in `wanted` are placeholders.
    """
    grad_rows, x_rows = reshape(grad, 0, channels, -1), reshape(x, 0, channels, -1)
    middle, rstd = reshape(middle, 0, groups, 1), reshape(rstd, 0, groups, 1)
    by_x, by_one = total(op.Mul(grad_rows, x_rows), 2, keep=True), total(grad_rows, 2, keep=True)
    wide_rstd = _per_channel(rstd, channels, groups)
    by_input = by_gamma = by_beta = grad
    if wanted[0]:
        weights = reshape(gamma, 1, channels, 1) if gamma is not None else constant(1.0)
        group_x, group_one = (
            total(reshape(op.Mul(sums, weights), 0, groups, -1), 2, keep=True) for sums in (by_x, by_one)
        )
        share = constant(float(1.0 / (area * (channels // groups))))
        cubed = op.Mul(op.Mul(op.Mul(rstd, rstd), rstd), share)
        b = op.Mul(op.Sub(op.Mul(group_one, middle), group_x), cubed)
        c = op.Neg(op.Add(op.Mul(b, middle), op.Mul(op.Mul(group_one, rstd), share)))
        wide_b, wide_c = (_per_channel(values, channels, groups) for values in (b, c))
        a = op.Mul(wide_rstd, weights)
        by_input = op.Add(op.Mul(grad_rows, a), op.Add(op.Mul(x_rows, wide_b), wide_c))
        by_input = op.Reshape(by_input, op.Shape(x))
    if wanted[1]:
        centred = op.Sub(by_x, op.Mul(by_one, _per_channel(middle, channels, groups)))
        by_gamma = total(op.Mul(centred, wide_rstd), 0, 2)
    if wanted[2]:
        by_beta = total(by_one, 0, 2)
    return by_input, by_gamma, by_beta


def _per_channel(values: Value, channels: int, groups: int) -> Value:
    """From one number per group to one per channel: (batch, groups, 1) -> (batch, channels, 1)."""
    if groups == channels:
        return values
    wide = op.Mul(values, constant(np.ones((1, 1, channels // groups), np.float32)))
    return op.Reshape(wide, ints(0, channels, 1))
