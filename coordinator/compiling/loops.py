"""A step that is repeated along a sequence, as a loop of the graph: however long the sequence, it stands there once."""

# mypy: disable-error-code="no-untyped-call"
from __future__ import annotations

from typing import TYPE_CHECKING

import numpy as np
import onnx_ir
from onnxscript import evaluator
from onnxscript import opset18 as op
from torch.onnx._internal.exporter._building import OpRecorder
from torch.onnx._internal.exporter._torchlib.ops.hop import call_op

from coordinator.compiling.operators import Value, constant, ints

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence

    Step = Callable[[Sequence[Value], Sequence[Value]], tuple[list[Value], list[Value]]]
    """From the states and what the sequences hold at a place to the next states and what is kept of the place."""

BACK_TO_FRONT = -(1 << 31)


def swept(
    step: Step, states: list[Value], sequences: list[Value], steps: int, *, onward: bool
) -> tuple[list[Value], list[Value]]:
    """The last states, and what `step` kept of all places, in the order of the sequences.

    Places are the first axis of a sequence; a state, and what is kept, is a sequence of one place.
    onward: from the first place to the last, or else from the last to the first.
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
    """The graph of one round, and how many values it keeps."""
    round_ = _input("round", onnx_ir.DataType.INT64, onnx_ir.Shape([]))
    more = _input("more", onnx_ir.DataType.BOOL, onnx_ir.Shape([]))
    carried = [_input(f"state_{at}", onnx_ir.DataType.FLOAT) for at in range(len(states))]
    recorder = OpRecorder(op, {})
    with evaluator.default_as(recorder):
        done = op.Reshape(round_, ints(1))
        place = done if onward else op.Sub(ints(steps - 1), done)
        # Identity: onnxruntime wants an output that is no input.
        going_on = op.Identity(more)
        following, kept = step(carried, [op.Gather(each, place, axis=0) for each in sequences])
    outputs = [going_on, *following, *kept]
    return onnx_ir.Graph([round_, more, *carried], outputs, nodes=recorder.nodes, name="step"), len(kept)


def _input(name: str, kind: onnx_ir.DataType, shape: onnx_ir.Shape | None = None) -> onnx_ir.Value:
    return onnx_ir.Value(name=name, type=onnx_ir.TensorType(kind), shape=shape)
