"""Recurrent layers in a graph: ONNX's own RNN, GRU and LSTM, and their gradients.

All that can be worked out for the whole sequence is: what the gates were (from the outputs, which are the states), the
factors by which a gradient passes each step, and the gradients of the weights. Only the gradient of the state goes back
step by step, in a loop.
"""

# mypy: disable-error-code="no-untyped-call"
from __future__ import annotations

from typing import TYPE_CHECKING

import numpy as np
from onnx import TensorProto
from onnxscript import opset18 as op

from coordinator.compiling.loops import swept
from coordinator.compiling.operators import Value, constant, ints, size, total

if TYPE_CHECKING:
    from collections.abc import Sequence

# Where ONNX has the gates that torch orders as r z n, and as i f g o.
GRU_GATES = (1, 0, 2)
LSTM_GATES = (0, 3, 1, 2)


def recurrent(
    x: Value,
    h: Value,
    by_x: Value,
    by_h: Value,
    bias_x: Value,
    bias_h: Value,
    kind: str,
    backwards: bool,
) -> Value:
    """The states of all steps of an RNN or a GRU."""
    gates = GRU_GATES if kind == "GRU" else (0,)
    inputs = [x, *_arranged(by_x, by_h, bias_x, bias_h, gates), None, _as_step(h)]
    direction, width = _direction(backwards), size(h, 1)
    if kind == "GRU":
        y, _ = op.GRU(*inputs, hidden_size=width, direction=direction, linear_before_reset=1)
    else:
        activation = "Tanh" if kind == "RNN_TANH" else "Relu"
        y, _ = op.RNN(*inputs, hidden_size=width, direction=direction, activations=[activation])
    return op.Squeeze(y, ints(1))


def lstm(
    x: Value,
    h: Value,
    c: Value,
    by_x: Value,
    by_h: Value,
    bias_x: Value,
    bias_h: Value,
    backwards: bool,
) -> tuple[Value, Value]:
    """The states of all steps of an LSTM, and its last cell state."""
    weights = _arranged(by_x, by_h, bias_x, bias_h, LSTM_GATES)
    starts = _as_step(h), _as_step(c)
    y, _, last = op.LSTM(x, *weights, None, *starts, hidden_size=size(h, 1), direction=_direction(backwards))
    return op.Squeeze(y, ints(1)), op.Squeeze(last, ints(0))


def recurrent_backward(
    grad: Value,
    y: Value,
    x: Value,
    h: Value,
    by_x: Value,
    by_h: Value,
    bias_x: Value,
    bias_h: Value,
    kind: str,
    backwards: bool,
) -> tuple[Value, ...]:
    """The gradients by input, first state, weights and biases."""
    before = _before(y, h, backwards)
    if kind == "GRU":
        straight, to_state, to_input = _gru_factors(x, before, by_x, by_h, bias_x, bias_h)
    else:
        straight = None
        to_state = to_input = (
            _slope(y) if kind == "RNN_TANH" else op.Cast(op.Greater(y, constant(0.0)), to=TensorProto.FLOAT)
        )
    gates = size(by_x, 0) // size(h, 1)

    def step(state: Sequence[Value], now: Sequence[Value]) -> tuple[list[Value], list[Value]]:
        reached = op.Add(state[0], now[0])
        sent = op.Mul(_repeated(reached, gates), now[1])
        passed = op.MatMul(sent, by_h)
        return [passed if straight is None else op.Add(passed, op.Mul(reached, now[2]))], [reached]

    zeros = op.Mul(_as_step(h), constant(0.0))
    sequences = [grad, to_state] if straight is None else [grad, to_state, straight]
    (by_start,), (reached,) = swept(step, [zeros], sequences, size(x, 0), onward=backwards)
    wide = _repeated(reached, gates)
    sent = op.Mul(wide, to_state)
    received = sent if to_input is to_state else op.Mul(wide, to_input)
    return _gathered(received, sent, x, before, by_x, by_start)


def lstm_backward(
    grad: Value,
    grad_c: Value,
    y: Value,
    x: Value,
    h: Value,
    c: Value,
    by_x: Value,
    by_h: Value,
    bias_x: Value,
    bias_h: Value,
    backwards: bool,
) -> tuple[Value, ...]:
    """The gradients by input, first states, weights and biases."""
    before, steps = _before(y, h, backwards), size(x, 0)
    pre = op.Add(_product(x, by_x, bias_x), _product(before, by_h, bias_h))
    entry, forget, new, leave = _gates(pre, 4)
    entry, forget, leave = (op.Sigmoid(gate) for gate in (entry, forget, leave))
    new = op.Tanh(new)
    # The outputs tell the states, but not the cells: these are added up again.
    _, (cells,) = swept(_next_cell, [_as_step(c)], [forget, op.Mul(entry, new)], steps, onward=not backwards)
    shown = op.Tanh(cells)
    to_cell = op.Mul(leave, _slope(shown))
    factors = op.Concat(
        op.Mul(new, _sigmoid_slope(entry)),
        op.Mul(_before(cells, c, backwards), _sigmoid_slope(forget)),
        op.Mul(entry, _slope(new)),
        op.Mul(shown, _sigmoid_slope(leave)),
        axis=2,
    )

    def step(state: Sequence[Value], now: Sequence[Value]) -> tuple[list[Value], list[Value]]:
        reached = op.Add(state[0], now[0])
        cell = op.Add(state[1], op.Mul(reached, now[2]))
        sent = op.Mul(op.Concat(cell, cell, cell, reached, axis=2), now[1])
        return [op.MatMul(sent, by_h), op.Mul(cell, now[3])], [sent]

    starts = [op.Mul(_as_step(h), constant(0.0)), _as_step(grad_c)]
    ends, (sent,) = swept(step, starts, [grad, factors, to_cell, forget], steps, onward=backwards)
    return _gathered(sent, sent, x, before, by_x, *ends)


