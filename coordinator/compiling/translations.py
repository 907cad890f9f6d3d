"""Translations of the operators that the ONNX exporter translates wrongly, slowly or not at all."""

# mypy: disable-error-code="no-untyped-call"

from __future__ import annotations

from collections.abc import Callable, Sequence
from functools import cache
from importlib import import_module
from typing import Any

import numpy as np
import torch
from onnxscript import opset18 as op
from onnxscript.function_libs.torch_lib.registration import OverloadedFunction, default_registry
from torch import Tensor
from torch._decomp import core_aten_decompositions
from torch.onnx._internal.exporter import _decomp
from torch.onnx._internal.exporter._registration import OnnxDecompMeta, ONNXRegistry, _get_overload
from torch.onnx._internal.exporter._torchlib import _torchlib_registry

from coordinator.compiling import convolutions, operators, pooling, recurrent_graphs, recurrent_layers
from coordinator.compiling.operators import Value, constant, ints, mean, reshape, total


def native_group_norm(
    x: Value, gamma: Value | None, beta: Value | None, batch: int, channels: int, area: int, groups: int, eps: float
) -> tuple[Value, Value, Value]:
    """Return the normalised input, with each group's mean and inverse deviation."""
    grouped = reshape(x, 0, groups, -1)
    middle = mean(grouped, 2)
    centred = op.Sub(grouped, middle)
    rstd = op.Reciprocal(op.Sqrt(op.Add(mean(op.Mul(centred, centred), 2), constant(float(eps)))))
    # Scale and shift are computed per channel first, so that only two more passes over the data are needed.
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
    """Return the gradients of input, gamma and beta.

    That of the input is grad·a + x·b + c, with a, b, c per sample and channel; those not in `wanted` are placeholders.
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
    """Repeat one number per group for each channel: (batch, groups, 1) -> (batch, channels, 1)."""
    if groups == channels:
        return values
    wide = op.Mul(values, constant(np.ones((1, 1, channels // groups), np.float32)))
    return op.Reshape(wide, ints(0, channels, 1))


aten = torch.ops.aten


def weight_norm_backward(grad: Tensor, v: Tensor, g: Tensor, norms: Tensor, dim: int) -> tuple[Tensor, Tensor]:
    """Return the gradients of v and g for w = g v / |v|."""
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
    """Return the product of three tensors, each with inserted axes of size 1, summed over some axes."""
    product = _expanded(first, expand_first) * _expanded(second, expand_second) * _expanded(third, expand_third)
    return product.sum(list(summed)) if summed else product


def _expanded(tensor: Tensor, axes: Sequence[int]) -> Tensor:
    for axis in sorted(axes):
        tensor = tensor.unsqueeze(axis)
    return tensor


DECOMPOSITIONS: dict[Any, Callable[..., Any]] = {
    aten._weight_norm_interface_backward.default: weight_norm_backward,
    aten._trilinear.default: trilinear,
}


OPSET = 18

TRANSLATIONS: dict[Callable[..., Any], Callable[..., Any]] = {
    aten.convolution_backward.default: convolutions.convolution_backward,
    aten._adaptive_avg_pool2d.default: pooling.adaptive_avg_pool,
    aten._adaptive_avg_pool2d_backward.default: pooling.adaptive_avg_pool_backward,
    aten._adaptive_avg_pool3d.default: pooling.adaptive_avg_pool,
    aten._adaptive_avg_pool3d_backward.default: pooling.adaptive_avg_pool_backward,
    aten.avg_pool2d.default: pooling.avg_pool,
    aten.avg_pool2d_backward.default: pooling.avg_pool_backward,
    aten.avg_pool3d.default: pooling.avg_pool,
    aten.avg_pool3d_backward.default: pooling.avg_pool_backward,
    aten.replication_pad1d_backward.default: pooling.replication_pad_backward,
    aten.replication_pad2d_backward.default: pooling.replication_pad_backward,
    aten.replication_pad3d_backward.default: pooling.replication_pad_backward,
    aten.adaptive_max_pool2d.default: pooling.adaptive_max_pool,
    aten.adaptive_max_pool2d_backward.default: pooling.adaptive_max_pool_backward,
    aten.adaptive_max_pool3d.default: pooling.adaptive_max_pool,
    aten.adaptive_max_pool3d_backward.default: pooling.adaptive_max_pool_backward,
    aten.max_pool2d_with_indices.default: pooling.max_pool_with_indices,
    aten.max_pool2d_with_indices_backward.default: pooling.max_pool_with_indices_backward,
    aten.max_pool3d_with_indices.default: pooling.max_pool_with_indices,
    aten.max_pool3d_with_indices_backward.default: pooling.max_pool_with_indices_backward,
    aten.threshold_backward.default: pooling.threshold_backward,
    aten.embedding_dense_backward.default: pooling.embedding_dense_backward,
    aten.native_group_norm.default: native_group_norm,
    aten.native_group_norm_backward.default: native_group_norm_backward,
    aten.sym_numel.default: operators.count,
    recurrent_layers.recurrent.default: recurrent_graphs.recurrent,
    recurrent_layers.recurrent_backward.default: recurrent_graphs.recurrent_backward,
    recurrent_layers.lstm.default: recurrent_graphs.lstm,
    recurrent_layers.lstm_backward.default: recurrent_graphs.lstm_backward,
}


class TranslatedOperators(ONNXRegistry):
    """All operators that can be translated: the exporter's and those of this package.

    The exporter parses the source of each of its functions, which takes half a second for all of them. Here a function
    is parsed when its operator is first needed.
    """

    def __init__(self) -> None:
        import_module("onnxscript.function_libs.torch_lib.ops")  # fills default_registry, which takes a while
        super().__init__()
        self._opset_version = OPSET
        for meta in _torchlib_registry.get_torchlib_ops():
            self._register(meta.fx_target, meta)
        self._cleanup_registry_based_on_opset_version()
        self._unread: dict[Any, OverloadedFunction] = {}
        for name, functions in default_registry.items():
            target = None if name.startswith("internal::") else _get_overload(name)
            if target is not None:
                self._unread[target] = functions
        for operator, function in TRANSLATIONS.items():
            self.register_op(operator, function)

    def get_decomps(self, target: Any) -> list[OnnxDecompMeta]:
        """Return the functions for an operator, those of this package first."""
        if functions := self._unread.pop(target, None):
            for function in functions.overloads:
                self._register(target, OnnxDecompMeta(function, target, None))
            for function in functions.complex:
                self._register(target, OnnxDecompMeta(function, target, None, is_complex=True))
        return super().get_decomps(target)

    def implemented(self) -> set[Any]:
        """Return the operators that have functions."""
        return {*self._unread, *_decomp.get_onnx_implemented_overloads(self)}


@cache
def registry() -> TranslatedOperators:
    """Return the operators, listed once for all graphs of a process."""
    return TranslatedOperators()


@cache
def decompositions() -> dict[Any, Callable[..., Any]]:
    """Return how operators that cannot be translated are decomposed into others, for the tracer."""
    implemented = registry().implemented()
    gradients = {
        operator: function
        for operator, function in core_aten_decompositions().items()
        # The exporter translates only some gradients, and one of them wrongly.
        if "backward" in str(operator) and operator not in TRANSLATIONS
    }
    return _decomp.create_onnx_friendly_decomposition_table(implemented) | gradients | DECOMPOSITIONS
