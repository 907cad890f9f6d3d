"""The operators that the ONNX exporter translates wrongly, slowly or not at all."""

from __future__ import annotations

from functools import cache
from typing import TYPE_CHECKING, Any

import torch
from torch._decomp import core_aten_decompositions
from torch.onnx._internal.exporter import _decomp
from torch.onnx._internal.exporter._registration import ONNXRegistry

from coordinator.compiling import averages, convolutions, maxima, norms, operators

if TYPE_CHECKING:
    from collections.abc import Callable

aten = torch.ops.aten
OPSET = 18

TRANSLATIONS: dict[Callable[..., Any], Callable[..., Any]] = {
    aten.convolution_backward.default: convolutions.convolution_backward,
    aten._adaptive_avg_pool2d.default: averages.adaptive_avg_pool2d,
    aten._adaptive_avg_pool2d_backward.default: averages.adaptive_avg_pool2d_backward,
    aten.avg_pool2d.default: averages.avg_pool2d,
    aten.avg_pool2d_backward.default: averages.avg_pool2d_backward,
    aten.max_pool2d_with_indices.default: maxima.max_pool2d_with_indices,
    aten.max_pool2d_with_indices_backward.default: maxima.max_pool2d_with_indices_backward,
    aten.threshold_backward.default: maxima.threshold_backward,
    aten.embedding_dense_backward.default: maxima.embedding_dense_backward,
    aten.native_group_norm.default: norms.native_group_norm,
    aten.native_group_norm_backward.default: norms.native_group_norm_backward,
    aten.sym_numel.default: operators.count,
}


@cache
def registry() -> ONNXRegistry:
    """All operators that can be translated: the exporter's, with ours first. Listing them takes half a second."""
    known = ONNXRegistry.from_torchlib(opset_version=OPSET)
    for operator, function in TRANSLATIONS.items():
        known.register_op(operator, function)
    return known


@cache
def decompositions() -> dict[Any, Callable[..., Any]]:
    """How an operator that cannot be translated is made of others, for the tracer."""
    implemented = set(_decomp.get_onnx_implemented_overloads(registry()))
    gradients = {
        operator: function
        for operator, function in core_aten_decompositions().items()
        # The exporter knows some gradients, but not all, and one of them wrongly.
        if "backward" in str(operator) and operator not in TRANSLATIONS
    }
    return _decomp.create_onnx_friendly_decomposition_table(implemented) | gradients
