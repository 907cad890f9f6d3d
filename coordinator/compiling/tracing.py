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

from coordinator.compiling.batchnorm import layers_with_state
from coordinator.compiling.learning import ForwardPass, watched
from sojourn.errors import ModelError

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping, Sequence

    from coordinator.compiling.learning import Learning
    from coordinator.compiling.noise import NoiseFeed

    Models = Sequence[Sequence[Tensor]]

# The batch in which a trace is taken: it must not equal 0 or 1, for which torch specialises.
TRACED_BATCH = 5
LARGER = 13


class Trainee:
    """A module as functions of its tensors, which is how both torch and the tracer run it.

    They are those that are trained, and after them the layers' state, which a training step returns as it becomes.
    """

    def __init__(self, module: nn.Module, feed: NoiseFeed, learning: Learning) -> None:
        """Run `module`, whose dropout takes its noise from `feed`, for what is to be learnt."""
        self.module, self.feed, self.learning = module, feed, learning
        named: dict[str, Tensor] = {name: p for name, p in module.named_parameters() if p.requires_grad}
        self.scalars = 0
        """How many numbers a training step is given besides."""
        self.trained = len(named)
        """How many of the tensors are trained."""
        self._with_state = tuple(layers_with_state(module))
        for name, layer in self._with_state:
            named |= {f"{name}running_mean": layer.running_mean, f"{name}running_var": layer.running_var}
        self.names = tuple(named)
        self.shapes = tuple(tuple(p.shape) for p in named.values())
        self.sizes = tuple(p.numel() for p in named.values())
        self.initial = torch.cat([torch.zeros(0), *(p.detach().reshape(-1) for p in named.values())])

    def split(self, vector: Tensor) -> list[Tensor]:
        """The tensors that stand in a vector."""
        parts = torch.split(vector, list(self.sizes))
        return [part.view(shape) for part, shape in zip(parts, self.shapes, strict=True)]

    def outputs(self, tensors: Sequence[Tensor], x: Tensor) -> Tensor:
        """The module's answers, as in prediction, in the targets' own units."""
        self.module.eval()
        return self.learning.answers(self._call(tensors, x))

    def losses(self, tensors: Sequence[Tensor], x: Tensor, y: Tensor, beside: Models = ()) -> Tensor:
        """The loss of each sample, as in prediction; `beside` are the tensors of further models."""
        self.module.eval()
        others = self._passed_beside(beside, x)
        return self.learning.losses(self._pass(tensors, x), x, y, others)

    def loss_and_gradient(
        self,
        tensors: Sequence[Tensor],
        x: Tensor,
        y: Tensor,
        noise: Sequence[Tensor],
        beside: Models = (),
        scalars: Sequence[Tensor] = (),
    ) -> tuple[Tensor, list[Tensor], list[Tensor]]:
        """The mean loss of a batch, the gradient by each tensor that is trained, and the layers' new state."""
        others = self._passed_beside(beside, x)
        self.module.train()
        self.feed.give(noise)
        for _, layer in self._with_state:
            layer.left = None
        leaves = [tensor.detach().requires_grad_() for tensor in tensors[: self.trained]]
        state = list(tensors[self.trained :])
        with torch.enable_grad():
            loss, minimised = self._minimised([*leaves, *state], x, y, others, scalars)
            gradients = torch.autograd.grad(minimised, leaves, allow_unused=True)
        filled = [torch.zeros_like(t) if g is None else g for t, g in zip(leaves, gradients, strict=True)]
        return loss.detach(), filled, self._state_after(state)

    @property
    def beside(self) -> tuple[str, ...]:
        """The further models that a training step is given, by name."""
        return self.learning.task.beside

    @property
    def fixed_inputs(self) -> list[str]:
        """What a training graph calls further models, and numbers after them."""
        return [f"beside_{at}" for at in range(len(self.beside))]

    def _minimised(
        self,
        tensors: Sequence[Tensor],
        x: Tensor,
        y: Tensor,
        others: Mapping[str, ForwardPass],
        scalars: Sequence[Tensor],
    ) -> tuple[Tensor, Tensor]:
        """The mean loss of a batch as it is told, and what the gradient is taken of."""
        del scalars  # only an objective with a second stream takes numbers
        loss = self.learning.batch_loss(self._pass(tensors, x), x, y, others)
        return loss, loss

    def _passed_beside(self, beside: Models, x: Tensor) -> dict[str, ForwardPass]:
        """What further models make of the samples, as in prediction."""
        if not beside:
            return {}
        self.module.eval()
        with torch.no_grad():
            found = [self._pass(tensors, x) for tensors in beside]
        return dict(zip(self.beside, found, strict=False))  # to predict, only those of the loss

    def _pass(self, tensors: Sequence[Tensor], x: Tensor) -> ForwardPass:
        """The outputs, and those of the layers that the loss asks for."""
        with watched(self.module, self.learning.features) as seen:
            return ForwardPass(self._call(tensors, x), seen)

    def _state_after(self, before: Sequence[Tensor]) -> list[Tensor]:
        """The state that the last pass left; that of a layer which it did not run stays as it was."""
        pairs = zip(self._with_state, zip(before[::2], before[1::2], strict=True), strict=True)
        return [part for (_, layer), old in pairs for part in (layer.left or old)]

    def _call(self, tensors: Sequence[Tensor], x: Tensor) -> Tensor:
        out: Tensor = functional_call(self.module, dict(zip(self.names, tensors, strict=True)), (x,))
        return out


def trace(
    function: Callable[..., Any],
    vector: Tensor,
    batched: Sequence[Tensor],
    decompositions: dict[Any, Any],
    beside: Sequence[Tensor] = (),
) -> fx.GraphModule:
    """The operators that `function(vector, batched, beside)` runs, with the first axis of `batched` left open."""
    graph, same_for_larger = _trace(function, vector, batched, decompositions, beside)
    if same_for_larger:
        return graph
    # A branch on the batch's size leaves no trace of its own: only a second size shows whether it matters.
    more = [torch.cat([tensor] * LARGER) for tensor in batched]
    larger, _ = _trace(function, vector, more, decompositions, beside)
    if _operators(graph) != _operators(larger):
        raise ModelError("the model runs differently by the size of a batch: a graph must be the same for all")
    return graph


def _trace(
    function: Callable[..., Any],
    vector: Tensor,
    batched: Sequence[Tensor],
    decompositions: dict[Any, Any],
    beside: Sequence[Tensor],
) -> tuple[fx.GraphModule, bool]:
    """The graph, and whether a batch `LARGER` times as large would certainly have taken the same way through the code.

    The tracer notes every question that the code asked about the batch's size, with the answer that it got.
    """
    shapes = ShapeEnv()
    mode = FakeTensorMode(shape_env=shapes, allow_non_fake_inputs=True)
    mode.cache_enabled = False  # hardly an operator comes twice with the same shapes: the cache cost a quarter of all
    fixed = [_fake(mode, tensor, open_batch=False) for tensor in (vector, *beside)]
    inputs: tuple[Any, ...] = fixed[0], [_fake(mode, tensor, open_batch=True) for tensor in batched]
    inputs = (*inputs, fixed[1:]) if beside else inputs
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
    inputs: tuple[Any, ...],
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
