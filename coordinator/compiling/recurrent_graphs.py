"""Recurrent layers in a graph: ONNX's RNN, GRU and LSTM, and their gradients as loops over the sequence."""

# mypy: disable-error-code="no-untyped-call"

from __future__ import annotations

from collections.abc import Callable, Sequence

import numpy as np
import onnx_ir
from onnx import TensorProto
from onnxscript import evaluator
from onnxscript import opset18 as op
from torch.onnx._internal.exporter._building import OpRecorder
from torch.onnx._internal.exporter._torchlib.ops.hop import call_op

from coordinator.compiling.operators import Value, constant, ints, size, total

Step = Callable[[Sequence[Value], Sequence[Value]], tuple[list[Value], list[Value]]]
"""Maps the states, and the values of the sequences at a place, to the next states and the values to keep."""

BACK_TO_FRONT = -(1 << 31)


def scan(
    step: Step, states: list[Value], sequences: list[Value], steps: int, *, onward: bool
) -> tuple[list[Value], list[Value]]:
    """Return the last states, and the values that `step` kept at all places, in the order of the sequences.

    Places are the first axis of a sequence; a state, and a kept value, is a sequence of one place.
    onward: from the first place to the last; otherwise from the last to the first.
    """
    body, kept = _body(step, states, sequences, steps, onward)
    count = constant(np.array(steps, np.int64))
    outputs = call_op("Loop", count, None, *states, _num_outputs=len(states) + kept, body=body)
    sequences = [op.Squeeze(each, ints(1)) for each in outputs[len(states) :]]
    if not onward:
        sequences = [op.Slice(each, ints(-1), ints(BACK_TO_FRONT), ints(0), ints(-1)) for each in sequences]
    return list(outputs[: len(states)]), sequences


def _body(
    step: Step, states: list[Value], sequences: list[Value], steps: int, onward: bool
) -> tuple[onnx_ir.Graph, int]:
    """Return the graph of one iteration, and how many values it keeps."""
    iteration = _input("iteration", onnx_ir.DataType.INT64, onnx_ir.Shape([]))
    more = _input("more", onnx_ir.DataType.BOOL, onnx_ir.Shape([]))
    carried = [_input(f"state_{at}", onnx_ir.DataType.FLOAT) for at in range(len(states))]
    recorder = OpRecorder(op, {})
    with evaluator.default_as(recorder):
        done = op.Reshape(iteration, ints(1))
        place = done if onward else op.Sub(ints(steps - 1), done)
        # Identity: onnxruntime needs an output that is not an input.
        proceed = op.Identity(more)
        following, kept = step(carried, [op.Gather(each, place, axis=0) for each in sequences])
    outputs = [proceed, *following, *kept]
    return onnx_ir.Graph([iteration, more, *carried], outputs, nodes=recorder.nodes, name="step"), len(kept)


def _input(name: str, kind: onnx_ir.DataType, shape: onnx_ir.Shape | None = None) -> onnx_ir.Value:
    return onnx_ir.Value(name=name, type=onnx_ir.TensorType(kind), shape=shape)


# Recurrent layers in a graph: ONNX's RNN, GRU and LSTM, and their gradients.
#
# Everything that can be computed for the whole sequence at once is: the gates (from the outputs, which are the states),
# the factors by which a gradient passes each step, and the gradients of the weights. Only the gradient of the state
# goes back step by step, in a loop.

