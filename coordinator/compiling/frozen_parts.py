"""The frozen part of a model: its weights are stored once per kit, and its first layers become a separate graph."""

from __future__ import annotations

import hashlib
from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from math import prod
from typing import Any

import msgspec
import numpy as np
import onnx
import torch
from numpy.typing import NDArray
from onnx import helper, numpy_helper
from torch import Tensor, fx, nn
from torch.utils._pytree import tree_map

from coordinator.compiling.exporting import Traced
from sojourn.model.kit_rules import MAX_FEATURES
from sojourn.model.session import PREFIX, Use, graph_bytes, open_session
from sojourn.protocol.spec import FrozenTensor, Kit, Trunk

Content = tuple[tuple[int, ...], bytes]

PLANE = 2
GRAPHS: tuple[Use, ...] = ("train", "predict", "score", "trunk", "two_stream", "fused")


def with_shared_weights(kit: Kit, module: nn.Module) -> Kit:
    """Replace constants in the kit's graphs by the float32 tensors of `module` that its vector does not contain.

    The graphs transpose a matrix that the compiler transposed. A constant that the compiler computed from several
    tensors, such as the scale of a BatchNorm, stays in the graph.
    """
    tensors = _frozen(module, {tensor.name for tensor in kit.model.tensors})
    names: dict[Content, tuple[str, bool]] = {}
    for name, tensor in tensors.items():
        names.setdefault(_content(tensor), (name, False))
    for name, tensor in tensors.items():
        if tensor.ndim == PLANE:
            names.setdefault(_content(np.ascontiguousarray(tensor.T)), (name, True))
    graphs, used = dict[str, bytes](), {name: list[str]() for name in tensors}
    for each in (use for use in GRAPHS if graph_bytes(kit, use)):
        graphs[each], taken = _without_constants(graph_bytes(kit, each), names)
        for name in taken:
            used[name].append(each)
    frozen = tuple(
        FrozenTensor(name, tensor.shape, tensor.tobytes(), tuple(used[name])) for name, tensor in tensors.items()
    )
    plain = {use: graph for use, graph in graphs.items() if use not in ("trunk", "two_stream", "fused")}
    trunk = Trunk(graphs["trunk"], kit.trunk.shape) if kit.trunk else None
    streams = kit.two_stream
    if streams:
        fused = graphs.get("fused", b"")
        streams = msgspec.structs.replace(streams, graph=graphs["two_stream"], fused=fused)
    return msgspec.structs.replace(kit, **plain, trunk=trunk, two_stream=streams, frozen=frozen)


def _frozen(module: nn.Module, trained: set[str]) -> dict[str, np.ndarray[tuple[int, ...], np.dtype[np.float32]]]:
    every = {**dict(module.named_parameters()), **dict(module.named_buffers())}
    return {
        name: np.ascontiguousarray(tensor.detach().numpy(), "<f4")
        for name, tensor in every.items()
        if name not in trained and tensor.dtype == torch.float32 and tensor.numel()
    }


def _content(values: np.ndarray[tuple[int, ...], np.dtype[np.float32]]) -> Content:
    return values.shape, values.tobytes()


def _without_constants(graph: bytes, names: dict[Content, tuple[str, bool]]) -> tuple[bytes, list[str]]:
    """Remove constants that have a name from the graph, which then uses the names; also return these names."""
    model = onnx.load_from_string(graph)
    renamed: dict[str, str] = {}
    turned: list[onnx.NodeProto] = []
    kept, taken = [], set[str]()
    for constant in model.graph.initializer:
        values = numpy_helper.to_array(constant)
        name, around = names.get(_content(values), ("", False)) if values.dtype == np.float32 else ("", False)
        if not name:
            kept.append(constant)
            continue
        taken.add(name)
        if around:
            turned.append(helper.make_node("Transpose", [f"{PREFIX}{name}"], [constant.name], perm=[1, 0]))
        else:
            renamed[constant.name] = f"{PREFIX}{name}"
    _rename(model.graph.node, renamed)
    nodes = [*turned, *model.graph.node]
    del model.graph.initializer[:], model.graph.node[:]
    model.graph.initializer.extend(kept)
    model.graph.node.extend(nodes)
    return model.SerializeToString(deterministic=True), sorted(taken)


def _rename(nodes: Iterable[onnx.NodeProto], renamed: dict[str, str]) -> None:
    for node in nodes:
        node.input[:] = [renamed.get(name, name) for name in node.input]
        for attribute in node.attribute:
            _rename(attribute.g.node, renamed)


