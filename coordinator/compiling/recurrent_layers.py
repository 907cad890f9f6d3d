"""Recurrent layers as single operators with a gradient, because torch would trace every step of a sequence.

Torch computes the reference with its own layers. Only the tracer uses the operators that are defined here, and
`recurrent_graphs` translates them into a graph.
"""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor, nn
from torch._subclasses.fake_tensor import FakeTensor

from coordinator.compiling.layer_errors import LayerRefused
from coordinator.compiling.randomness import FedDropout, NoiseFeed
from sojourn.model.onnx_rules import MAX_LOOP_ROUNDS

States = tuple[Tensor, ...]

MAX_STEPS = MAX_LOOP_ROUNDS
"""The maximum number of steps of a sequence: that of a graph's loop."""
LAYERS = (nn.RNN, nn.GRU, nn.LSTM)
BATCHED_AXES = 3
_LIBRARY = torch.library.Library("sojourn", "DEF")
_WEIGHTS = "Tensor by_x, Tensor by_h, Tensor bias_x, Tensor bias_h"
_LIBRARY.define(f"recurrent(Tensor x, Tensor h, {_WEIGHTS}, str kind, bool backwards) -> Tensor")
_LIBRARY.define(
    f"recurrent_backward(Tensor grad, Tensor y, Tensor x, Tensor h, {_WEIGHTS}, str kind, bool backwards)"
    " -> (Tensor, Tensor, Tensor, Tensor, Tensor, Tensor)"
)
_LIBRARY.define(f"lstm(Tensor x, Tensor h, Tensor c, {_WEIGHTS}, bool backwards) -> (Tensor, Tensor)")
_LIBRARY.define(
    f"lstm_backward(Tensor grad, Tensor grad_c, Tensor y, Tensor x, Tensor h, Tensor c, {_WEIGHTS}, bool backwards)"
    " -> (Tensor, Tensor, Tensor, Tensor, Tensor, Tensor, Tensor)"
)
recurrent = torch.ops.sojourn.recurrent
recurrent_backward = torch.ops.sojourn.recurrent_backward
lstm = torch.ops.sojourn.lstm
lstm_backward = torch.ops.sojourn.lstm_backward


class Recurrence:
    """The forward pass of an RNN, GRU or LSTM, by layer and direction, with dropout noise from a feed."""

    def __init__(self, layer: nn.RNNBase, feed: NoiseFeed) -> None:
        """Replace the forward pass of `layer`, whose weights and settings are read again in every pass."""
        self._layer = layer
        self._dropout = FedDropout(float(layer.dropout), channels=False, feed=feed)

    def __call__(self, x: Tensor, hx: Tensor | States | None = None) -> tuple[Tensor, Tensor | States]:
        """Return what the layer itself would: the outputs of all steps, and the last states."""
        layer = self._layer
        x = _checked(x, layer)
        directions = 2 if layer.bidirectional else 1
        starts = self._starts(x, hx, layer.num_layers * directions)
        ends = []
        for depth in range(layer.num_layers):
            if depth:
                self._dropout.training = layer.training
                x = self._dropout(x)
            sides = [self._run(x, depth, side, starts[depth * directions + side]) for side in range(directions)]
            x = torch.cat([y for y, _ in sides], 2) if layer.bidirectional else sides[0][0]
            ends += [end for _, end in sides]
        states = tuple(torch.stack(each) for each in zip(*ends, strict=True))
        return x.transpose(0, 1) if layer.batch_first else x, states if layer.mode == "LSTM" else states[0]

    def _starts(self, x: Tensor, hx: Tensor | States | None, runs: int) -> list[States]:
        """Return the first states of each run through the sequence."""
        kinds = 2 if self._layer.mode == "LSTM" else 1
        if hx is None:
            return [(x.new_zeros(x.shape[1], self._layer.hidden_size),) * kinds] * runs
        given = (hx,) if isinstance(hx, Tensor) else hx
        return [tuple(state[run] for state in given) for run in range(runs)]

    def _run(self, x: Tensor, depth: int, side: int, start: States) -> tuple[Tensor, States]:
        layer, which = self._layer, f"l{depth}{'_reverse' if side else ''}"
        weights = [getattr(layer, f"{name}_{which}") for name in ("weight_ih", "weight_hh")]
        if layer.bias:
            weights += [getattr(layer, f"{name}_{which}") for name in ("bias_ih", "bias_hh")]
        else:
            weights += [x.new_zeros(len(weights[0]))] * 2
        run = _traced_run if isinstance(x, FakeTensor) else _torch_run
        return run(layer.mode, x, start, weights, backwards=bool(side))