def _next_cell(state: Sequence[Value], now: Sequence[Value]) -> tuple[list[Value], list[Value]]:
    cell = op.Add(op.Mul(state[0], now[0]), now[1])
    return [cell], [cell]


def _gru_factors(
    x: Value, before: Value, by_x: Value, by_h: Value, bias_x: Value, bias_h: Value
) -> tuple[Value, Value, Value]:
    """By what a state's gradient is multiplied on its way to the state before, straight and through each gate.

    And on its way to the input, which differs where the reset gate stands between.
    """
    from_x, from_h = _gates(_product(x, by_x, bias_x), 3), _gates(_product(before, by_h, bias_h), 3)
    reset, update = (op.Sigmoid(op.Add(from_x[gate], from_h[gate])) for gate in (0, 1))
    new = op.Tanh(op.Add(from_x[2], op.Mul(reset, from_h[2])))
    to_new = op.Mul(op.Sub(constant(1.0), update), _slope(new))
    to_reset = op.Mul(op.Mul(to_new, from_h[2]), _sigmoid_slope(reset))
    to_update = op.Mul(op.Sub(before, new), _sigmoid_slope(update))
    to_state = op.Concat(to_reset, to_update, op.Mul(to_new, reset), axis=2)
    return update, to_state, op.Concat(to_reset, to_update, to_new, axis=2)


def _gathered(
    received: Value, sent: Value, x: Value, before: Value, by_x: Value, *by_starts: Value
) -> tuple[Value, ...]:
    """From what reached the gates of all steps to the gradients by everything that made them."""
    received_rows, sent_rows = _rows(received), _rows(sent)
    return (
        op.MatMul(received, by_x),
        *(op.Squeeze(each, ints(0)) for each in by_starts),
        op.Gemm(received_rows, _rows(x), transA=1),
        op.Gemm(sent_rows, _rows(before), transA=1),
        total(received_rows, 0),
        total(sent_rows, 0),
    )


def _before(states: Value, start: Value, backwards: bool) -> Value:
    """The state that each step begins with."""
    first = _as_step(start)
    if backwards:
        return op.Concat(op.Slice(states, ints(1), ints(1 << 31), ints(0)), first, axis=0)
    return op.Concat(first, op.Slice(states, ints(0), ints(-1), ints(0)), axis=0)


def _product(values: Value, weight: Value, bias: Value) -> Value:
    return op.Add(op.MatMul(values, op.Transpose(weight, perm=[1, 0])), bias)


def _gates(values: Value, count: int) -> Sequence[Value]:
    parts: Sequence[Value] = op.Split(values, axis=2, num_outputs=count)
    return parts


def _repeated(values: Value, times: int) -> Value:
    """The same for each gate, side by side along the last axis."""
    return op.Concat(*(values for _ in range(times)), axis=-1) if times > 1 else values


def _rows(values: Value) -> Value:
    """A sequence of batches as one large batch."""
    return op.Flatten(values, axis=2)


def _as_step(values: Value) -> Value:
    """A batch as a sequence of one step."""
    return op.Unsqueeze(values, ints(0))


def _slope(tanh: Value) -> Value:
    return op.Sub(constant(1.0), op.Mul(tanh, tanh))


def _sigmoid_slope(sigmoid: Value) -> Value:
    return op.Mul(sigmoid, op.Sub(constant(1.0), sigmoid))


def _arranged(
    by_x: Value, by_h: Value, bias_x: Value, bias_h: Value, gates: Sequence[int]
) -> tuple[Value, Value, Value]:
    """The weights as ONNX has them: gates in its order, both biases in one, and an axis for directions."""
    weights = (op.Unsqueeze(_reordered(weight, gates), ints(0)) for weight in (by_x, by_h))
    bias = op.Concat(_reordered(bias_x, gates), _reordered(bias_h, gates), axis=0)
    first, second = weights
    return first, second, op.Unsqueeze(bias, ints(0))


def _reordered(weight: Value, gates: Sequence[int]) -> Value:
    if len(gates) == 1:
        return weight
    rows = np.arange(size(weight, 0)).reshape(len(gates), -1)[list(gates)].reshape(-1)
    return op.Gather(weight, constant(rows), axis=0)


def _direction(backwards: bool) -> str:
    return "reverse" if backwards else "forward"
