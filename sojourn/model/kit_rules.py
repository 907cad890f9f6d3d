"""Validation of kits: the task, sizes and names, and the inputs and outputs of the graphs."""

from __future__ import annotations

from collections.abc import Iterator
from itertools import pairwise
from math import isfinite, prod

from sojourn.errors import GraphRefused
from sojourn.model.inspection import MAX_GRAPH_BYTES, TensorType, inspected
from sojourn.model.onnx_rules import FLOAT, INT64
from sojourn.model.session import GRAPH_NAMES, Use, frozen_names, frozen_tensors, graph_bytes
from sojourn.model.strata import width
from sojourn.protocol.spec import InputSpec, Kit
from sojourn.protocol.task import Strata, Target, TaskSpec

Tensors = dict[str, TensorType]

MAX_STRATA = 4096
"""The maximum number of values in a device's signature."""
MAX_CENTRES = 1 << 16
"""Maximum total numbers in all centres."""
MAX_NAMES = 1 << 12
MAX_TARGET = 1 << 22
"""Maximum numbers in the target or the output of one sample."""
MAX_NAME = 1 << 10
MAX_WINDOW = 1 << 22


def task_errors(task: TaskSpec, input: InputSpec, classes: int) -> Iterator[str]:  # noqa: A002
    """Yield the errors of a task for these samples."""
    sizes = (prod(task.output), prod(task.target.shape) if task.target else 1)
    if not task.output or max(sizes) > MAX_TARGET:
        yield f"a task with outputs of {sizes[0]:,} numbers and targets of {sizes[1]:,}"
    if wrong := _task_mismatch(task, input, classes):
        yield f"a task of kind {task.kind} with {wrong}"
    words = (*task.names, *task.normal)
    if len(words) > MAX_NAMES or max(map(len, (*words, task.loss))) > MAX_NAME:
        yield f"a task with {len(words)} names, or a name that is too long"
    if not (isfinite(task.blind) and task.blind > 0):
        yield f"a task whose blind loss is {task.blind}"
    if len(task.reference_models) > 1:
        yield f"a task with {len(task.reference_models)} reference models"
    if len(task.ranges) > MAX_NAMES or not all(low <= high and isfinite(high - low) for low, high in task.ranges):
        yield f"a task with {len(task.ranges)} ranges, or an invalid range"
    yield from _strata_errors(task.strata)
    found, needed = {*map(len, task.strata.centres), *([1] if task.strata.edges else [])}, width(task, input)
    if found and found != {needed}:
        yield f"strata by {max(found)} numbers of a sample instead of {needed}"
    if task.kind in ("classification", "multilabel") and task.strata.count != classes:
        yield f"a task with {task.strata.count} strata for {classes} classes"


def _task_mismatch(task: TaskSpec, input: InputSpec, classes: int) -> str | None:  # noqa: A002
    """Return how outputs, targets and samples do not fit each other, or None."""
    target, output, window = task.target, task.output, task.window
    match task.kind:
        case "classification":
            fits = target == Target((), "int64") and output == (classes,)
        case "multilabel":
            fits = target == Target((classes,)) and output == (classes,)
        case "reconstruction":
            fits = target is None and output == input.shape and input.dtype == "float32"
        case "tokens":
            fits = target == Target(input.shape, "int64") and output[:-1] == input.shape and input.dtype == "int64"
        case _:
            fits = target == Target(output)
    if (task.kind == "forecast") != (window is not None):
        return "a window that only a forecast has, or without the required window"
    if window and (max(window.steps, window.horizon, window.stride) > MAX_WINDOW or window.horizon != output[0]):
        return f"a window of {window.steps} input steps and {window.horizon} predicted steps"
    return None if fits else f"outputs {list(output)} for samples {list(input.shape)}, and targets that do not fit"


