"""Wrong graphs, made from a correct one with a single change each, like a mistake in the compiler.

`python -m tests.coordinator.compiling.mutants` judges and counts all of them; the tests use some of every kind.
"""

from __future__ import annotations

import copy
import sys
from collections import Counter
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from functools import cached_property

import msgspec
import numpy as np
import onnx
import torch
from numpy.typing import NDArray
from onnx import helper, numpy_helper
from torch import nn

from coordinator.compiling import checking, compile_kit
from coordinator.compiling.checking import Exam
from coordinator.compiling.losses import classifying
from coordinator.compiling.normalisation import normalised
from coordinator.compiling.probes import like
from coordinator.compiling.randomness import learn_draws, with_fed_dropout
from coordinator.compiling.tracing import Trainee
from sojourn.errors import SojournError
from sojourn.model.graphs import Graphs
from sojourn.model.session import RUNTIME_ERRORS
from sojourn.protocol.spec import InputSpec, Kit
from sojourn.randomness import noise

SPEC = InputSpec((3, 8, 8))
CLASSES = ("a", "b", "c", "d")
WRONG = 1e-4
"""The minimum difference from the correct graph, relative to a tensor's norm, that counts as wrong and not as rounding.
"""
OTHERS = {
    "Add": "Sub",
    "Sub": "Add",
    "Mul": "Add",
    "Div": "Mul",
    "ReduceSum": "ReduceMean",
    "ReduceMean": "ReduceSum",
    "ReduceMax": "ReduceMin",
    "Greater": "Less",
    "GreaterOrEqual": "Less",
    "Relu": "Identity",
    "Exp": "Identity",
    "Sqrt": "Identity",
    "Reciprocal": "Identity",
    "Neg": "Identity",
    "Floor": "Ceil",
}
SWAPPED = ("Sub", "Div", "MatMul", "Greater", "GreaterOrEqual")


@dataclass
class Mutant:
    """A wrong graph."""

    kind: str
    where: str
    make: Callable[[], Kit]

    @cached_property
    def kit(self) -> Kit:
        """The correct kit with this graph instead."""
        return self.make()


def network() -> nn.Module:
    """Return a network with convolutions, norm, poolings, dropout and linear layers with biases."""
    torch.manual_seed(0)
    return nn.Sequential(
        nn.Conv2d(3, 4, 3, padding=1),
        nn.GroupNorm(2, 4),
        nn.ReLU(),
        nn.MaxPool2d(2),
        nn.Conv2d(4, 6, 3, stride=2, padding=1),
        nn.Tanh(),
        nn.AvgPool2d(2, stride=1),
        nn.Flatten(),
        nn.Dropout(0.3),
        nn.Linear(6, 5),
        nn.ReLU(),
        nn.Linear(5, len(CLASSES)),
    )


def right() -> tuple[Kit, NDArray[np.float32], Exam]:
    """Return the correct kit, its initial vector, and the reference results."""
    mean, std = [10.0], [4.0]
    made = compile_kit(network(), SPEC, CLASSES, mean=mean, std=std, seed=1)
    fed, feed = with_fed_dropout(network())
    learn_draws(fed, feed, torch.zeros(2, *SPEC.shape))
    samples = like(SPEC, fed, classifying(len(CLASSES)), made.kit.noise, mean, std)
    trainee = Trainee(normalised(fed, SPEC, mean, std), feed, classifying(len(CLASSES)))
    return made.kit, made.initial, Exam(trainee, samples, 1, 16)


def mutants(kit: Kit) -> Iterator[Mutant]:
    """Yield all mutants of both graphs."""
    for name in ("train", "predict"):
        model = onnx.load_from_string(getattr(kit, name))
        for kind, where, change in _mutations(model.graph):

            def make(name=name, model=model, change=change) -> Kit:
                changed = copy.deepcopy(model)
                change(changed.graph)
                return msgspec.structs.replace(kit, **{name: changed.SerializeToString()})

            yield Mutant(kind, f"{name}: {where}", make)


def fate(mutant: Mutant, kit: Kit, initial: NDArray[np.float32]) -> str:
    """Whether the mutant's results differ from the correct graph's, on batches that the check does not use.

    `broken`: it does not load or run, or has other shapes, so onnxruntime refuses it.
    """
    try:
        off = any(_off(Graphs(mutant.kit), Graphs(kit), kit, initial, draw) for draw in range(3))
    except (*RUNTIME_ERRORS, SojournError):
        return "broken"
    return "wrong" if off else "equal"


def is_refused(mutant: Mutant, exam: Exam) -> bool:
    """Whether the check of compiled kits refuses the mutant."""
    try:
        checking.check_kit(mutant.kit, exam)
    except SojournError:
        return True
    return False


def _off(mutant: Graphs, graphs: Graphs, kit: Kit, initial: NDArray[np.float32], seed: int) -> bool:
    draw = np.random.default_rng(100 + seed)
    vector = initial + (0.1 * draw.standard_normal(initial.size)).astype(np.float32)
    x = (10 + 4 * draw.standard_normal((9, *SPEC.shape))).astype(np.float32)
    y = np.arange(9) % len(CLASSES)
    drawn = noise(seed, 7, 9, kit.noise)
    pairs = [(a.logits(vector, x), a.loss_and_gradient(vector, x, y, drawn)) for a in (mutant, graphs)]
    here, there = ([np.array([loss]), logits, *kit.model.split(g).values()] for logits, (loss, g) in pairs)
    return any(_length(a - b) > WRONG * _length(b) for a, b in zip(here, there, strict=True))


