"""Inspection of ONNX graphs before onnxruntime reads them: a graph from any sender can only compute.

A graph must have no external data, only listed operators, loops of constant and bounded length, plausible sizes, and
typed inputs and outputs. The error for a rejected graph names the place and the rule; onnxruntime never reads it. An
accepted graph can still take much time or memory, which deadlines and memory limits bound.
"""

from __future__ import annotations

import hashlib
from collections.abc import Collection, Iterator
from dataclasses import dataclass, field
from math import prod

from sojourn.errors import GraphRefused
from sojourn.model import onnx_rules as form
from sojourn.model.onnx_rules import (
    CONTROL_FLOW,
    DOMAINS,
    OPERATORS,
    TYPES,
    check_growth,
    check_tensor,
    check_window,
    trip_count,
    whole_numbers,
)
from sojourn.model.protobuf import Message, WireReader

MAX_GRAPH_BYTES = 512 << 20
"""Maximum bytes of a graph, including its weights."""
IR_VERSIONS = range(3, 15)
OPSETS = range(7, 29)
MAX_NODE_RUNS = 1_000_000
"""Maximum node executions in one run of the graph, counting every iteration of loops."""
MAX_DEPTH = 4
"""Maximum nesting of graphs."""
_NAME = 1 << 10
_ATTRIBUTE_FIELDS = {1: "f", 2: "i", 3: "s", 4: "t", 5: "g", 6: "floats", 7: "ints", 8: "strings"}
"""The field with the value, for each allowed attribute type."""
_OTHER_FIELDS = ("tensors", "graphs", "tp", "type_protos", "sparse_tensor", "sparse_tensors", "ref_attr_name")
_ORT_FORMAT = b"ORTM"
"""onnxruntime reads a file with these bytes in its own format, and an ONNX file can contain them too."""
_MAX_CACHED = 256
_inspected: dict[bytes, Signature] = {}


@dataclass(frozen=True)
class TensorType:
    """The declared type and shape of an input or output; None is an open axis or an open shape."""

    type: int
    shape: tuple[int | None, ...] | None

    def fits(self, kind: int, shape: tuple[int | None, ...]) -> bool:
        """Return whether the type matches and the shapes are compatible; None fits any size."""
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
    """The inputs and outputs of a graph by name, without inputs that have an initializer."""

    inputs: dict[str, TensorType]
    outputs: dict[str, TensorType]


def inspected(graph: bytes, name: str = "the graph", given: Collection[str] = ()) -> Signature:
    """Inspect a graph and return its signature; results are cached.

    given: names of float32 tensors that are supplied when the graph is loaded; the graph must not define them.
    """
    names = sorted(each.encode() for each in given)
    digest = hashlib.sha256(b"".join((hashlib.sha256(graph).digest(), *(b"/" + each for each in names)))).digest()
    if known := _inspected.get(digest):
        return known
    try:
        signature = _Inspection(graph).signature(names)
    except GraphRefused as error:
        raise GraphRefused(f"{name} is rejected: {error}") from None
    for oldest in list(_inspected)[: len(_inspected) + 1 - _MAX_CACHED]:
        _inspected.pop(oldest, None)
    _inspected[digest] = signature
    return signature


@dataclass
class _Scope:
    """The names defined in a graph and its outer graphs, and the integers known for them."""

    outer: _Scope | None = None
    names: set[bytes] = field(default_factory=set)
    numbers: dict[bytes, tuple[int, ...]] = field(default_factory=dict)

    def define(self, name: bytes) -> None:
        """Define a name, which must be unique."""
        if self.has(name):
            raise GraphRefused(f"{_quoted(name)} is defined twice")
        self.names.add(name)

    def has(self, name: bytes) -> bool:
        """Return whether a value of this name is visible here."""
        return any(name in each.names for each in self._chain())

    def known(self, name: bytes) -> tuple[int, ...] | None:
        """Return the constant integers of a value, or None if it is not a known constant."""
        return next((each.numbers[name] for each in self._chain() if name in each.numbers), None)

    def _chain(self) -> Iterator[_Scope]:
        scope: _Scope | None = self
        while scope is not None:
            yield scope
            scope = scope.outer