def with_recurrence(module: nn.Module, feed: NoiseFeed) -> None:
    """Make the recurrent layers of `module` run as single operators when they are traced.

    Subclasses may do anything, and ONNX's LSTM has no projection: these are traced step by step.
    """
    for layer in module.modules():
        if type(layer) in LAYERS and isinstance(layer, nn.RNNBase) and not layer.proj_size:
            layer.forward = Recurrence(layer, feed)


def _checked(x: Tensor, layer: nn.RNNBase) -> Tensor:
    """Return the sequence with its steps as the first axis."""
    if not isinstance(x, Tensor):
        raise LayerRefused("its input is a packed sequence, whose lengths depend on the data: pad to one length")
    if x.dim() != BATCHED_AXES:
        raise LayerRefused(f"its input has {x.dim()} axes, and a batch of sequences has 3: samples, steps, features")
    x = x.transpose(0, 1) if layer.batch_first else x
    if not isinstance(x.shape[0], int):
        raise LayerRefused("it uses the samples of a batch as the steps of a sequence: set batch_first=True")
    if x.shape[0] > MAX_STEPS:
        raise LayerRefused(
            f"its input is a sequence of {x.shape[0]:,} steps, and the maximum is {MAX_STEPS:,}: shorten it, e.g. with "
            "Conv1d with a stride or AvgPool1d before it"
        )
    return x


def _torch_run(kind: str, x: Tensor, start: States, weights: list[Tensor], *, backwards: bool) -> tuple[Tensor, States]:
    functions: dict[str, Any] = {
        "GRU": torch.gru,
        "LSTM": torch.lstm,
        "RNN_TANH": torch.rnn_tanh,
        "RNN_RELU": torch.rnn_relu,
    }
    begin: Any = tuple(state.unsqueeze(0) for state in start)
    y, *ends = functions[kind](
        x.flip(0) if backwards else x, begin if kind == "LSTM" else begin[0], weights, True, 1, 0.0, False, False, False
    )
    return y.flip(0) if backwards else y, tuple(end[0] for end in ends)


def _traced_run(
    kind: str, x: Tensor, start: States, weights: list[Tensor], *, backwards: bool
) -> tuple[Tensor, States]:
    last = 0 if backwards else -1
    if kind == "LSTM":
        y, c = lstm(x, *start, *weights, backwards)
        return y, (y[last], c)
    y = recurrent(x, *start, *weights, kind, backwards)
    return y, (y[last],)


def _outputs(x: Tensor, h: Tensor) -> Tensor:
    return x.new_empty(x.shape[0], *h.shape)


def _recurrent_shape(x: Tensor, h: Tensor, *_others: object) -> Tensor:
    return _outputs(x, h)


def _recurrent_backward_shapes(_grad: Tensor, _y: Tensor, *inputs: Any) -> States:
    return tuple(torch.empty_like(each) for each in inputs[:6])


def _lstm_shapes(x: Tensor, h: Tensor, c: Tensor, *_others: object) -> States:
    return _outputs(x, h), torch.empty_like(c)


def _lstm_backward_shapes(_grad: Tensor, _grad_c: Tensor, _y: Tensor, *inputs: Any) -> States:
    return tuple(torch.empty_like(each) for each in inputs[:7])


def _keep(ctx: Any, inputs: tuple[Any, ...], output: Any) -> None:
    y = output if isinstance(output, Tensor) else output[0]
    tensors = [each for each in inputs if isinstance(each, Tensor)]
    ctx.settings = inputs[len(tensors) :]
    ctx.save_for_backward(y, *tensors)


def _recurrent_gradient(ctx: Any, grad: Tensor) -> tuple[Any, ...]:
    return *recurrent_backward(grad, *ctx.saved_tensors, *ctx.settings), None, None


def _lstm_gradient(ctx: Any, grad: Tensor, grad_c: Tensor) -> tuple[Any, ...]:
    return *lstm_backward(grad, grad_c, *ctx.saved_tensors, *ctx.settings), None


for _operator, _shapes in (
    (recurrent, _recurrent_shape),
    (recurrent_backward, _recurrent_backward_shapes),
    (lstm, _lstm_shapes),
    (lstm_backward, _lstm_backward_shapes),
):
    torch.library.register_fake(_operator.default, _shapes)
torch.library.register_autograd(recurrent.default, _recurrent_gradient, setup_context=_keep)
torch.library.register_autograd(lstm.default, _lstm_gradient, setup_context=_keep)