def _length(values: NDArray[np.generic]) -> float:
    length = float(np.linalg.norm(np.asarray(values, np.float64)))
    return length if np.isfinite(length) else np.inf


def _mutations(graph):
    """Yield the kind and place of each mutation, and a function that applies it to a copy of the graph."""
    makers = (_outputs, _terms, _operators, _operands, _attributes, _noise)
    for at, node in enumerate(graph.node):
        where = f"{node.op_type} {node.output[0]}"
        for kind, change in (each for maker in makers for each in maker(node)):
            yield kind, where, lambda graph, at=at, change=change: change(graph, graph.node[at], at)
    for at, tensor in enumerate(graph.initializer):
        for kind, values in _constants(numpy_helper.to_array(tensor)):
            other = numpy_helper.from_array(values, tensor.name)
            yield kind, tensor.name, lambda graph, at=at, other=other: graph.initializer[at].CopyFrom(other)


def _outputs(node):
    """Change a node's output: the wrong sign, doubled, or one percent too large."""
    for kind, factor in (("wrong sign", -1.0), ("twice as much", 2.0), ("a hundredth more", 1.01)):

        def change(graph, node, at, factor=factor) -> None:
            value = helper.make_tensor("mutant_factor", onnx.TensorProto.FLOAT, [], [factor])
            graph.initializer.append(value)
            output = node.output[0]
            node.output[0] = "mutant_before"
            graph.node.insert(at + 1, helper.make_node("Mul", ["mutant_before", "mutant_factor"], [output]))

        yield kind, change


def _terms(node):
    """Remove a term, a factor or a bias."""
    for keep in range(2) if node.op_type in ("Add", "Sub", "Mul", "Div") else ():

        def change(graph, node, at, keep=keep) -> None:
            node.CopyFrom(helper.make_node("Identity", [node.input[keep]], list(node.output)))

        yield "a term is missing", change
    if node.op_type in ("Gemm", "Conv") and len(node.input) == 3:
        yield "no bias", lambda graph, node, at: node.input.pop()


def _operators(node):
    if node.op_type in OTHERS:

        def change(graph, node, at) -> None:
            other = OTHERS[node.op_type]
            if other == "Identity":
                del node.attribute[:]
            node.op_type = other

        yield "another operator", change


def _operands(node):
    if node.op_type in SWAPPED:

        def change(graph, node, at) -> None:
            node.input[0], node.input[1] = node.input[1], node.input[0]

        yield "operands swapped", change


def _attributes(node):
    """Change axes, paddings, strides, groups and flags."""
    for number, attribute in enumerate(node.attribute):
        value = helper.get_attribute_value(attribute)
        for changed in _other_values(value):

            def change(graph, node, at, number=number, changed=changed) -> None:
                node.attribute[number].CopyFrom(helper.make_attribute(node.attribute[number].name, changed))

            yield f"{attribute.name} is another", change


def _other_values(value):
    if isinstance(value, int):
        return [1 - value] if value in (0, 1) else [value + 1]
    if isinstance(value, float):
        return [value + 0.5]
    if isinstance(value, list) and value and all(isinstance(each, int) for each in value):
        found = [[value[0] + 1, *value[1:]], [*value[:-1], max(value[-1] - 1, 0)], value[::-1]]
        found += [[value[1], value[0], *value[2:]]] if value[1:] else []
        return [each for each in found if each != value]
    return []


def _noise(node):
    """Make dropout ignore its noise."""
    for number, name in enumerate(node.input):
        if name.startswith("noise_"):

            def change(graph, node, at, number=number) -> None:
                graph.initializer.append(helper.make_tensor("mutant_noise", onnx.TensorProto.FLOAT, [], [0.999]))
                node.input[number] = "mutant_noise"

            yield "stale dropout", change


def _constants(values):
    """Change constants of the graph: shapes and axes by one, floats by one percent or to zero."""
    if values.dtype.kind == "f":
        yield "a constant is off", (values * np.float32(1.01)).astype(values.dtype)
        yield "a constant is zero", np.zeros_like(values)
    elif values.dtype.kind == "i" and values.size:
        yield "an axis or size is off", np.where(np.arange(values.size).reshape(values.shape) == 0, values + 1, values)
        if values.size > 1 and (values != values[::-1]).any():
            yield "axes swapped", values[::-1].copy()


def main() -> None:
    """Judge all mutants and print the counts."""
    kit, initial, exam = right()
    counts: dict[str, Counter[str]] = {}
    for mutant in mutants(kit):
        found, refused = fate(mutant, kit, initial), is_refused(mutant, exam)
        counts.setdefault(mutant.kind, Counter())[f"{found}, {'refused' if refused else 'passed'}"] += 1
        if found != "equal" and not refused:
            sys.stdout.write(f"missed: {mutant.kind} {mutant.where}\n")
    for kind, count in counts.items():
        sys.stdout.write(f"{kind:26} {dict(count)}\n")
    sys.stdout.write(f"{dict(sum(counts.values(), Counter()))}\n")


if __name__ == "__main__":
    main()
