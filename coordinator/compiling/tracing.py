"""From a module to fx graphs of its loss with gradient and of its prediction, for any batch size."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import torch
from torch import Tensor, fx, nn
from torch._dispatch.python import enable_python_dispatcher
from torch._subclasses.fake_tensor import FakeTensorMode
from torch.func import functional_call
from torch.fx.experimental.proxy_tensor import make_fx
from torch.fx.experimental.symbolic_shapes import DimDynamic, ShapeEnv, StatelessSymbolicContext

from sojourn.errors import ModelError

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence

    from coordinator.compiling.dropout import NoiseFeed

# The batch in which a trace is taken: it must not equal 0 or 1, for which torch specialises.
TRACED_BATCH = 5
LARGER = 13


class Trainee:
    """A module as functions of its trainable tensors, which is how both torch and the tracer run it."""

    def __init__(self, module: nn.Module, feed: NoiseFeed, classes: int) -> None:
        """Run `module`, whose dropout takes its noise from `feed`."""
        self.module, self.feed, self.classes = module, feed, classes
        named = {name: p for name, p in module.named_parameters() if p.requires_grad}
        self.names = tuple(named)
        self.shapes = tuple(tuple(p.shape) for p in named.values())
        self.sizes = tuple(p.numel() for p in named.values())
        self.initial = torch.cat([torch.zeros(0), *(p.detach().reshape(-1) for p in named.values())])

    def split(self, vector: Tensor) -> list[Tensor]:
        """The tensors that stand in a vector."""
        parts = torch.split(vector, list(self.sizes))
        return [part.view(shape) for part, shape in zip(parts, self.shapes, strict=True)]

    def logits(self, tensors: Sequence[Tensor], x: Tensor) -> Tensor:
        """The module's answers, as in prediction."""
        self.module.eval()
        return self._call(tensors, x)

    def loss_and_gradient(
        self, tensors: Sequence[Tensor], x: Tensor, y: Tensor, noise: Sequence[Tensor]
    ) -> tuple[Tensor, list[Tensor]]:
        """The mean cross entropy of a batch, and its gradient by each tensor."""
        self.module.train()
        self.feed.give(noise)
        leaves = [tensor.detach().requires_grad_() for tensor in tensors]
        with torch.enable_grad():
            # Not nll_loss: the exporter turns its backward into a wrong constant without a word.
            chances = torch.log_softmax(self._call(leaves, x), 1)
            hot = (y.unsqueeze(1) == torch.arange(self.classes)).to(torch.float32)
            loss = -(chances * hot).sum(1).mean()
            gradients = torch.autograd.grad(loss, leaves, allow_unused=True)
        filled = [torch.zeros_like(t) if g is None else g for t, g in zip(tensors, gradients, strict=True)]
        return loss.detach(), filled

    def _call(self, tensors: Sequence[Tensor], x: Tensor) -> Tensor:
        out: Tensor = functional_call(self.module, dict(zip(self.names, tensors, strict=True)), (x,))
        return out


def trace(
    function: Callable[..., Any], vector: Tensor, batched: Sequence[Tensor], decompositions: dict[Any, Any]
) -> fx.GraphModule:
    """The operators that `function(vector, batched)` runs, with the first axis of `batched` left open."""
    graph, same_for_larger = _trace(function, vector, batched, decompositions)
    if same_for_larger:
        return graph
    # A branch on the batch's size leaves no trace of its own: only a second size shows whether it matters.
    larger, _ = _trace(function, vector, [torch.cat([tensor] * LARGER) for tensor in batched], decompositions)
    if _operators(graph) != _operators(larger):
        raise ModelError("the model runs differently by the size of a batch: a graph must be the same for all")
    return graph


def _trace(
    function: Callable[..., Any], vector: Tensor, batched: Sequence[Tensor], decompositions: dict[Any, Any]
) -> tuple[fx.GraphModule, bool]:
    """The graph, and whether a batch `LARGER` times as large would certainly have taken the same way through the code.

    The tracer notes every question that the code asked about the batch's size, with the answer that it got.
    """
    shapes = ShapeEnv()
    mode = FakeTensorMode(shape_env=shapes, allow_non_fake_inputs=True)
    inputs = _fake(mode, vector, open_batch=False), [_fake(mode, tensor, open_batch=True) for tensor in batched]
    graph = _traced(function, mode, inputs, decompositions)
    if any(_changes_its_input(node) for node in graph.graph.nodes):
        # Such as ReLU(inplace=True): a second pass over the plain operators makes each a new value.
        graph = _traced(torch.func.functionalize(graph), mode, inputs, decompositions)
    graph.graph.eliminate_dead_code()
    return graph, all(_holds(guard, len(batched[0]) * LARGER) for guard in shapes.guards)


def _holds(guard: Any, batch: int) -> bool:
    """Whether a question about the batch's size has the same answer for another size."""
    if "fake_impls.py" in str(guard.sloc):
        return True  # torch asks which kernel would be quickest: that stands in no graph
    answer = guard.expr.subs(dict.fromkeys(guard.expr.free_symbols, batch))  # nothing else is open
    return str(answer) == "True"


def _traced(
    function: Callable[..., Any],
    mode: FakeTensorMode,
    inputs: tuple[Tensor, list[Tensor]],
    decompositions: dict[Any, Any],
) -> fx.GraphModule:
    tracer = make_fx(function, decomposition_table=decompositions, _allow_non_fake_inputs=True)
    # Without it operators that are written in C++, such as flatten, would fix the batch at the traced size.
    # And oneDNN's LSTM is one operator of its own, which no other runtime knows.
    with mode, enable_python_dispatcher(), torch.backends.mkldnn.flags(enabled=False):
        return tracer(*inputs)


def _changes_its_input(node: fx.Node) -> bool:
    return isinstance(node.target, torch._ops.OpOverload) and node.target._schema.is_mutable


def _fake(mode: FakeTensorMode, tensor: Tensor, *, open_batch: bool) -> Tensor:
    sizes = [DimDynamic.STATIC] * tensor.dim()
    if open_batch:
        sizes[0] = DimDynamic.DYNAMIC
    return mode.from_tensor(tensor.detach(), symbolic_context=StatelessSymbolicContext(dynamic_sizes=sizes))


def _operators(graph: fx.GraphModule) -> list[str]:
    return [str(node.target) for node in graph.graph.nodes if node.op == "call_function"]