# A model's frozen first part, if it draws no noise, can become a separate graph.
#
# The output of that part is the same for a sample in every epoch, so a device runs it once and trains on its output.
# The cut is one tensor through which all dependencies on the samples go. It must have a row for each sample, and be
# the result of costly operators: convolutions or matrix products.

WORK = frozenset(("convolution", "mm", "addmm", "bmm", "baddbmm", "recurrent", "lstm"))
"""The operators whose result is worth keeping: all others read each number once or twice."""
FEATURE_FACTOR, SMALL_FEATURES = 4, 4096
"""The maximum size of features, as a multiple of a sample's size or as a number: reading more would cost too much."""
BATCH_TOLERANCE = 1e-4
"""The maximum difference, relative to their norm, between a sample's features alone and in a batch."""


@dataclass(frozen=True)
class CutModel:
    """A model in two parts: its trunk, and the graphs after it; `shape` is that of a sample's features."""

    trunk: Traced
    train: Traced
    predict: Traced
    shape: tuple[int, ...]
    score: Traced | None = None
    two_stream: Traced | None = None
    fused: Traced | None = None


def cut(
    train: Traced,
    predict: Traced,
    score: Traced | None = None,
    two_stream: Traced | None = None,
    fused: Traced | None = None,
) -> CutModel | None:
    """Cut the model at the place with most work before it and, of these, the smallest features; None if there is none.

    All graphs must compute the same up to the cut. They do, except for layers that run differently in training.
    """
    keys, others = _keys(train), [each for each in (predict, score, two_stream, fused) if each]
    places = [_cut_places(each) for each in others]
    best, most_work = None, 0
    for node, work in _bottlenecks(train):
        shape = _shape(node, train)
        if shape is None or not work or not all(keys[node] in there for there in places):
            continue
        if best is None or work > most_work or prod(shape) <= prod(best[1]):
            best, most_work = (node, shape), work
    if best is None:
        return None
    node, shape = best
    after = iter([_after(each, there[keys[node]]) for each, there in zip(others, places, strict=True)])
    predicting, *rest = (next(after) if each else None for each in (predict, score, two_stream, fused))
    assert predicting  # noqa: S101  # the first of others is always set
    return CutModel(_before(train, node), _after(train, node), predicting, shape, *rest)


def shared(traced: Traced) -> Traced:
    """Remove repeated computations from a graph: two streams share a frozen first part."""
    first: dict[bytes, fx.Node] = {}
    for node, key in _keys(traced).items():
        if node.op in ("call_function", "get_attr") and first.setdefault(key, node) is not node:
            node.replace_all_uses_with(first[key])
            traced.graph.graph.erase_node(node)
    return traced


def mixes_samples(trunk: Trunk, x: NDArray[np.generic]) -> bool:
    """Whether a sample's features depend on the others in its batch, as with a mean over the batch."""
    session = open_session(trunk.graph, name="the trunk")
    together = session.run(["features"], {"x": x})[0].astype(np.float64)
    alone = [session.run(["features"], {"x": x[at : at + 1]})[0] for at in range(len(x))]
    apart = np.linalg.norm(np.concatenate(alone).astype(np.float64) - together)
    return not apart <= BATCH_TOLERANCE * np.linalg.norm(together)  # a NaN also prevents a cut


def _cut_places(traced: Traced) -> dict[bytes, fx.Node]:
    """Return the possible cuts of a graph by the key of their tensor."""
    keys = _keys(traced)
    return {keys[node]: node for node, _ in _bottlenecks(traced)}


def _bottlenecks(traced: Traced) -> Iterator[tuple[fx.Node, int]]:
    """Yield the tensors through which all dependencies of the results on the samples go, each with the work before it.

    The nodes of a graph are in topological order. So all dependencies go through a node if no node after it uses a node
    before it.
    """
    nodes = list(traced.graph.graph.nodes)
    place = {node: at for at, node in enumerate(nodes)}
    x, others = _inputs(traced)
    dependent = _dependents_of([x], nodes) & _ancestors(nodes[-1])
    trainable = _dependents_of(others, nodes)
    furthest, work = 0, 0
    for node in nodes:
        if node not in dependent:
            continue
        if node is not x and node not in trainable:
            work += _is_work(node)
            if furthest <= place[node]:
                yield node, work
        furthest = max(furthest, *(place[user] for user in node.users if user in dependent), place[node])


def _inputs(traced: Traced) -> tuple[fx.Node, list[fx.Node]]:
    """Return the samples, and all other inputs."""
    inputs = dict(zip(traced.names, traced.graph.graph.find_nodes(op="placeholder"), strict=True))
    return inputs.pop("x"), list(inputs.values())


