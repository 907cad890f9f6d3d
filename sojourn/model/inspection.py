"""The rules for a graph, looked at before onnxruntime sees it: whoever sent it, it can compute and nothing else.

No data in other files, operators from a list, loops of a constant and bounded length, sizes that fit what is there, and
inputs and outputs that say what they are. A graph that breaks a rule is refused with the place and the rule, and
onnxruntime never gets its bytes. What is allowed can still take long or much memory: deadlines and limits of memory are
for that.
"""

from __future__ import annotations

import hashlib
from dataclasses import dataclass, field
from math import prod
from typing import TYPE_CHECKING

from sojourn.errors import GraphRefused
from sojourn.model import onnx_form as form
from sojourn.model.growth import check_growth, check_window, trip_count
from sojourn.model.operators import CONTROL_FLOW, DOMAINS, OPERATORS
from sojourn.model.protobuf import Message, WireReader
from sojourn.model.tensors import TYPES, check_tensor, whole_numbers

if TYPE_CHECKING:
    from collections.abc import Collection, Iterator

LARGEST = 512 << 20
"""Bytes of a graph, with its weights."""
IR_VERSIONS = range(3, 15)
OPSETS = range(7, 29)
MOST_RUNS = 1_000_000
"""How often nodes run in one pass through the graph, loops counted as often as they go round."""
DEEPEST = 4
"""Graphs within graphs."""
_NAME = 1 << 10
_ATTRIBUTE_FIELDS = {1: "f", 2: "i", 3: "s", 4: "t", 5: "g", 6: "floats", 7: "ints", 8: "strings"}
"""The field that holds an attribute of each type that is allowed."""
_OTHER_FIELDS = ("tensors", "graphs", "tp", "type_protos", "sparse_tensor", "sparse_tensors", "ref_attr_name")
_ORT_FORMAT = b"ORTM"
"""By these bytes onnxruntime takes a file for one of its own, which an ONNX file may have there too."""
_REMEMBERED = 256
_inspected: dict[bytes, Signature] = {}


@dataclass(frozen=True)
class Declared:
    """What a graph says of one of its inputs or outputs: its type, and its shape with None for what is left open."""

    type: int
    shape: tuple[int | None, ...] | None

    def fits(self, kind: int, shape: tuple[int | None, ...]) -> bool:
        """Whether it is of this type and can be of this shape; None fits anything."""
        if self.type != kind or self.shape is None:
            return self.type == kind
        both = zip(self.shape, shape, strict=False)
        return len(self.shape) == len(shape) and all(a == b for a, b in both if a is not None and b is not None)

    def __str__(self) -> str:
        if self.shape is None:
            return f"{TYPES[self.type].name} of any shape"
        return f"{TYPES[self.type].name}[{', '.join('?' if axis is None else str(axis) for axis in self.shape)}]"


@dataclass(frozen=True)
class Signature:
    """What a graph takes and gives, by name; inputs that have a value of their own are left out."""

    inputs: dict[str, Declared]
    outputs: dict[str, Declared]


def inspected(graph: bytes, name: str = "the graph", given: Collection[str] = ()) -> Signature:
    """What a graph takes and gives, if it keeps to the rules; a graph that was looked at before is not read again.

    given: names of float32 tensors that the graph is handed when it is loaded; it may give none of them itself.
    """
    names = sorted(each.encode() for each in given)
    digest = hashlib.sha256(b"".join((hashlib.sha256(graph).digest(), *(b"/" + each for each in names)))).digest()
    if known := _inspected.get(digest):
        return known
    try:
        signature = _Inspection(graph).signature(names)
    except GraphRefused as error:
        raise GraphRefused(f"{name} is refused: {error}") from None
    for oldest in list(_inspected)[: len(_inspected) + 1 - _REMEMBERED]:
        _inspected.pop(oldest, None)
    _inspected[digest] = signature
    return signature


@dataclass
class _Scope:
    """The names that a graph and those around it have given, and the whole numbers that are known of them."""

    outer: _Scope | None = None
    names: set[bytes] = field(default_factory=set)
    numbers: dict[bytes, tuple[int, ...]] = field(default_factory=dict)

    def define(self, name: bytes) -> None:
        """Take a name that nothing else has here, so that it means one thing."""
        if self.has(name):
            raise GraphRefused(f"{_shown(name)} is given twice")
        self.names.add(name)

    def has(self, name: bytes) -> bool:
        """Whether a value of this name can be used here."""
        return any(name in each.names for each in self._chain())

    def known(self, name: bytes) -> tuple[int, ...] | None:
        """The whole numbers that a value is, whatever comes in; None if that is not known."""
        return next((each.numbers[name] for each in self._chain() if name in each.numbers), None)

    def _chain(self) -> Iterator[_Scope]:
        scope: _Scope | None = self
        while scope is not None:
            yield scope
            scope = scope.outer