def _strata_errors(strata: Strata) -> Iterator[str]:
    count, widths = strata.count, {len(centre) for centre in strata.centres}
    if count > MAX_STRATA or sum(map(len, strata.centres)) > MAX_CENTRES:
        yield f"a task with {count} strata"
    if strata.edges and strata.centres:
        yield "strata with edges and with centres"
    if strata.edges and len(strata.edges) != count - 1:
        yield f"{count} strata with {len(strata.edges)} edges"
    if strata.centres and (len(strata.centres) != count or widths != {len(strata.scale)} or not strata.scale):
        yield f"{count} strata with {len(strata.centres)} centres, or centres of different sizes"
    known = (*strata.edges, *strata.scale, *(value for centre in strata.centres for value in centre))
    if not all(map(isfinite, known)) or not all(value > 0 for value in strata.scale):
        yield "strata with edges, centres or a scale that are not valid numbers"
    if any(low >= high for low, high in pairwise(strata.edges)):
        yield "strata whose edges do not increase"


MAX_MODEL = 1 << 28
"""Maximum numbers in a model."""
MAX_SAMPLE = 1 << 26
"""Maximum numbers in one sample, or in its noise for one layer."""
MAX_FEATURES = 1 << 18
"""Maximum features that a trunk computes for one sample: one megabyte, cached for every sample."""
MAX_CLASSES = 1 << 16
MAX_TENSORS = 1 << 14
MAX_PROBE_ROWS = 1 << 10
"""Maximum rows of a probe, gradient values in it, and layers that take noise."""
MAX_TAPS = 1000
"""Maximum number of tapped layers."""
MAX_ANCHORS = 4
"""Maximum frozen models, and maximum scalars, of a two-stream graph."""
MAX_PROBE_STATE = 16
"""A probe contains at most this many numbers of the new state."""
_TYPES = {"float32": FLOAT, "int64": INT64}


def check_kit(kit: Kit) -> None:
    """Reject a kit with inconsistent sizes; its graphs are checked when they are loaded."""
    if wrong := next(_errors(kit), None):
        raise GraphRefused(f"the kit is rejected: {wrong}")


def check_graph(kit: Kit, use: Use) -> None:
    """Reject one of the kit's graphs if its inputs or outputs do not match the kit."""
    name, (inputs, outputs) = GRAPH_NAMES[use], _expected_signature(kit, use)
    signature = inspected(graph_bytes(kit, use), name, frozen_names(frozen_tensors(kit, use)))
    for does, found, wanted in (("takes", signature.inputs, inputs), ("returns", signature.outputs, outputs)):
        if found.keys() != wanted.keys():
            raise GraphRefused(f"{name} {does} {_names(found)} instead of {_names(wanted)}")
        for each, declared in wanted.items():
            assert declared.shape is not None  # noqa: S101  # set below
            if not found[each].fits(declared.type, declared.shape):
                raise GraphRefused(f"{name} {does} {each} as {found[each]} instead of {declared}")


def _expected_signature(kit: Kit, use: Use) -> tuple[Tensors, Tensors]:
    """Return the inputs and outputs that a graph of this kit must have."""
    vector, samples = TensorType(FLOAT, (kit.model.size,)), _tensor_type(kit.taken)
    model, answers = {"vector": vector, "x": samples}, {kit.learns.answers: _rows(*kit.learns.output)}
    match use:
        case "train" | "two_stream" | "open_train" | "soft":
            return _training_signature(kit, use)
        case "score":
            return _loss_inputs(kit), {"losses": _rows()}
        case "predict":
            return model, answers
        case "fused":
            return {**model, "anchor_0": vector}, answers
        case "trunk":
            return {"x": _tensor_type(kit.input)}, {"features": _rows(*kit.taken.shape)}
        case "taps":
            layers = kit.more.taps.layers if kit.more and kit.more.taps else ()
            return model, {f"tap_{at}": _rows(*layer.shape) for at, layer in enumerate(layers)}
        case "votes":
            return model, {"votes": _rows(len(kit.classes) + 1)}
        case "slope":
            return model, {"slope": samples}


