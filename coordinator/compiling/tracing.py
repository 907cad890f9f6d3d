"""Trace a module into fx graphs of its loss with gradient and of its prediction, for any batch size."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import Any

import torch
from torch import Tensor, fx, nn
from torch._dispatch.python import enable_python_dispatcher
from torch._subclasses.fake_tensor import FakeTensorMode
from torch.func import functional_call
from torch.fx.experimental.proxy_tensor import make_fx
from torch.fx.experimental.symbolic_shapes import DimDynamic, ShapeEnv, StatelessSymbolicContext

from coordinator.compiling.losses import ForwardPass, Learning, watched
from coordinator.compiling.normalisation import layers_with_state
from coordinator.compiling.randomness import NoiseFeed
from sojourn.errors import ModelError

Models = Sequence[Sequence[Tensor]]

# The batch size of a trace: it must not be 0 or 1, for which torch specialises.
TRACED_BATCH = 5
LARGER_FACTOR = 13


class Trainee:
    """A module as functions of its tensors, for both torch and the tracer.

    The tensors are first the trained ones, then the layers' state, whose new values a training step returns.
    """

    def __init__(self, module: nn.Module, feed: NoiseFeed, learning: Learning) -> None:
        """Run `module`, whose dropout takes its noise from `feed`, with this loss."""
        self.module, self.feed, self.learning = module, feed, learning
        named: dict[str, Tensor] = {name: p for name, p in module.named_parameters() if p.requires_grad}
        self.scalars = 0
        """The number of scalar inputs of a training step."""
        self.trained = len(named)
        """The number of trained tensors."""
        self._with_state = tuple(layers_with_state(module))
        for name, layer in self._with_state:
            named |= {f"{name}running_mean": layer.running_mean, f"{name}running_var": layer.running_var}
        self.names = tuple(named)
        self.shapes = tuple(tuple(p.shape) for p in named.values())
        self.sizes = tuple(p.numel() for p in named.values())
        self.initial = torch.cat([torch.zeros(0), *(p.detach().reshape(-1) for p in named.values())])

    def split(self, vector: Tensor) -> list[Tensor]:
        """Split a vector into its tensors."""
        parts = torch.split(vector, list(self.sizes))
        return [part.view(shape) for part, shape in zip(parts, self.shapes, strict=True)]

    def outputs(self, tensors: Sequence[Tensor], x: Tensor) -> Tensor:
        """Return the module's predictions in the units of the targets."""
        self.module.eval()
        return self.learning.predictions(self._call(tensors, x))

    def losses(self, tensors: Sequence[Tensor], x: Tensor, y: Tensor, reference_models: Models = ()) -> Tensor:
        """Return the loss of each sample, as in prediction; `reference_models` are the tensors of further models."""
        self.module.eval()
        others = self._reference_passes(reference_models, x)
        return self.learning.losses(self._pass(tensors, x), x, y, others)

    def loss_and_gradient(
        self,
        tensors: Sequence[Tensor],
        x: Tensor,
        y: Tensor,
        noise: Sequence[Tensor],
        reference_models: Models = (),
        scalars: Sequence[Tensor] = (),
    ) -> tuple[Tensor, list[Tensor], list[Tensor]]:
        """Return the mean loss of a batch, the gradient of each trained tensor, and the layers' new state."""
        others = self._reference_passes(reference_models, x)
        self.module.train()
        self.feed.give(noise)
        for _, layer in self._with_state:
            layer.left = None
        leaves = [tensor.detach().requires_grad_() for tensor in tensors[: self.trained]]
        state = list(tensors[self.trained :])
        with torch.enable_grad():
            loss, objective = self._minimised([*leaves, *state], x, y, others, scalars)
            gradients = torch.autograd.grad(objective, leaves, allow_unused=True)
        filled = [torch.zeros_like(t) if g is None else g for t, g in zip(leaves, gradients, strict=True)]
        return loss.detach(), filled, self._state_after(state)

    @property
    def reference_models(self) -> tuple[str, ...]:
        """The names of the further models that a training step receives."""
        return self.learning.task.reference_models

    @property
    def fixed_inputs(self) -> list[str]:
        """The names of a training graph's inputs for further models and scalars."""
        return [f"reference_{at}" for at in range(len(self.reference_models))]

    def _minimised(
        self,
        tensors: Sequence[Tensor],
        x: Tensor,
        y: Tensor,
        others: Mapping[str, ForwardPass],
        scalars: Sequence[Tensor],
    ) -> tuple[Tensor, Tensor]:
        """Return the reported mean loss of a batch, and the value whose gradient is taken."""
        del scalars  # only an objective with a second stream has scalars
        loss = self.learning.batch_loss(self._pass(tensors, x), x, y, others)
        return loss, loss

    def _reference_passes(self, reference_models: Models, x: Tensor) -> dict[str, ForwardPass]:
        """Return the results of further models for the samples, as in prediction."""
        if not reference_models:
            return {}
        self.module.eval()
        with torch.no_grad():
            found = [self._pass(tensors, x) for tensors in reference_models]
        return dict(zip(self.reference_models, found, strict=False))  # in prediction only those of the loss

    def _pass(self, tensors: Sequence[Tensor], x: Tensor) -> ForwardPass:
        """Return the outputs, and those of the layers that the loss needs."""
        with watched(self.module, self.learning.features) as seen:
            return ForwardPass(self._call(tensors, x), seen)

    def _state_after(self, before: Sequence[Tensor]) -> list[Tensor]:
        """Return the state after the last pass; a layer that did not run keeps its state."""
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
    reference_models: Sequence[Tensor] = (),
) -> fx.GraphModule:
    """Trace `function(vector, batched, reference_models)` with the first axis of `batched` open."""
    graph, same_for_larger = _trace(function, vector, batched, decompositions, reference_models)
    if same_for_larger:
        return graph
    # A branch on the batch's size is not in a trace: only a trace with a second size shows whether it matters.
    more = [torch.cat([tensor] * LARGER_FACTOR) for tensor in batched]
    larger, _ = _trace(function, vector, more, decompositions, reference_models)
    if _operators(graph) != _operators(larger):
        raise ModelError("the model runs differently depending on the batch size: a graph must be the same for all")
    return graph