class _Inspection:
    """One look at one graph."""

    def __init__(self, data: bytes) -> None:
        if len(data) > LARGEST:
            raise GraphRefused(f"it has {len(data):,} bytes, and {LARGEST:,} are allowed")
        if data[4:8] == _ORT_FORMAT:
            raise GraphRefused("it is in onnxruntime's own format: save it as plain ONNX")
        self._reader = WireReader(data)
        self._runs = 0
        self._unused: set[bytes] = set()

    def signature(self, given: Collection[bytes] = ()) -> Signature:
        """Look at everything."""
        try:
            model = self._reader.message(0, len(self._reader.data), form.MODEL)
        except GraphRefused as error:
            raise GraphRefused(f"it is no ONNX file: {error}") from None
        if model.number("ir_version") not in IR_VERSIONS:
            raise GraphRefused(
                f"its ONNX IR version is {model.number('ir_version')}: it is no ONNX file, or a newer one"
            )
        for part, advice in (
            ("functions", "inline them (onnx.inliner)"),
            ("training_info", "leave it out"),
            ("configuration", "leave it out"),
        ):
            if part in model:
                raise GraphRefused(f"it has {part}, which are not read here: {advice}")
        self._check_opsets(model)
        if "graph" not in model:
            raise GraphRefused("it has no graph")
        self._unused = set(given)
        signature = self._graph(model.message("graph", form.GRAPH), _Scope(names=set(given)), 1, 0)
        if self._unused:
            raise GraphRefused(f"it is given {_shown(min(self._unused))} and does not use it")
        return signature

    def _check_opsets(self, model: Message) -> None:
        own = [
            each.number("version")
            for each in model.messages("opset_import", form.OPSET)
            if each.text("domain", _NAME) in DOMAINS
        ]
        if len(own) != 1 or own[0] not in OPSETS:
            versions = ", ".join(map(str, own)) or "none"
            raise GraphRefused(
                f"it must name one set of ONNX's operators from {OPSETS[0]} to {OPSETS[-1]}, not {versions}"
            )

    def _graph(self, graph: Message, scope: _Scope, times: int, depth: int) -> Signature:
        if "sparse_initializer" in graph:
            raise GraphRefused("it has sparse initializers: only dense ones are allowed")
        given = dict(self._values(graph, "input", typed=depth == 0))
        fixed = self._initializers(graph, scope)
        for name in given.keys() - fixed:
            scope.define(name)
        for name in given.keys() & fixed:  # old files list them; whoever runs the graph might give another value
            scope.numbers.pop(name, None)
        for node in graph.messages("node", form.NODE):
            self._node(node, scope, times, depth)
        outputs = dict(self._values(graph, "output", typed=depth == 0))
        for name in outputs:
            if not scope.has(name):
                raise GraphRefused(f"its output {_shown(name)} is given by no node")
        return Signature(
            {_text(name): declared for name, declared in given.items() if name not in fixed},
            {_text(name): declared for name, declared in outputs.items()},
        )

    def _initializers(self, graph: Message, scope: _Scope) -> set[bytes]:
        names: set[bytes] = set()
        for tensor in graph.messages("initializer", form.TENSOR):
            name = tensor.text("name", _NAME)
            check_tensor(tensor, self._reader, f"initializer {_shown(name)}")
            scope.define(name)
            names.add(name)
            if (numbers := whole_numbers(tensor, self._reader)) is not None:
                scope.numbers[name] = numbers
        return names

    def _values(self, graph: Message, which: str, *, typed: bool) -> Iterator[tuple[bytes, Declared]]:
        """The inputs or outputs; those of a graph within another may leave their types to be inferred."""
        seen: set[bytes] = set()
        for value in graph.messages(which, form.VALUE):
            name = value.text("name", _NAME)
            if name in seen:
                raise GraphRefused(f"its {which} {_shown(name)} comes twice")
            seen.add(name)
            kind = value.message("type", form.TYPE).message("tensor_type", form.TENSOR_TYPE)
            type_ = kind.number("elem_type")
            if type_ not in TYPES and (typed or "type" in value):
                raise GraphRefused(f"its {which} {_shown(name)} is of type {type_}, which is not allowed")
            yield name, Declared(type_, _shape(kind) if "shape" in kind else None)

    def _node(self, node: Message, scope: _Scope, times: int, depth: int) -> None:
        operator = node.text("op_type", _NAME)
        where = f"node {_shown(node.text('name', _NAME))} ({_text(operator)})"
        _check_operator(node, operator, where)
        self._runs += times
        if self._runs > MOST_RUNS:
            raise GraphRefused(f"{where}: with its loops the graph runs more than {MOST_RUNS:,} nodes")
        taken = node.texts("input", _NAME)
        self._unused.difference_update(taken)
        inputs = [scope.known(name) for name in taken]
        graphs = self._attributes(node, operator, scope, where)
        check_growth(operator, inputs, where)
        if operator in CONTROL_FLOW:
            wanted = CONTROL_FLOW[operator]
            if set(graphs) != set(wanted) or depth == DEEPEST:
                names = " and ".join(map(_text, wanted))
                raise GraphRefused(f"{where} must have {names}, and graphs may stand in graphs {DEEPEST} deep")
            rounds = trip_count(inputs[0] if inputs else None, where) if operator == b"Loop" else 1
            for inner in graphs.values():
                self._graph(inner, _Scope(scope), times * rounds, depth + 1)
        for name in node.texts("output", _NAME):
            if name:
                scope.define(name)

    def _attributes(self, node: Message, operator: bytes, scope: _Scope, where: str) -> dict[bytes, Message]:
        """Look at all attributes of a node; returns the graphs among them."""
        graphs: dict[bytes, Message] = {}
        seen: set[bytes] = set()
        for attribute in node.messages("attribute", form.ATTRIBUTE):
            name = attribute.text("name", _NAME)
            what = f"{where}, attribute {_shown(name)}"
            if name in seen:
                raise GraphRefused(f"{what} comes twice")
            seen.add(name)
            held = _held_in(attribute, what)
            if held == "g":
                if operator not in CONTROL_FLOW:
                    raise GraphRefused(f"{what} is a graph, which only If and Loop may have")
                graphs[name] = attribute.message("g", form.GRAPH)
                continue
            numbers = self._numbers(attribute, held, what)
            if operator == b"Constant":
                _keep_constant(node, held, numbers, scope, what)
            elif numbers is not None:
                check_window(name, numbers, what)
        return graphs

    def _numbers(self, attribute: Message, held: str, what: str) -> tuple[int, ...] | None:
        """Look at the value of an attribute; returns the whole numbers in it, if it has some that may be a size."""
        match held:
            case "t":
                tensor = attribute.message("t", form.TENSOR)
                check_tensor(tensor, self._reader, what)
                return whole_numbers(tensor, self._reader)
            case "ints":
                return tuple(attribute.numbers("ints", form.MOST_NUMBERS))
            case "i":
                return (attribute.number("i"),)
            case "s" | "strings":
                attribute.text("s", _NAME)
                attribute.texts("strings", _NAME)
        return None


