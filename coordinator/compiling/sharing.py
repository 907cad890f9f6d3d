"""Takes the frozen weights out of a kit's graphs, so that they stand in the kit once, by torch's names for them."""

from __future__ import annotations

from typing import TYPE_CHECKING

import msgspec
import numpy as np
import onnx
import torch
from onnx import helper, numpy_helper

from sojourn.model.frozen import PREFIX, graph_in
from sojourn.protocol.spec import FrozenTensor, Trunk

if TYPE_CHECKING:
    from collections.abc import Iterable

    from torch import nn

    from sojourn.model.frozen import Use
    from sojourn.protocol.spec import Kit

    Content = tuple[tuple[int, ...], bytes]

PLANE = 2
GRAPHS: tuple[Use, ...] = ("train", "predict", "score", "trunk", "two_stream", "fused")


def with_shared_weights(kit: Kit, module: nn.Module) -> Kit:
    """The kit with all float32 tensors of `module` that its vector does not hold, in place of constants in its graphs.

    A matrix that the compiler turned round is turned round in the graph; what it computed of several tensors stays
    there as a constant, such as the scale of a BatchNorm.
    """
    tensors = _frozen(module, {tensor.name for tensor in kit.model.tensors})
    names: dict[Content, tuple[str, bool]] = {}
    for name, tensor in tensors.items():
        names.setdefault(_content(tensor), (name, False))
    for name, tensor in tensors.items():
        if tensor.ndim == PLANE:
            names.setdefault(_content(np.ascontiguousarray(tensor.T)), (name, True))
    graphs, used = dict[str, bytes](), {name: list[str]() for name in tensors}
    for each in (use for use in GRAPHS if graph_in(kit, use)):
        graphs[each], taken = _without(graph_in(kit, each), names)
        for name in taken:
            used[name].append(each)
    frozen = tuple(
        FrozenTensor(name, tensor.shape, tensor.tobytes(), tuple(used[name])) for name, tensor in tensors.items()
    )
    plain = {use: graph for use, graph in graphs.items() if use not in ("trunk", "two_stream", "fused")}
    trunk = Trunk(graphs["trunk"], kit.trunk.shape) if kit.trunk else msgspec.UNSET
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


def _without(graph: bytes, names: dict[Content, tuple[str, bool]]) -> tuple[bytes, list[str]]:
    """The graph without constants that have a name, which it uses by that name; and those names."""
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
