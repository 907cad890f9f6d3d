"""The gradient of a convolution in ONNX operators."""

# mypy: disable-error-code="no-untyped-call"
from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from itertools import product
from math import prod

import numpy as np
from onnxscript import opset18 as op

from coordinator.compiling.operators import Value, constant, cut, ints, reshape, size, total

# Measured on onnxruntime 1.31: with fewer channels, one product per kernel place is too small to be efficient.
MIN_CHANNELS = 8
# The number of places of an output's map, measured on the same version with 64 to 512 channels. Up to 8x8 most time
# goes into reading the weight, so products for the whole batch are faster (8x8 slightly, 4x4 1.7 times, 2x2 5 times).
SMALL_MAP = 64
IMAGE_AXES = 2


@dataclass(frozen=True)
class Geometry:
    """The geometry of a convolution: kernel, stride, padding, dilation and groups."""

    kernel: list[int]
    stride: list[int]
    padding: list[int]
    dilation: list[int]
    groups: int

    @property
    def pads(self) -> list[int]:
        """The padding in ONNX's order: all starts, then all ends."""
        return self.padding * 2


def convolution_backward(
    grad: Value,
    x: Value,
    weight: Value,
    bias_sizes: Sequence[int] | None,
    stride: Sequence[int],
    padding: Sequence[int],
    dilation: Sequence[int],
    transposed: bool,
    output_padding: Sequence[int],
    groups: int,
    wanted: Sequence[bool],
) -> tuple[Value, Value, Value]:
    """Return the gradients of input, weight and bias, in the order of `aten.convolution_backward`."""
    kernel = [size(weight, axis) for axis in range(2, 2 + len(stride))]
    geometry = Geometry(kernel, list(stride), list(padding), list(dilation), groups)
    # A gradient that is not requested is never read, so any value may be returned for it.
    by_x = by_weight = by_bias = grad
    if wanted[0]:
        by_x = _by_output(grad, weight, geometry) if transposed else _by_input(grad, x, weight, geometry)
    if wanted[1]:
        # A transposed convolution is a convolution with input and output exchanged.
        by_weight = _by_weight(grad, x, geometry) if transposed else _by_weight(x, grad, geometry)
    if wanted[2]:
        by_bias = total(grad, 0, *range(2, 2 + len(kernel)))
    return by_x, by_weight, by_bias


def _by_output(grad: Value, weight: Value, g: Geometry) -> Value:
    return op.Conv(grad, weight, strides=g.stride, pads=g.pads, dilations=g.dilation, group=g.groups)


def _by_input(grad: Value, x: Value, weight: Value, g: Geometry) -> Value:
    # onnxruntime 1.31 computes Col2Im wrongly for one or three axes with dilation.
    if g.groups == 1 and len(g.kernel) == IMAGE_AXES and _area(grad) <= SMALL_MAP:
        return _by_rows(grad, x, weight, g)
    inner = [step * (n - 1) - pad for n, step, pad in zip(g.kernel, g.dilation, g.padding, strict=True)]
    kept = all(0 <= rim <= pad for rim, pad in zip(inner, g.padding, strict=True))
    if g.groups == 1 and all(step == 1 for step in g.stride) and kept:
        # The reversed kernel: onnxruntime spreads a Conv over its threads, but hardly a ConvTranspose. If the map
        # shrank, a Conv would work on its large side: without padding it takes 1.1 to 2 times as long.
        return op.Conv(grad, _reversed(weight, len(inner)), pads=inner * 2, dilations=g.dilation)
    # The places that the stride skipped at the far edge must be added, or the gradient is smaller than its input.
    rest = [
        size(x, 2 + i)
        - ((size(grad, 2 + i) - 1) * g.stride[i] - 2 * g.padding[i] + g.dilation[i] * (g.kernel[i] - 1) + 1)
        for i in range(len(g.kernel))
    ]
    return op.ConvTranspose(
        grad, weight, strides=g.stride, pads=g.pads, dilations=g.dilation, group=g.groups, output_padding=rest
    )


def _by_rows(grad: Value, x: Value, weight: Value, g: Geometry) -> Value:
    """Compute one product for the whole batch, with one row per place of the map, and sum the results in place.

    A convolution would read the whole weight once per sample.
    """
    axes, outward = list(range(2, 2 + len(g.kernel))), size(weight, 0)
    rows = reshape(op.Transpose(grad, perm=[0, *axes, 1]), -1, outward)
    seen = reshape(op.MatMul(rows, reshape(weight, outward, -1)), -1, _area(grad), size(x, 1) * prod(g.kernel))
    return op.Col2Im(
        op.Transpose(seen, perm=[0, 2, 1]),
        ints(*(size(x, axis) for axis in axes)),
        ints(*g.kernel),
        strides=g.stride,
        pads=g.pads,
        dilations=g.dilation,
    )


