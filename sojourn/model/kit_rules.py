"""The rules for a kit: numbers and names that fit each other, and graphs that take and give what the kit says."""

from __future__ import annotations

from math import isfinite, prod
from typing import TYPE_CHECKING

from sojourn.errors import GraphRefused
from sojourn.model.inspection import Declared, inspected
from sojourn.model.tensors import FLOAT, INT64

if TYPE_CHECKING:
    from collections.abc import Iterator

    from sojourn.protocol.spec import Kit

LARGEST_MODEL = 1 << 28
"""Numbers of a model."""
LARGEST_SAMPLE = 1 << 26
"""Numbers of one sample, or of the noise that a layer takes for it."""
MOST_CLASSES = 1 << 16
MOST_TENSORS = 1 << 14
MOST_ROWS = 1 << 10
"""Of a probe; also the places at which it tells the gradient, and the layers that take noise."""
LONGEST_NAME = 1 << 10
_TYPES = {"float32": FLOAT, "int64": INT64}


def check_kit(kit: Kit) -> None:
    """Refuse a kit whose numbers do not fit each other; its graphs are looked at when they are loaded."""
    if wrong := next(_objections(kit), None):
        raise GraphRefused(f"the kit is refused: {wrong}")


def check_train(kit: Kit) -> None:
    """Refuse a training graph that does not take and give exactly what the kit says."""
    batch = None
    inputs = {
        "vector": Declared(FLOAT, (kit.model.size,)),
        "x": Declared(_TYPES[kit.input.dtype], (batch, *kit.input.shape)),
        "y": Declared(INT64, (batch,)),
    }
    inputs |= {f"noise_{at}": Declared(FLOAT, (batch, *shape)) for at, shape in enumerate(kit.noise)}
    outputs = {"loss": Declared(FLOAT, ()), "gradient": Declared(FLOAT, (kit.model.size,))}
    _compare(kit.train, "the training graph", inputs, outputs)


def check_predict(kit: Kit) -> None:
    """Refuse a prediction graph that does not take and give exactly what the kit says."""
    inputs = {
        "vector": Declared(FLOAT, (kit.model.size,)),
        "x": Declared(_TYPES[kit.input.dtype], (None, *kit.input.shape)),
    }
    _compare(kit.predict, "the prediction graph", inputs, {"logits": Declared(FLOAT, (None, len(kit.classes)))})


def _compare(graph: bytes, name: str, inputs: dict[str, Declared], outputs: dict[str, Declared]) -> None:
    signature = inspected(graph, name)
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
    names = {tensor.name for tensor in tensors}
    if len(names) < len(tensors) or max(map(len, (*names, *kit.classes))) > LONGEST_NAME:
        yield "two tensors of one name, or a name that is too long"
    if not set(kit.linear) <= names:
        yield "a layer that is no tensor of the model"
    if not 1 <= len(kit.classes) <= MOST_CLASSES or len(set(kit.classes)) < len(kit.classes):
        yield f"{len(kit.classes)} classes, or two of one name"
    if len(kit.noise) > MOST_ROWS or any(prod(shape) > LARGEST_SAMPLE for shape in (kit.input.shape, *kit.noise)):
        yield "a sample, or noise for it, that is too large"
    yield from _objections_to_probe(kit)


def _objections_to_probe(kit: Kit) -> Iterator[str]:
    probe, rows = kit.probe, len(kit.probe.y)
    if not 1 <= rows <= MOST_ROWS or not all(0 <= label < len(kit.classes) for label in probe.y):
        yield f"a probe of {rows} rows, or with labels that are no class"
    if len(probe.x) != rows * prod(kit.input.shape) * (8 if kit.input.dtype == "int64" else 4):
        yield "a probe whose rows are not of the input's shape"
    if rows * sum(map(prod, kit.noise)) > LARGEST_SAMPLE:
        yield "a probe that takes too much noise"
    if not 1 <= len(probe.places) == len(probe.values) <= MOST_ROWS:
        yield f"a probe with {len(probe.values)} values for {len(probe.places)} places"
    if not all(0 <= place < kit.model.size for place in probe.places):
        yield "a probe with places outside of the model"
    if len(probe.spread) not in (0, len(kit.model.tensors)) or not all(map(isfinite, probe.spread)):
        yield f"a probe with the spread of {len(probe.spread)} of {len(kit.model.tensors)} tensors, or an infinite one"
    if not 0 <= probe.noise_seed < 1 << 64:
        yield f"a probe with {probe.noise_seed} as its seed"