def _trace(
    function: Callable[..., Any],
    vector: Tensor,
    batched: Sequence[Tensor],
    decompositions: dict[Any, Any],
    reference_models: Sequence[Tensor],
) -> tuple[fx.GraphModule, bool]:
    """Return the graph, and whether a batch `LARGER_FACTOR` times as large would certainly run the same code.

    The tracer records every condition on the batch size, with its value, as a guard.
    """
    shapes = ShapeEnv()
    mode = FakeTensorMode(shape_env=shapes, allow_non_fake_inputs=True)
    mode.cache_enabled = False  # operators hardly repeat with the same shapes: the cache took a quarter of the time
    fixed = [_fake(mode, tensor, open_batch=False) for tensor in (vector, *reference_models)]
    inputs: tuple[Any, ...] = fixed[0], [_fake(mode, tensor, open_batch=True) for tensor in batched]
    inputs = (*inputs, fixed[1:]) if reference_models else inputs
    graph = _traced(function, mode, inputs, decompositions)
    if any(_is_in_place(node) for node in graph.graph.nodes):
        # For example ReLU(inplace=True): a second pass over the plain operators makes each result a new value.
        graph = _traced(torch.func.functionalize(graph), mode, inputs, decompositions)
    graph.graph.eliminate_dead_code()
    return graph, all(_holds(guard, len(batched[0]) * LARGER_FACTOR) for guard in shapes.guards)


def _holds(guard: Any, batch: int) -> bool:
    """Whether a condition on the batch size has the same value for another size."""
    if "fake_impls.py" in str(guard.sloc):
        return True  # torch chooses the fastest kernel: that is not in the graph
    value = guard.expr.subs(dict.fromkeys(guard.expr.free_symbols, batch))  # only the batch size is open
    return str(value) == "True"


def _traced(
    function: Callable[..., Any],
    mode: FakeTensorMode,
    inputs: tuple[Any, ...],
    decompositions: dict[Any, Any],
) -> fx.GraphModule:
    tracer = make_fx(function, decomposition_table=decompositions, _allow_non_fake_inputs=True)
    # Without the dispatcher, operators that are written in C++, such as flatten, would fix the batch at the traced
    # size. And oneDNN's LSTM is a single operator that no other runtime supports.
    with mode, enable_python_dispatcher(), torch.backends.mkldnn.flags(enabled=False):
        return tracer(*inputs)


def _is_in_place(node: fx.Node) -> bool:
    return isinstance(node.target, torch._ops.OpOverload) and node.target._schema.is_mutable


def _fake(mode: FakeTensorMode, tensor: Tensor, *, open_batch: bool) -> Tensor:
    sizes = [DimDynamic.STATIC] * tensor.dim()
    if open_batch:
        sizes[0] = DimDynamic.DYNAMIC
    return mode.from_tensor(tensor.detach(), symbolic_context=StatelessSymbolicContext(dynamic_sizes=sizes))


def _operators(graph: fx.GraphModule) -> list[str]:
    return [str(node.target) for node in graph.graph.nodes if node.op == "call_function"]