class _Inspection:
    """The inspection of one graph."""

    def __init__(self, data: bytes) -> None:
        if len(data) > MAX_GRAPH_BYTES:
            raise GraphRefused(f"it has {len(data):,} bytes; at most {MAX_GRAPH_BYTES:,} are allowed")
        if data[4:8] == _ORT_FORMAT:
            raise GraphRefused("it is in onnxruntime's own format: save it as plain ONNX")
        self._reader = WireReader(data)
        self._runs = 0
        self._unused: set[bytes] = set()

    def signature(self, given: Collection[bytes] = ()) -> Signature:
        """Check the whole graph and return its signature."""
        try:
            model = self._reader.message(0, len(self._reader.data), form.MODEL)
        except GraphRefused as error:
            raise GraphRefused(f"it is not an ONNX file: {error}") from None
        if model.number("ir_version") not in IR_VERSIONS:
            raise GraphRefused(
                f"its ONNX IR version is {model.number('ir_version')}: it is not an ONNX file, or too new"
            )
        for part, advice in (
            ("functions", "inline them (onnx.inliner)"),
            ("training_info", "remove it"),
            ("configuration", "remove it"),
        ):
            if part in model:
                raise GraphRefused(f"it has {part}, which Sojourn does not support: {advice}")
        self._check_opsets(model)
        if "graph" not in model:
            raise GraphRefused("it has no graph")
        self._unused = set(given)
        signature = self._graph(model.message("graph", form.GRAPH), _Scope(names=set(given)), 1, 0)
        if self._unused:
            raise GraphRefused(f"it does not use the supplied tensor {_quoted(min(self._unused))}")
        return signature

    def _check_opsets(self, model: Message) -> None:
        own = [
            each.number("version")
            for each in model.messages("opset_import", form.OPSET)
            if each.text("domain", _NAME) in DOMAINS
        ]
        if len(own) != 1 or own[0] not in OPSETS:
            versions = ", ".join(map(str, own)) or "none"
            raise GraphRefused(f"it must use one ONNX opset from {OPSETS[0]} to {OPSETS[-1]}, not {versions}")

    def _graph(self, graph: Message, scope: _Scope, times: int, depth: int) -> Signature:
        if "sparse_initializer" in graph:
            raise GraphRefused("it has sparse initializers: only dense ones are allowed")
        given = dict(self._values(graph, "input", typed=depth == 0))
        fixed = self._initializers(graph, scope)
        for name in given.keys() - fixed:
            scope.define(name)
        for name in given.keys() & fixed:  # old files list initializers as inputs, and a caller may override those
            scope.numbers.pop(name, None)
        for node in graph.messages("node", form.NODE):
            self._node(node, scope, times, depth)
        outputs = dict(self._values(graph, "output", typed=depth == 0))
        for name in outputs:
            if not scope.has(name):
                raise GraphRefused(f"its output {_quoted(name)} is not defined by any node")
        return Signature(
            {_text(name): declared for name, declared in given.items() if name not in fixed},
            {_text(name): declared for name, declared in outputs.items()},
        )

    def _initializers(self, graph: Message, scope: _Scope) -> set[bytes]:
        names: set[bytes] = set()
        for tensor in graph.messages("initializer", form.TENSOR):
            name = tensor.text("name", _NAME)
            check_tensor(tensor, self._reader, f"initializer {_quoted(name)}")
            scope.define(name)
            names.add(name)
            if (numbers := whole_numbers(tensor, self._reader)) is not None:
                scope.numbers[name] = numbers
        return names

    def _values(self, graph: Message, which: str, *, typed: bool) -> Iterator[tuple[bytes, TensorType]]:
        """Return the inputs or outputs; an inner graph may leave their types to be inferred."""
        seen: set[bytes] = set()
        for value in graph.messages(which, form.VALUE):
            name = value.text("name", _NAME)
            if name in seen:
                raise GraphRefused(f"its {which} {_quoted(name)} appears twice")
            seen.add(name)
            kind = value.message("type", form.TYPE).message("tensor_type", form.TENSOR_TYPE)
            type_ = kind.number("elem_type")
            if type_ not in TYPES and (typed or "type" in value):
                raise GraphRefused(f"its {which} {_quoted(name)} is of type {type_}, which is not allowed")
            yield name, TensorType(type_, _shape(kind) if "shape" in kind else None)

    def _node(self, node: Message, scope: _Scope, times: int, depth: int) -> None:
        operator = node.text("op_type", _NAME)
        where = f"node {_quoted(node.text('name', _NAME))} ({_text(operator)})"
        _check_operator(node, operator, where)
        self._runs += times
        if self._runs > MAX_NODE_RUNS:
            raise GraphRefused(f"{where}: including loops, the graph runs more than {MAX_NODE_RUNS:,} nodes")
        taken = node.texts("input", _NAME)
        self._unused.difference_update(taken)
        inputs = [scope.known(name) for name in taken]
        graphs = self._attributes(node, operator, scope, where)
        check_growth(operator, inputs, where)
        if operator in CONTROL_FLOW:
            wanted = CONTROL_FLOW[operator]
            if set(graphs) != set(wanted) or depth == MAX_DEPTH:
                names = " and ".join(map(_text, wanted))
                raise GraphRefused(f"{where} must have {names}, and graphs may be nested at most {MAX_DEPTH} deep")
            rounds = trip_count(inputs[0] if inputs else None, where) if operator == b"Loop" else 1
            for inner in graphs.values():
                self._graph(inner, _Scope(scope), times * rounds, depth + 1)
        for name in node.texts("output", _NAME):
            if name:
                scope.define(name)

    def _attributes(self, node: Message, operator: bytes, scope: _Scope, where: str) -> dict[bytes, Message]:
        """Check all attributes of a node; return the graphs among them."""
        graphs: dict[bytes, Message] = {}
        seen: set[bytes] = set()
        for attribute in node.messages("attribute", form.ATTRIBUTE):
            name = attribute.text("name", _NAME)
            what = f"{where}, attribute {_quoted(name)}"
            if name in seen:
                raise GraphRefused(f"{what} appears twice")
            seen.add(name)
            held = _value_field(attribute, what)
            if held == "g":
                if operator not in CONTROL_FLOW:
                    raise GraphRefused(f"{what} is a graph, which only If and Loop can have")
                graphs[name] = attribute.message("g", form.GRAPH)
                continue
            numbers = self._numbers(attribute, held, what)
            if operator == b"Constant":
                _keep_constant(node, held, numbers, scope, what)
            elif numbers is not None:
                check_window(name, numbers, what)
        return graphs

    def _numbers(self, attribute: Message, held: str, what: str) -> tuple[int, ...] | None:
        """Check an attribute's value; return its integers if they can be sizes, otherwise None."""
        match held:
            case "t":
                tensor = attribute.message("t", form.TENSOR)
                check_tensor(tensor, self._reader, what)
                return whole_numbers(tensor, self._reader)
            case "ints":
                return tuple(attribute.numbers("ints", form.MAX_NUMBERS))
            case "i":
                return (attribute.number("i"),)
            case "s" | "strings":
                attribute.text("s", _NAME)
                attribute.texts("strings", _NAME)
        return None


