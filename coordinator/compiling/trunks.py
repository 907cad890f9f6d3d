"""Where a model can be cut: its frozen first part, which draws nothing, becomes a graph of its own.

What comes before the cut is the same for a sample in every epoch, so a device runs it once and trains on what it made.
The cut is one tensor through which all goes that the rest learns of the samples. It must be a row for each sample, and
have been made by real work: a convolution or a product of matrices.
"""

from __future__ import annotations

import hashlib
from dataclasses import dataclass
from math import prod
from typing import TYPE_CHECKING, Any

import numpy as np
import torch
from torch import Tensor, fx
from torch.utils._pytree import tree_map

from coordinator.compiling.exporting import Traced
from sojourn.model.kit_rules import LARGEST_FEATURES
from sojourn.model.session import open_session

if TYPE_CHECKING:
    from collections.abc import Iterator

    from numpy.typing import NDArray

    from sojourn.protocol.spec import Trunk

WORK = frozenset(("convolution", "mm", "addmm", "bmm", "baddbmm", "recurrent", "lstm"))
"""The operators that are worth running once: all others look at each number once or twice."""
SPREAD, SMALL = 4, 4096
"""Features have at most so many times the numbers of a sample, or so many: else reading them costs what they save."""
SAME = 1e-4
"""Of their length: so far may features of a sample lie from those that it has in a batch."""


@dataclass(frozen=True)
class CutModel:
    """A model in two: its trunk, and what trains and what predicts behind it; `shape` is of a sample's features."""

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
    """The model, cut where most work is before the cut and least has to be kept of it; None if it cannot be cut.

    All graphs must make the same of the samples up to there, which they do but for layers that run otherwise in
    training.
    """
    keys, others = _keys(train), [each for each in (predict, score, two_stream, fused) if each]
    places = [_places(each) for each in others]
    best, most = None, 0
    for node, work in _through(train):
        shape = _shape(node, train)
        if shape is None or not work or not all(keys[node] in there for there in places):
            continue
        if best is None or work > most or prod(shape) <= prod(best[1]):
            best, most = (node, shape), work
    if best is None:
        return None
    node, shape = best
    behind = iter([_behind(each, there[keys[node]]) for each, there in zip(others, places, strict=True)])
    predicting, *rest = (next(behind) if each else None for each in (predict, score, two_stream, fused))
    assert predicting  # noqa: S101  # there always is one
    return CutModel(_before(train, node), _behind(train, node), predicting, shape, *rest)


def shared(traced: Traced) -> Traced:
    """The same graph, in which nothing is computed twice: two streams have a frozen first part in common."""
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
    return not apart <= SAME * np.linalg.norm(together)  # so that a NaN is no reason to cut either


def _places(traced: Traced) -> dict[bytes, fx.Node]:
    """Where a graph could be cut, by what is made there."""
    keys = _keys(traced)
    return {keys[node]: node for node, _ in _through(traced)}


def _through(traced: Traced) -> Iterator[tuple[fx.Node, int]]:
    """The tensors that hang on the samples alone and through which all goes from there to the results.

    Each with how much work is behind it. The nodes of a graph stand in an order in which each comes after what it
    takes: so all goes through a node if nothing before it is taken by anything after it.
    """
    nodes = list(traced.graph.graph.nodes)
    place = {node: at for at, node in enumerate(nodes)}
    x, others = _inputs(traced)
    hanging = _hanging_on([x], nodes) & _made_of(nodes[-1])
    learnt = _hanging_on(others, nodes)
    furthest, work = 0, 0
    for node in nodes:
        if node not in hanging:
            continue
        if node is not x and node not in learnt:
            work += _is_work(node)
            if furthest <= place[node]:
                yield node, work
        furthest = max(furthest, *(place[user] for user in node.users if user in hanging), place[node])


def _inputs(traced: Traced) -> tuple[fx.Node, list[fx.Node]]:
    """The samples, and all other inputs."""
    inputs = dict(zip(traced.names, traced.graph.graph.find_nodes(op="placeholder"), strict=True))
    return inputs.pop("x"), list(inputs.values())


def _hanging_on(roots: list[fx.Node], nodes: list[fx.Node]) -> set[fx.Node]:
    """What hangs on the numbers of these inputs; how many samples there are is no such number."""
    found = set(roots)
    for node in nodes:
        if not _counts(node) and any(each in found for each in node.all_input_nodes):
            found.add(node)
    return found


def _made_of(result: fx.Node) -> set[fx.Node]:
    """All that a node is made of, and the node."""
    found, waiting = {result}, [result]
    while waiting:
        new = [each for each in waiting.pop().all_input_nodes if each not in found]
        found.update(new)
        waiting += new
    return found


def _counts(node: fx.Node) -> bool:
    """Whether a node says how many samples there are: the one size that a trace leaves open, and not a multiple."""
    return node.target is torch.ops.aten.sym_size.int and str(node.meta["val"]).isidentifier()


def _is_work(node: fx.Node) -> bool:
    return isinstance(node.target, torch._ops.OpOverload) and node.target.overloadpacket.__name__ in WORK


def _shape(node: fx.Node, traced: Traced) -> tuple[int, ...] | None:
    """The shape of a sample's features, if there is a row of float32 for each sample and it is not too long."""
    value, samples = node.meta.get("val"), _inputs(traced)[0].meta["val"]
    if not isinstance(value, Tensor) or value.dtype != torch.float32 or value.dim() <= 1:
        return None
    if str(value.shape[0]) != str(samples.shape[0]) or not all(isinstance(size, int) for size in value.shape[1:]):
        return None
    shape = tuple(int(size) for size in value.shape[1:])
    # A whole number such as a word says little of how much work it is to read it.
    most = max(SMALL, SPREAD * prod(samples.shape[1:])) if samples.is_floating_point() else LARGEST_FEATURES
    return shape if prod(shape) <= min(most, LARGEST_FEATURES) else None


def _keys(traced: Traced) -> dict[fx.Node, bytes]:
    """What each node is made of, constants by their numbers: the same key in two graphs is the same tensor."""
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
    """From the samples to the cut."""
    made = fx.Graph()
    x, others = _inputs(traced)
    copies = {x: made.node_copy(x)}
    copies |= dict.fromkeys(others, copies[x])  # of which it takes nothing but how many samples there are
    _copy(made, traced, place, copies)
    made.output((copies[place],))
    return Traced(fx.GraphModule(traced.graph, made), ["x"], ["features"])


def _behind(traced: Traced, place: fx.Node) -> Traced:
    """From the cut, in place of the samples, to the results."""
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
    """Copy what a result is made of, as far as it has no copy; the number of samples is asked of `x`."""
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
