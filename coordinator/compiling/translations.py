"""The operators that the ONNX exporter translates wrongly, slowly or not at all."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import torch
from torch._decomp import core_aten_decompositions

from coordinator.compiling import averages, convolutions, maxima, norms

if TYPE_CHECKING:
    from collections.abc import Callable

aten = torch.ops.aten

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
}

# The exporter decomposes operators of a forward pass itself, but leaves out most gradients.
DECOMPOSITIONS = {
    operator: function
    for operator, function in core_aten_decompositions().items()
    if "backward" in str(operator) and operator not in TRANSLATIONS
}