def _check_operator(node: Message, operator: bytes, where: str) -> None:
    domain = node.text("domain", _NAME)
    if domain not in DOMAINS or "overload" in node:
        raise GraphRefused(f"{where} is of domain {_quoted(domain)}: only the ONNX domain is allowed")
    if operator not in OPERATORS:
        raise GraphRefused(f"{where}: this operator is not allowed, see docs/models.md")
    if "device_configurations" in node:
        raise GraphRefused(f"{where} has device configurations, which are not allowed")


def _value_field(attribute: Message, what: str) -> str:
    """Return the only field with an attribute's value."""
    own = _ATTRIBUTE_FIELDS.get(attribute.number("type"))
    if own is None or any(other in attribute for other in _OTHER_FIELDS):
        raise GraphRefused(
            f"{what} is of a type that is not allowed (such as a sparse tensor, a list of tensors, or a function "
            "attribute)"
        )
    for other in _ATTRIBUTE_FIELDS.values():
        if other != own and (other in attribute or f"{other} one by one" in attribute):
            raise GraphRefused(f"{what} has two values")
    return own


def _keep_constant(node: Message, held: str, numbers: tuple[int, ...] | None, scope: _Scope, what: str) -> None:
    if held in ("s", "strings"):
        raise GraphRefused(f"{what} is a string: constants must be numbers")
    if numbers is not None:
        for name in node.texts("output", _NAME):
            scope.numbers[name] = numbers


def _shape(kind: Message) -> tuple[int | None, ...]:
    axes: list[int | None] = []
    for axis in kind.message("shape", form.SHAPE).messages("dim", form.DIMENSION):
        if "dim_value" in axis and "dim_param" in axis:
            raise GraphRefused("one of its axes has a number and a name")
        size = axis.number("dim_value") if "dim_value" in axis else None
        if size is not None and size < 0:
            raise GraphRefused(f"one of its axes has the size {size}")
        axes.append(size)
    if prod(size for size in axes if size) > MAX_GRAPH_BYTES:
        raise GraphRefused("one of its inputs or outputs is larger than the maximum graph size")
    return tuple(axes)


def _text(name: bytes) -> str:
    return name.decode(errors="replace")


def _quoted(name: bytes) -> str:
    return repr(_text(name[:64]))