def _reversed(weight: Value, axes: int) -> Value:
    """Reverse a kernel along every axis, and exchange its inputs and outputs."""
    first, beyond = [-1] * axes, [-(1 << 31)] * axes
    backwards = op.Slice(weight, ints(*first), ints(*beyond), ints(*range(2, 2 + axes)), ints(*first))
    return op.Transpose(backwards, perm=[1, 0, *range(2, 2 + axes)])


def _by_weight(x: Value, grad: Value, g: Geometry) -> Value:
    """Return the gradient of the weight, as matrix products if they are faster than a convolution."""
    if g.groups > 1:
        return _by_swapping(x, grad, g)
    if _area(grad) <= SMALL_MAP:
        return _by_joined_places(x, grad, g)
    if size(x, 1) >= MIN_CHANNELS and all(step == 1 for step in g.stride):
        return _by_places(x, grad, g)
    return _by_columns(x, grad, g)


def _by_places(x: Value, grad: Value, g: Geometry) -> Value:
    """Compute one product per place of the kernel, over batch and map together."""
    inward, outward = size(x, 1), size(grad, 1)
    sent = reshape(_channels_first(grad), outward, -1)
    products = []
    for seen in _patches(x, grad, g):
        summed = op.MatMul(sent, op.Transpose(reshape(seen, inward, -1), perm=[1, 0]))
        products.append(reshape(summed, outward, inward, 1))
    return reshape(_joined(products, axis=2), outward, inward, *g.kernel)


def _by_joined_places(x: Value, grad: Value, g: Geometry) -> Value:
    """Compute one product for all places, for small maps, whose patches are smaller than the weight."""
    inward, outward = size(x, 1), size(grad, 1)
    seen = [reshape(each, inward, 1, -1) for each in _patches(x, grad, g)]
    columns = reshape(_joined(seen, axis=1), inward * len(seen), -1)
    product = op.MatMul(reshape(_channels_first(grad), outward, -1), op.Transpose(columns, perm=[1, 0]))
    return reshape(product, outward, inward, *g.kernel)


def _patches(x: Value, grad: Value, g: Geometry) -> list[Value]:
    """Return for each place of the kernel the part of the input under it: channels, batch, map."""
    lengths = [size(grad, 2 + axis) for axis in range(len(g.kernel))]
    swapped = _channels_first(x)
    padded = op.Pad(swapped, ints(0, 0, *g.padding, 0, 0, *g.padding)) if any(g.padding) else swapped
    return [
        cut(padded, [at * step for at, step in zip(place, g.dilation, strict=True)], lengths, g.stride)
        for place in product(*(range(n) for n in g.kernel))
    ]


def _joined(values: list[Value], axis: int) -> Value:
    return op.Concat(*values, axis=axis) if len(values) > 1 else values[0]


def _area(value: Value) -> int:
    """Return the number of places of a map."""
    return prod(size(value, axis) for axis in range(2, len(value.shape)))


def _channels_first(value: Value) -> Value:
    """Exchange batch and channels, so that a product can sum over batch and map together."""
    return op.Transpose(value, perm=[1, 0, *range(2, len(value.shape))])


def _by_columns(x: Value, grad: Value, g: Geometry) -> Value:
    """Compute one product for all places, whose patches are gathered by a convolution with one-hot kernels."""
    places, inward, outward = prod(g.kernel), size(x, 1), size(grad, 1)
    one_hot = np.tile(
        np.eye(places, dtype=np.float32).reshape(places, 1, *g.kernel), (inward, 1, *(1 for _ in g.kernel))
    )
    columns = op.Conv(x, constant(one_hot), strides=g.stride, pads=g.pads, dilations=g.dilation, group=inward)
    seen = op.Transpose(reshape(columns, 0, inward * places, -1), perm=[0, 2, 1])
    summed = total(op.MatMul(reshape(grad, 0, outward, -1), seen), 0)
    return reshape(summed, outward, inward, *g.kernel)


def _by_swapping(x: Value, grad: Value, g: Geometry) -> Value:
    """Convolve the input with the gradient: batch and channels are exchanged, and so are stride and dilation."""
    axes = list(range(len(g.kernel)))
    inward, spatial = size(x, 1) // g.groups, [size(x, 2 + axis) for axis in axes]
    split = reshape(x, -1, g.groups, inward, *spatial)
    swapped = op.Transpose(split, perm=[2, 1, 0, *(3 + axis for axis in axes)])
    merged = reshape(swapped, inward, -1, *spatial)
    kernels = op.Transpose(grad, perm=[1, 0, *(2 + axis for axis in axes)])
    result = op.Conv(merged, kernels, strides=g.dilation, pads=g.pads, dilations=g.stride, group=g.groups)
    # If the stride does not divide the map, there are results beyond the kernel.
    return op.Transpose(
        cut(result, [0 for _ in axes], g.kernel, [1 for _ in axes]), perm=[1, 0, *(2 + axis for axis in axes)]
    )