def _dependents_of(roots: list[fx.Node], nodes: list[fx.Node]) -> set[fx.Node]:
    """Return the nodes that depend on the values of these inputs; the number of samples is not such a value."""
    found = set(roots)
    for node in nodes:
        if not _counts(node) and any(each in found for each in node.all_input_nodes):
            found.add(node)
    return found


def _ancestors(result: fx.Node) -> set[fx.Node]:
    """Return a node and all nodes that it depends on."""
    found, waiting = {result}, [result]
    while waiting:
        new = [each for each in waiting.pop().all_input_nodes if each not in found]
        found.update(new)
        waiting += new
    return found


def _counts(node: fx.Node) -> bool:
    """Whether a node is the number of samples: the one size that a trace leaves open, and not a multiple of it."""
    return node.target is torch.ops.aten.sym_size.int and str(node.meta["val"]).isidentifier()


def _is_work(node: fx.Node) -> bool:
    return isinstance(node.target, torch._ops.OpOverload) and node.target.overloadpacket.__name__ in WORK


def _shape(node: fx.Node, traced: Traced) -> tuple[int, ...] | None:
    """Return the shape of a sample's features, if there is a row of float32 for each sample that is not too long."""
    value, samples = node.meta.get("val"), _inputs(traced)[0].meta["val"]
    if not isinstance(value, Tensor) or value.dtype != torch.float32 or value.dim() <= 1:
        return None
    if str(value.shape[0]) != str(samples.shape[0]) or not all(isinstance(size, int) for size in value.shape[1:]):
        return None
    shape = tuple(int(size) for size in value.shape[1:])
    # For token ids the size of a sample does not limit the cost of reading it.
    limit = MAX_FEATURES
    if samples.is_floating_point():
        limit = min(limit, max(SMALL_FEATURES, FEATURE_FACTOR * prod(samples.shape[1:])))
    return shape if prod(shape) <= limit else None


def _keys(traced: Traced) -> dict[fx.Node, bytes]:
    """Return a key for each node from its inputs and constants: equal keys in two graphs are equal tensors."""
    names = dict(zip(traced.graph.graph.find_nodes(op="placeholder"), traced.names, strict=True))
    keys: dict[fx.Node, bytes] = {}
    for node in traced.graph.graph.nodes:
        what: Any
        if node.op == "placeholder":
            what = names[node]
        elif node.op == "get_attr":
            what = _numbers(getattr(traced.graph, node.target))
        elif _counts(node):
            what = "samples"
        else:
            what = str(node.target), tree_map(lambda each: keys.get(each, each), (node.args, node.kwargs))
        keys[node] = hashlib.sha256(repr(what).encode()).digest()
    return keys


def _numbers(tensor: Tensor) -> tuple[Any, ...]:
    content = tensor.detach().contiguous()
    return content.dtype, tuple(content.shape), hashlib.sha256(content.numpy().tobytes()).digest()


def _before(traced: Traced, place: fx.Node) -> Traced:
    """Return the graph from the samples to the cut."""
    made = fx.Graph()
    x, others = _inputs(traced)
    copies = {x: made.node_copy(x)}
    copies |= dict.fromkeys(others, copies[x])  # the trunk uses only their number of samples
    _copy(made, traced, place, copies)
    made.output((copies[place],))
    return Traced(fx.GraphModule(traced.graph, made), ["x"], ["features"])


def _after(traced: Traced, place: fx.Node) -> Traced:
    """Return the graph from the cut, which replaces the samples, to the results."""
    made = fx.Graph()
    x, _ = _inputs(traced)
    copies: dict[fx.Node, fx.Node] = {}
    for node in traced.graph.graph.find_nodes(op="placeholder"):
        copies[node] = made.node_copy(node)
    copies[x].meta = dict(place.meta)
    copies[place] = copies[x]
    result = next(iter(reversed(traced.graph.graph.nodes)))
    _copy(made, traced, result, copies)
    return Traced(fx.GraphModule(traced.graph, made), traced.names, traced.results)


def _copy(made: fx.Graph, traced: Traced, result: fx.Node, copies: dict[fx.Node, fx.Node]) -> None:
    """Copy a result and the nodes that it depends on, unless they are copied; `x` gives the number of samples."""
    x, _ = _inputs(traced)
    needed, waiting = {result}, [result]
    while waiting:
        node = waiting.pop()
        new = [] if _counts(node) else [each for each in node.all_input_nodes if each not in {*needed, *copies}]
        needed.update(new)
        waiting += new
    for node in traced.graph.graph.nodes:
        if node not in needed:
            continue
        if _counts(node):
            copies[node] = made.call_function(node.target, (copies[x], 0))
            copies[node].meta = dict(node.meta)
        else:
            copies[node] = made.node_copy(node, copies.__getitem__)
