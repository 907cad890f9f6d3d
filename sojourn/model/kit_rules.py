"""The rules for a kit: numbers and names that fit each other, and graphs that take and give what the kit says."""

from __future__ import annotations

from math import isfinite, prod
from typing import TYPE_CHECKING

from sojourn.errors import GraphRefused
from sojourn.model.frozen import given_to, graph_in, names_of
from sojourn.model.inspection import LARGEST, Declared, inspected
from sojourn.model.task_rules import objections_to_task
from sojourn.model.tensors import FLOAT, INT64

if TYPE_CHECKING:
    from collections.abc import Iterator

    from sojourn.model.frozen import Use
    from sojourn.protocol.spec import InputSpec, Kit
    from sojourn.protocol.task import Target

LARGEST_MODEL = 1 << 28
"""Numbers of a model."""
LARGEST_SAMPLE = 1 << 26
"""Numbers of one sample, or of the noise that a layer takes for it."""
LARGEST_FEATURES = 1 << 18
"""Numbers that a trunk makes of one sample: a megabyte, which is kept for every sample."""
MOST_CLASSES = 1 << 16
MOST_TENSORS = 1 << 14
MOST_ROWS = 1 << 10
"""Of a probe; also the places at which it tells the gradient, and the layers that take noise."""
LONGEST_NAME = 1 << 10
MOST_TAPS = 1000
"""Layers whose inputs are looked at."""
MOST_ANCHORS = 4
"""Frozen models that a second training graph may take, and numbers besides."""
STATE_TOLD = 16
"""So many numbers of the new state a probe tells, or all if there are fewer."""
_TYPES = {"float32": FLOAT, "int64": INT64}


def check_kit(kit: Kit) -> None:
    """Refuse a kit whose numbers do not fit each other; its graphs are looked at when they are loaded."""
    if wrong := next(_objections(kit), None):
        raise GraphRefused(f"the kit is refused: {wrong}")


def check_train(kit: Kit) -> None:
    """Refuse a training graph that does not take and give exactly what the kit says."""
    _compare(kit, "train", "the training graph", *_trains(kit))


def check_two_stream(kit: Kit) -> None:
    """Refuse a second training graph that does not take and give exactly what the kit says."""
    inputs, outputs = _trains(kit)
    streams = kit.two_stream
    vector, number = Declared(FLOAT, (kit.model.size,)), Declared(FLOAT, ())
    inputs |= {f"anchor_{at}": vector for at in range(streams.anchors if streams else 0)}
    inputs |= {f"scalar_{at}": number for at in range(streams.scalars if streams else 0)}
    _compare(kit, "two_stream", "the two-stream graph", inputs, outputs)


def _trains(kit: Kit) -> tuple[dict[str, Declared], dict[str, Declared]]:
    """What a graph takes that trains, and what it gives."""
    inputs = _compared(kit)
    inputs |= {f"noise_{at}": Declared(FLOAT, (None, *shape)) for at, shape in enumerate(kit.noise)}
    learnt, size = kit.model.learnt, kit.model.size
    outputs = {"loss": Declared(FLOAT, ()), "gradient": Declared(FLOAT, (learnt,))}
    return inputs, outputs | ({"state": Declared(FLOAT, (size - learnt,))} if kit.model.state else {})


def check_predict(kit: Kit) -> None:
    """Refuse a prediction graph that does not take and give exactly what the kit says."""
    inputs = {"vector": Declared(FLOAT, (kit.model.size,)), "x": _declared(kit.taken)}
    learns = kit.learns
    outputs = {learns.answers: Declared(FLOAT, (None, *learns.output))}
    _compare(kit, "predict", "the prediction graph", inputs, outputs)


def check_taps(kit: Kit) -> None:
    """Refuse a graph of layers' inputs that does not take and give exactly what the kit says."""
    taps = kit.more.taps if kit.more else None
    inputs = {"vector": Declared(FLOAT, (kit.model.size,)), "x": _declared(kit.taken)}
    layers = taps.layers if taps else ()
    outputs = {f"tap_{at}": Declared(FLOAT, (None, *layer.shape)) for at, layer in enumerate(layers)}
    _compare(kit, "taps", "the graph of layers' inputs", inputs, outputs)


def check_votes(kit: Kit) -> None:
    """Refuse graphs of answers with an unknown class, and of their slope, that are not what the kit says."""
    inputs = {"vector": Declared(FLOAT, (kit.model.size,)), "x": _declared(kit.taken)}
    votes = {"votes": Declared(FLOAT, (None, len(kit.classes) + 1))}
    _compare(kit, "votes", "the graph of votes", inputs, votes)
    _compare(kit, "slope", "the graph of the samples' slope", inputs, {"slope": _declared(kit.taken)})