def _training_signature(kit: Kit, use: Use) -> tuple[Tensors, Tensors]:
    """Return the inputs and outputs that one of the training graphs must have."""
    inputs = _loss_inputs(kit) | {f"noise_{at}": _rows(*shape) for at, shape in enumerate(kit.noise)}
    trainable, size, number = kit.model.trainable_size, kit.model.size, TensorType(FLOAT, ())
    if use == "two_stream" and (streams := kit.two_stream):
        inputs |= {f"anchor_{at}": TensorType(FLOAT, (size,)) for at in range(streams.anchors)}
        inputs |= {f"scalar_{at}": number for at in range(streams.scalars)}
    elif use == "open_train" and kit.outliers:
        shapes = {"unlike": _rows(), "share": _rows()}
        inputs |= {name: shapes.get(name, _tensor_type(kit.taken)) for name in kit.outliers.further}
    elif use == "soft":
        inputs["soft"] = _rows(len(kit.classes))
    outputs = {"loss": number, "gradient": TensorType(FLOAT, (trainable,))}
    return inputs, outputs | ({"state": TensorType(FLOAT, (size - trainable,))} if kit.model.state else {})


def _loss_inputs(kit: Kit) -> Tensors:
    """Return the inputs of a graph that computes a loss: models, samples and targets."""
    vector, learns = TensorType(FLOAT, (kit.model.size,)), kit.learns
    inputs = {"vector": vector, "x": _tensor_type(kit.taken)}
    if learns.target is not None:
        inputs["y"] = _tensor_type(learns.target)
    return inputs | {f"reference_{at}": vector for at in range(len(learns.reference_models))}


def _bytes(spec: InputSpec | Target) -> int:
    """Return the bytes of one sample or one target."""
    return prod(spec.shape) * (8 if spec.dtype == "int64" else 4)


def _tensor_type(spec: InputSpec | Target) -> TensorType:
    return TensorType(_TYPES[spec.dtype], (None, *spec.shape))


def _rows(*shape: int) -> TensorType:
    """Return the type of float32 values of this shape for each sample of a batch."""
    return TensorType(FLOAT, (None, *shape))


def _names(values: Tensors) -> str:
    return ", ".join(sorted(values)[:8]) or "nothing"


def _errors(kit: Kit) -> Iterator[str]:
    tensors, size = kit.model.tensors, kit.model.size
    if not 1 <= len(tensors) <= MAX_TENSORS or not 1 <= size <= MAX_MODEL:
        yield f"a model of {len(tensors)} tensors with {size:,} numbers"
    if kit.model.state >= len(tensors):
        yield f"a model of {len(tensors)} tensors with {kit.model.state} state tensors"
    names = {tensor.name for tensor in tensors}
    if len(names) < len(tensors) or max(map(len, (*names, *kit.classes, ""))) > MAX_NAME:
        yield "two tensors with the same name, or a name that is too long"
    if not set(kit.linear) <= names:
        yield "a layer that is not a tensor of the model"
    least = 1 if kit.learns.kind in ("classification", "multilabel") else 0
    if not least <= len(kit.classes) <= MAX_CLASSES or len(set(kit.classes)) < len(kit.classes):
        yield f"{len(kit.classes)} classes, or two with the same name"
    if kit.task:
        yield from task_errors(kit.task, kit.input, len(kit.classes))
        yield from ["a task without a scoring graph"] if not kit.score else []
    if len(kit.noise) > MAX_PROBE_ROWS or any(prod(shape) > MAX_SAMPLE for shape in (kit.input.shape, *kit.noise)):
        yield "a sample or its noise that is too large"
    yield from _frozen_errors(kit)
    if kit.trunk and prod(kit.trunk.shape) > MAX_FEATURES:
        yield f"a trunk with {prod(kit.trunk.shape):,} features for a sample"
    yield from _probe_errors(kit)
    yield from _two_stream_errors(kit)
    yield from _tap_errors(kit)
    yield from _outlier_errors(kit)


def _outlier_errors(kit: Kit) -> Iterator[str]:
    channels = kit.taken.shape[0] if kit.taken.shape else 0
    if (it := kit.outliers) and not len(it.zero) == len(it.scale) == channels:
        yield f"outliers with {len(it.zero)} zeros and {len(it.scale)} scales for {channels} channels"
    if (it := kit.outliers) and not all(map(isfinite, (*it.zero, *it.scale))):
        yield "outliers whose zeros or scales are not finite"