# The positions in ONNX of the gates that torch orders as r z n, and as i f g o.
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
    """Return the states of all steps of an RNN or a GRU."""
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
    """Return the states of all steps of an LSTM, and its last cell state."""
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
    """Return the gradients of input, first state, weights and biases."""
    before = _before(y, h, backwards)
    if kind == "GRU":
        straight, to_state, to_input = _gru_factors(x, before, by_x, by_h, bias_x, bias_h)
    else:
        straight = None
        to_state = to_input = (
            _tanh_slope(y) if kind == "RNN_TANH" else op.Cast(op.Greater(y, constant(0.0)), to=TensorProto.FLOAT)
        )
    gates = size(by_x, 0) // size(h, 1)

    def step(state: Sequence[Value], now: Sequence[Value]) -> tuple[list[Value], list[Value]]:
        reached = op.Add(state[0], now[0])
        sent = op.Mul(_repeated(reached, gates), now[1])
        passed = op.MatMul(sent, by_h)
        return [passed if straight is None else op.Add(passed, op.Mul(reached, now[2]))], [reached]

    zeros = op.Mul(_as_step(h), constant(0.0))
    sequences = [grad, to_state] if straight is None else [grad, to_state, straight]
    (by_start,), (reached,) = scan(step, [zeros], sequences, size(x, 0), onward=backwards)
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
    """Return the gradients of input, first states, weights and biases."""
    before, steps = _before(y, h, backwards), size(x, 0)
    pre = op.Add(_product(x, by_x, bias_x), _product(before, by_h, bias_h))
    entry, forget, new, leave = _gates(pre, 4)
    entry, forget, leave = (op.Sigmoid(gate) for gate in (entry, forget, leave))
    new = op.Tanh(new)
    # The outputs contain the states, but not the cells: these are computed again.
    _, (cells,) = scan(_next_cell, [_as_step(c)], [forget, op.Mul(entry, new)], steps, onward=not backwards)
    shown = op.Tanh(cells)
    to_cell = op.Mul(leave, _tanh_slope(shown))
    factors = op.Concat(
        op.Mul(new, _sigmoid_slope(entry)),
        op.Mul(_before(cells, c, backwards), _sigmoid_slope(forget)),
        op.Mul(entry, _tanh_slope(new)),
        op.Mul(shown, _sigmoid_slope(leave)),
        axis=2,
    )

    def step(state: Sequence[Value], now: Sequence[Value]) -> tuple[list[Value], list[Value]]:
        reached = op.Add(state[0], now[0])
        cell = op.Add(state[1], op.Mul(reached, now[2]))
        sent = op.Mul(op.Concat(cell, cell, cell, reached, axis=2), now[1])
        return [op.MatMul(sent, by_h), op.Mul(cell, now[3])], [sent]

    starts = [op.Mul(_as_step(h), constant(0.0)), _as_step(grad_c)]
    ends, (sent,) = scan(step, starts, [grad, factors, to_cell, forget], steps, onward=backwards)
    return _gathered(sent, sent, x, before, by_x, *ends)


def _next_cell(state: Sequence[Value], now: Sequence[Value]) -> tuple[list[Value], list[Value]]:
    cell = op.Add(op.Mul(state[0], now[0]), now[1])
    return [cell], [cell]


def _gru_factors(
    x: Value, before: Value, by_x: Value, by_h: Value, bias_x: Value, bias_h: Value
) -> tuple[Value, Value, Value]:
    """Return the factors of a state's gradient on its way to the previous state: directly, and through each gate.

    Also return those on its way to the input, which differ because of the reset gate.
    """
    from_x, from_h = _gates(_product(x, by_x, bias_x), 3), _gates(_product(before, by_h, bias_h), 3)
    reset, update = (op.Sigmoid(op.Add(from_x[gate], from_h[gate])) for gate in (0, 1))
    new = op.Tanh(op.Add(from_x[2], op.Mul(reset, from_h[2])))
    to_new = op.Mul(op.Sub(constant(1.0), update), _tanh_slope(new))
    to_reset = op.Mul(op.Mul(to_new, from_h[2]), _sigmoid_slope(reset))
    to_update = op.Mul(op.Sub(before, new), _sigmoid_slope(update))
    to_state = op.Concat(to_reset, to_update, op.Mul(to_new, reset), axis=2)
    return update, to_state, op.Concat(to_reset, to_update, to_new, axis=2)


def _gathered(
    received: Value, sent: Value, x: Value, before: Value, by_x: Value, *by_starts: Value
) -> tuple[Value, ...]:
    """Compute all gradients from those that reached the gates of all steps."""
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
    """Return the state at the start of each step."""
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
    """Repeat the values for each gate along the last axis."""
    return op.Concat(*(values for _ in range(times)), axis=-1) if times > 1 else values


def _rows(values: Value) -> Value:
    """Return a sequence of batches as one large batch."""
    return op.Flatten(values, axis=2)


def _as_step(values: Value) -> Value:
    """Return a batch as a sequence of one step."""
    return op.Unsqueeze(values, ints(0))


def _tanh_slope(tanh: Value) -> Value:
    return op.Sub(constant(1.0), op.Mul(tanh, tanh))


def _sigmoid_slope(sigmoid: Value) -> Value:
    return op.Mul(sigmoid, op.Sub(constant(1.0), sigmoid))


def _arranged(
    by_x: Value, by_h: Value, bias_x: Value, bias_h: Value, gates: Sequence[int]
) -> tuple[Value, Value, Value]:
    """Return the weights in ONNX's form: its order of gates, both biases in one, and an axis for directions."""
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