def check_open_train(kit: Kit) -> None:
    """Refuse a training graph with outliers that is not what the kit says."""
    inputs, outputs = _trains(kit)
    row = Declared(FLOAT, (None,))
    shapes = {"unlike": row, "share": row}
    further = kit.outliers.further if kit.outliers else ()
    inputs |= {name: shapes.get(name, _declared(kit.taken)) for name in further}
    _compare(kit, "open_train", "the training graph with outliers", inputs, outputs)


def check_soft(kit: Kit) -> None:
    """Refuse a training graph with given answers that is not what the kit says."""
    inputs, outputs = _trains(kit)
    inputs["soft"] = Declared(FLOAT, (None, len(kit.classes)))
    _compare(kit, "soft", "the training graph with given answers", inputs, outputs)


def check_fused(kit: Kit) -> None:
    """Refuse a graph of a fused model that does not take and give exactly what the kit says."""
    vector, learns = Declared(FLOAT, (kit.model.size,)), kit.learns
    inputs = {"vector": vector, "x": _declared(kit.taken), "anchor_0": vector}
    _compare(
        kit, "fused", "the graph of the fused model", inputs, {learns.answers: Declared(FLOAT, (None, *learns.output))}
    )


def check_score(kit: Kit) -> None:
    """Refuse a scoring graph that does not take and give exactly what the kit says."""
    _compare(kit, "score", "the scoring graph", _compared(kit), {"losses": Declared(FLOAT, (None,))})


def _compared(kit: Kit) -> dict[str, Declared]:
    """What a graph takes that compares answers with targets: models, samples and targets."""
    vector, learns = Declared(FLOAT, (kit.model.size,)), kit.learns
    inputs = {"vector": vector, "x": _declared(kit.taken)}
    if learns.target is not None:
        inputs["y"] = Declared(_TYPES[learns.target.dtype], (None, *learns.target.shape))
    return inputs | {f"beside_{at}": vector for at in range(len(learns.beside))}


def check_trunk(kit: Kit) -> None:
    """Refuse a trunk that does not make the features that the kit says of its samples."""
    outputs = {"features": Declared(FLOAT, (None, *kit.taken.shape))}
    _compare(kit, "trunk", "the trunk", {"x": _declared(kit.input)}, outputs)


def _bytes(spec: InputSpec | Target) -> int:
    """How many bytes one sample takes, or one target."""
    return prod(spec.shape) * (8 if spec.dtype == "int64" else 4)


def _declared(spec: InputSpec) -> Declared:
    return Declared(_TYPES[spec.dtype], (None, *spec.shape))


def _compare(kit: Kit, use: Use, name: str, inputs: dict[str, Declared], outputs: dict[str, Declared]) -> None:
    signature = inspected(graph_in(kit, use), name, names_of(given_to(kit, use)))
    for does, found, wanted in (("takes", signature.inputs, inputs), ("gives", signature.outputs, outputs)):
        if found.keys() != wanted.keys():
            raise GraphRefused(f"{name} {does} {_names(found)} instead of {_names(wanted)}")
        for each, declared in wanted.items():
            assert declared.shape is not None  # noqa: S101  # written above
            if not found[each].fits(declared.type, declared.shape):
                raise GraphRefused(f"{name} {does} {each} as {found[each]} instead of {declared}")


def _names(values: dict[str, Declared]) -> str:
    return ", ".join(sorted(values)[:8]) or "nothing"


def _objections(kit: Kit) -> Iterator[str]:
    tensors, size = kit.model.tensors, kit.model.size
    if not 1 <= len(tensors) <= MOST_TENSORS or not 1 <= size <= LARGEST_MODEL:
        yield f"a model of {len(tensors)} tensors with {size:,} numbers"
    if kit.model.state >= len(tensors):
        yield f"a model of {len(tensors)} tensors, of which {kit.model.state} are said to be state"
    names = {tensor.name for tensor in tensors}
    if len(names) < len(tensors) or max(map(len, (*names, *kit.classes, ""))) > LONGEST_NAME:
        yield "two tensors of one name, or a name that is too long"
    if not set(kit.linear) <= names:
        yield "a layer that is no tensor of the model"
    least = 1 if kit.learns.kind in ("classification", "multilabel") else 0
    if not least <= len(kit.classes) <= MOST_CLASSES or len(set(kit.classes)) < len(kit.classes):
        yield f"{len(kit.classes)} classes, or two of one name"
    if kit.task:
        yield from objections_to_task(kit.task, kit.input, len(kit.classes))
        yield from ["a task and no graph of its loss"] if not kit.score else []
    if len(kit.noise) > MOST_ROWS or any(prod(shape) > LARGEST_SAMPLE for shape in (kit.input.shape, *kit.noise)):
        yield "a sample, or noise for it, that is too large"
    yield from _objections_to_frozen(kit)
    if kit.trunk and prod(kit.trunk.shape) > LARGEST_FEATURES:
        yield f"a trunk that makes {prod(kit.trunk.shape):,} numbers of a sample"
    yield from _objections_to_probe(kit)
    yield from _objections_to_two_stream(kit)
    yield from _objections_to_taps(kit)
    yield from _objections_to_outliers(kit)


