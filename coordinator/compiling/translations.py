"""The operators that the ONNX exporter translates wrongly, slowly or not at all."""

from __future__ import annotations

from functools import cache
from importlib import import_module
from typing import TYPE_CHECKING, Any

import torch
from onnxscript.function_libs.torch_lib.registration import OverloadedFunction, default_registry
from torch._decomp import core_aten_decompositions
from torch.onnx._internal.exporter import _decomp
from torch.onnx._internal.exporter._registration import OnnxDecompMeta, ONNXRegistry, _get_overload
from torch.onnx._internal.exporter._torchlib import _torchlib_registry

from coordinator.compiling import (
    adaptive_maxima,
    averages,
    convolutions,
    maxima,
    norms,
    operators,
    recurrence,
    recurrent_graphs,
)
from coordinator.compiling.gradients import TAKEN_APART

if TYPE_CHECKING:
    from collections.abc import Callable

aten = torch.ops.aten
OPSET = 18

TRANSLATIONS: dict[Callable[..., Any], Callable[..., Any]] = {
    aten.convolution_backward.default: convolutions.convolution_backward,
    aten._adaptive_avg_pool2d.default: averages.adaptive_avg_pool,
    aten._adaptive_avg_pool2d_backward.default: averages.adaptive_avg_pool_backward,
    aten._adaptive_avg_pool3d.default: averages.adaptive_avg_pool,
    aten._adaptive_avg_pool3d_backward.default: averages.adaptive_avg_pool_backward,
    aten.avg_pool2d.default: averages.avg_pool,
    aten.avg_pool2d_backward.default: averages.avg_pool_backward,
    aten.avg_pool3d.default: averages.avg_pool,
    aten.avg_pool3d_backward.default: averages.avg_pool_backward,
    aten.replication_pad1d_backward.default: averages.replication_pad_backward,
    aten.replication_pad2d_backward.default: averages.replication_pad_backward,
    aten.replication_pad3d_backward.default: averages.replication_pad_backward,
    aten.adaptive_max_pool2d.default: adaptive_maxima.adaptive_max_pool,
    aten.adaptive_max_pool2d_backward.default: adaptive_maxima.adaptive_max_pool_backward,
    aten.adaptive_max_pool3d.default: adaptive_maxima.adaptive_max_pool,
    aten.adaptive_max_pool3d_backward.default: adaptive_maxima.adaptive_max_pool_backward,
    aten.max_pool2d_with_indices.default: maxima.max_pool_with_indices,
    aten.max_pool2d_with_indices_backward.default: maxima.max_pool_with_indices_backward,
    aten.max_pool3d_with_indices.default: maxima.max_pool_with_indices,
    aten.max_pool3d_with_indices_backward.default: maxima.max_pool_with_indices_backward,
    aten.threshold_backward.default: maxima.threshold_backward,
    aten.embedding_dense_backward.default: maxima.embedding_dense_backward,
    aten.native_group_norm.default: norms.native_group_norm,
    aten.native_group_norm_backward.default: norms.native_group_norm_backward,
    aten.sym_numel.default: operators.count,
    recurrence.recurrent.default: recurrent_graphs.recurrent,
    recurrence.recurrent_backward.default: recurrent_graphs.recurrent_backward,
    recurrence.lstm.default: recurrent_graphs.lstm,
    recurrence.lstm_backward.default: recurrent_graphs.lstm_backward,
}


class TranslatedOperators(ONNXRegistry):
    """All operators that can be translated: the exporter's and ours.

    The exporter reads the source of each of its functions, which takes half a second for all of them. Here a function
    is read when its operator is first asked for.
    """

    def __init__(self) -> None:
        import_module("onnxscript.function_libs.torch_lib.ops")  # fills default_registry, and takes a while
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
        """The functions for an operator, ours first."""
        if functions := self._unread.pop(target, None):
            for function in functions.overloads:
                self._register(target, OnnxDecompMeta(function, target, None))
            for function in functions.complex:
                self._register(target, OnnxDecompMeta(function, target, None, is_complex=True))
        return super().get_decomps(target)

    def implemented(self) -> set[Any]:
        """The operators that there are functions for."""
        return {*self._unread, *_decomp.get_onnx_implemented_overloads(self)}


@cache
def registry() -> TranslatedOperators:
    """The operators, listed once for all graphs of a process."""
    return TranslatedOperators()


@cache
def decompositions() -> dict[Any, Callable[..., Any]]:
    """How an operator that cannot be translated is made of others, for the tracer."""
    implemented = registry().implemented()
    gradients = {
        operator: function
        for operator, function in core_aten_decompositions().items()
        # The exporter knows some gradients, but not all, and one of them wrongly.
        if "backward" in str(operator) and operator not in TRANSLATIONS
    }
    return _decomp.create_onnx_friendly_decomposition_table(implemented) | gradients | TAKEN_APART