def _tap_errors(kit: Kit) -> Iterator[str]:
    taps = kit.more.taps if kit.more else None
    if not taps:
        return
    shapes = {tensor.name: tensor.shape for tensor in kit.model.tensors}
    if not 1 <= len(taps.layers) <= MAX_TAPS:
        yield f"{len(taps.layers)} tapped layers"
    for layer in taps.layers:
        weight, inputs = shapes.get(layer.weight, ()), layer.inputs - bool(layer.bias)
        if not weight or not layer.shape or prod(layer.shape) > MAX_SAMPLE or prod(weight[1:]) != inputs:
            yield f"a layer {layer.weight!r} whose inputs do not fit its weights"
        elif layer.bias and shapes.get(layer.bias) != weight[:1]:
            yield f"a layer {layer.weight!r} whose bias does not fit its weights"
        elif layer.kernel and (len(layer.kernel), len(layer.shape)) != (2, 3):
            yield f"a convolution {layer.weight!r} whose inputs are not images"


def _two_stream_errors(kit: Kit) -> Iterator[str]:
    streams, probe = kit.two_stream, kit.probe
    if not streams:
        return
    if not 1 <= streams.anchors <= MAX_ANCHORS or not 0 <= streams.scalars <= MAX_ANCHORS:
        yield f"a second stream with {streams.anchors} frozen models and {streams.scalars} scalars"
    if len(streams.values) != len(probe.places) or len(streams.state) != len(probe.state):
        yield f"a second stream whose probe has {len(streams.values)} values and {len(streams.state)} state values"


def _frozen_errors(kit: Kit) -> Iterator[str]:
    tensors = kit.frozen
    names = {tensor.name for tensor in tensors}
    if len(tensors) > MAX_TENSORS or len(names) < len(tensors) or max(map(len, names), default=0) > MAX_NAME:
        yield f"{len(tensors)} frozen tensors, two with the same name, or a name that is too long"
    if not names.isdisjoint(tensor.name for tensor in kit.model.tensors):
        yield "a tensor that is both frozen and trained"
    if wrong := next((tensor for tensor in tensors if len(tensor.data) != 4 * prod(tensor.shape)), None):
        yield f"the frozen tensor {wrong.name[:64]!r} with {len(wrong.data):,} bytes for the shape {list(wrong.shape)}"
    if sum(len(tensor.data) for tensor in tensors) > MAX_GRAPH_BYTES:
        yield f"frozen tensors with more than {MAX_GRAPH_BYTES:,} bytes"


def _probe_errors(kit: Kit) -> Iterator[str]:
    probe, rows = kit.probe, len(kit.probe.y)
    labels = len(kit.classes) if kit.learns.kind == "classification" else 1
    if not 1 <= rows <= MAX_PROBE_ROWS or not all(0 <= label < labels for label in probe.y):
        yield f"a probe of {rows} rows, or with labels that are not classes"
    target = kit.task.target if kit.task and kit.task.kind != "classification" else None
    if len(probe.targets) != (rows * _bytes(target) if target else 0):
        yield f"a probe of {rows} rows with {len(probe.targets):,} bytes of targets"
    if len(probe.x) != rows * _bytes(kit.input):
        yield "a probe whose rows do not have the input's shape"
    if rows * sum(map(prod, kit.noise)) > MAX_SAMPLE:
        yield "a probe with too much noise"
    if not 1 <= len(probe.places) == len(probe.values) <= MAX_PROBE_ROWS:
        yield f"a probe with {len(probe.values)} values for {len(probe.places)} places"
    if not all(0 <= place < kit.model.trainable_size for place in probe.places):
        yield "a probe with places outside the model"
    trained = len(kit.model.trainable_sizes)
    if len(probe.spread) not in (0, trained) or not all(map(isfinite, probe.spread)):
        yield f"a probe with spreads for {len(probe.spread)} of {trained} tensors, or an infinite spread"
    if len(probe.state) != min(MAX_PROBE_STATE, kit.model.size - kit.model.trainable_size):
        yield f"a probe with {len(probe.state)} state values"
    if not 0 <= probe.noise_seed < 1 << 64:
        yield f"a probe with the seed {probe.noise_seed}"