def _objections_to_outliers(kit: Kit) -> Iterator[str]:
    channels = kit.taken.shape[0] if kit.taken.shape else 0
    if (it := kit.outliers) and not len(it.zero) == len(it.scale) == channels:
        yield f"outliers with {len(it.zero)} zeros and {len(it.scale)} scales for {channels} channels"
    if (it := kit.outliers) and not all(map(isfinite, (*it.zero, *it.scale))):
        yield "outliers whose zeros or scales are not finite"


def _objections_to_taps(kit: Kit) -> Iterator[str]:
    taps = kit.more.taps if kit.more else None
    if not taps:
        return
    shapes = {tensor.name: tensor.shape for tensor in kit.model.tensors}
    if not 1 <= len(taps.layers) <= MOST_TAPS:
        yield f"{len(taps.layers)} layers whose inputs are looked at"
    for layer in taps.layers:
        weight, inputs = shapes.get(layer.weight, ()), layer.inputs - bool(layer.bias)
        if not weight or not layer.shape or prod(layer.shape) > LARGEST_SAMPLE or prod(weight[1:]) != inputs:
            yield f"a layer {layer.weight!r} whose inputs do not fit its weights"
        elif layer.bias and shapes.get(layer.bias) != weight[:1]:
            yield f"a layer {layer.weight!r} whose bias is none"
        elif layer.kernel and (len(layer.kernel), len(layer.shape)) != (2, 3):
            yield f"a convolution {layer.weight!r} of images that are none"


def _objections_to_two_stream(kit: Kit) -> Iterator[str]:
    streams, probe = kit.two_stream, kit.probe
    if not streams:
        return
    if not 1 <= streams.anchors <= MOST_ANCHORS or not 0 <= streams.scalars <= MOST_ANCHORS:
        yield f"a second stream with {streams.anchors} frozen models and {streams.scalars} numbers"
    if len(streams.values) != len(probe.places) or len(streams.state) != len(probe.state):
        yield f"a second stream whose probe tells {len(streams.values)} values and {len(streams.state)} of the state"


def _objections_to_frozen(kit: Kit) -> Iterator[str]:
    tensors = kit.frozen
    names = {tensor.name for tensor in tensors}
    if len(tensors) > MOST_TENSORS or len(names) < len(tensors) or max(map(len, names), default=0) > LONGEST_NAME:
        yield f"{len(tensors)} frozen tensors, or two of one name, or a name that is too long"
    if not names.isdisjoint(tensor.name for tensor in kit.model.tensors):
        yield "a tensor that is frozen and trained"
    if wrong := next((tensor for tensor in tensors if len(tensor.data) != 4 * prod(tensor.shape)), None):
        yield f"the frozen tensor {wrong.name[:64]!r} with {len(wrong.data):,} bytes for the shape {list(wrong.shape)}"
    if sum(len(tensor.data) for tensor in tensors) > LARGEST:
        yield f"frozen tensors with more than {LARGEST:,} bytes"


def _objections_to_probe(kit: Kit) -> Iterator[str]:
    probe, rows = kit.probe, len(kit.probe.y)
    labels = len(kit.classes) if kit.learns.kind == "classification" else 1
    if not 1 <= rows <= MOST_ROWS or not all(0 <= label < labels for label in probe.y):
        yield f"a probe of {rows} rows, or with labels that are no class"
    target = kit.task.target if kit.task and kit.task.kind != "classification" else None
    if len(probe.targets) != (rows * _bytes(target) if target else 0):
        yield f"a probe of {rows} rows with {len(probe.targets):,} bytes of targets"
    if len(probe.x) != rows * _bytes(kit.input):
        yield "a probe whose rows are not of the input's shape"
    if rows * sum(map(prod, kit.noise)) > LARGEST_SAMPLE:
        yield "a probe that takes too much noise"
    if not 1 <= len(probe.places) == len(probe.values) <= MOST_ROWS:
        yield f"a probe with {len(probe.values)} values for {len(probe.places)} places"
    if not all(0 <= place < kit.model.learnt for place in probe.places):
        yield "a probe with places outside of the model"
    trained = len(kit.model.learnt_sizes)
    if len(probe.spread) not in (0, trained) or not all(map(isfinite, probe.spread)):
        yield f"a probe with the spread of {len(probe.spread)} of {trained} tensors, or an infinite one"
    if len(probe.state) != min(STATE_TOLD, kit.model.size - kit.model.learnt):
        yield f"a probe with {len(probe.state)} numbers of the state"
    if not 0 <= probe.noise_seed < 1 << 64:
        yield f"a probe with {probe.noise_seed} as its seed"
