"""The one onnxruntime session: of a graph that was inspected, quiet, on so many threads, and with errors in words."""

from __future__ import annotations

from typing import TYPE_CHECKING

import numpy as np
import onnxruntime
from onnxruntime.capi import onnxruntime_pybind11_state as refusals

from sojourn.errors import ModelError
from sojourn.model.frozen import PREFIX, names_of, with_references
from sojourn.model.inspection import inspected

if TYPE_CHECKING:
    from collections.abc import Sequence

    from sojourn.protocol.spec import FrozenTensor

REFUSED = (
    refusals.Fail,
    refusals.InvalidArgument,
    refusals.InvalidGraph,
    refusals.InvalidProtobuf,
    refusals.NotImplemented,
    refusals.RuntimeException,
)
"""What onnxruntime raises for a graph that it does not load, or does not run."""
_LOADER = (ValueError, RuntimeError, MemoryError)
"""What its loader raises before it looks at the graph."""
_FATAL = 4

onnxruntime.disable_telemetry_events()


def session_options(threads: int = 1, *, spin: bool = False) -> onnxruntime.SessionOptions:
    """Options that a session begins with; with one thread results repeat bit for bit.

    spin: threads wait actively between operators, which is faster on a machine that does nothing else. They rest as
    soon as a run is done, or they would take a core from the program around it.
    """
    options = onnxruntime.SessionOptions()
    options.intra_op_num_threads = threads
    options.inter_op_num_threads = 1
    options.add_session_config_entry("session.intra_op.allow_spinning", "1" if spin and threads > 1 else "0")
    options.add_session_config_entry("session.force_spinning_stop", "1")
    options.add_session_config_entry("session.load_model_format", "ONNX")  # as it was inspected
    options.log_severity_level = _FATAL  # what goes wrong is in the error
    return options


def open_session(
    graph: bytes,
    options: onnxruntime.SessionOptions | None = None,
    name: str = "the graph",
    frozen: Sequence[FrozenTensor] = (),
) -> onnxruntime.InferenceSession:
    """A graph, loaded; ModelError says why it is not. onnxruntime sees only what the rules for graphs allow.

    frozen: tensors that the graph uses and does not hold; their bytes must stay for as long as the session does.
    """
    inspected(graph, name, names_of(frozen))
    options = options or session_options()
    if frozen:
        options.add_external_initializers(
            [f"{PREFIX}{each.name}" for each in frozen], [_value(each) for each in frozen]
        )
    try:
        return onnxruntime.InferenceSession(with_references(graph, frozen), options, providers=["CPUExecutionProvider"])
    except (*REFUSED, *_LOADER) as error:
        version = onnxruntime.__version__
        raise ModelError(f"onnxruntime does not load {name} (version {version}): {first_line(error)}") from error


def _value(tensor: FrozenTensor) -> onnxruntime.OrtValue:
    """A tensor's numbers where they are, without a copy."""
    return onnxruntime.OrtValue.ortvalue_from_numpy(np.frombuffer(tensor.data, "<f4").reshape(tensor.shape))


def first_line(error: Exception) -> str:
    """The beginning of what onnxruntime says: the rest is a list of addresses."""
    return (str(error).strip().splitlines() or [type(error).__name__])[0][:500]