def _check_operator(node: Message, operator: bytes, where: str) -> None:
    domain = node.text("domain", _NAME)
    if domain not in DOMAINS or "overload" in node:
        raise GraphRefused(f"{where} is of domain {_shown(domain)}: only ONNX's own is allowed")
    if operator not in OPERATORS:
        raise GraphRefused(f"{where}: this operator is not allowed, see docs/models.md")
    if "device_configurations" in node:
        raise GraphRefused(f"{where} is written for several devices")


def _held_in(attribute: Message, what: str) -> str:
    """The one field that holds an attribute's value."""
    own = _ATTRIBUTE_FIELDS.get(attribute.number("type"))
    if own is None or any(other in attribute for other in _OTHER_FIELDS):
        raise GraphRefused(f"{what} is of a type that is not allowed (sparse, a list of tensors, a function's ...)")
    for other in _ATTRIBUTE_FIELDS.values():
        if other != own and (other in attribute or f"{other} one by one" in attribute):
            raise GraphRefused(f"{what} has two values")
    return own


def _keep_constant(node: Message, held: str, numbers: tuple[int, ...] | None, scope: _Scope, what: str) -> None:
    if held in ("s", "strings"):
        raise GraphRefused(f"{what} is a text: constants are numbers")
    if numbers is not None:
        for name in node.texts("output", _NAME):
            scope.numbers[name] = numbers


def _shape(kind: Message) -> tuple[int | None, ...]:
    axes: list[int | None] = []
    for axis in kind.message("shape", form.SHAPE).messages("dim", form.DIMENSION):
        if "dim_value" in axis and "dim_param" in axis:
            raise GraphRefused("an axis of it has a number and a name")
        size = axis.number("dim_value") if "dim_value" in axis else None
        if size is not None and size < 0:
            raise GraphRefused(f"an axis of it has the size {size}")
        axes.append(size)
    if prod(size for size in axes if size) > LARGEST:
        raise GraphRefused("an input or output of it is larger than a graph may be")
    return tuple(axes)


def _text(name: bytes) -> str:
    return name.decode(errors="replace")


def _shown(name: bytes) -> str:
    return repr(_text(name[:64]))
