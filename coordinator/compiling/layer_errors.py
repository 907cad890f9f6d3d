"""The location of an error in a module, so that a message can name the layer."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Mapping, Sequence
from types import TracebackType
from typing import Any, Self

from torch import nn
from torch._ops import OpOverload
from torch.utils._python_dispatch import TorchDispatchMode
from torch.utils.hooks import RemovableHandle


class LayerRefused(Exception):
    """The reason why a layer cannot be compiled; the caller knows which layer was running."""


def describe(name: str, module: nn.Module) -> str:
    """Describe a layer by its name and class."""
    kind = getattr(module, "replaces", type(module).__name__)
    return f"layer {name!r} ({kind})" if name else f"the model itself ({kind})"


class RunningLayer:
    """Tracks the innermost layer that runs; after an error, the layer that raised it."""

    def __init__(self, module: nn.Module) -> None:
        """Track the layers of `module` while the context is open."""
        self._module = module
        self._path: list[str] = []
        self._hooks: list[RemovableHandle] = []

    def __enter__(self) -> Self:
        """Add hooks to every layer."""
        for name, layer in self._module.named_modules():
            self._hooks.append(layer.register_forward_pre_hook(self._entering(name, layer)))
            self._hooks.append(layer.register_forward_hook(self._left))
        return self

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None, at: TracebackType | None) -> None:
        """Remove the hooks; the layer stays readable."""
        for hook in self._hooks:
            hook.remove()

    @property
    def layer(self) -> str:
        """The innermost layer that is running."""
        return self._path[-1] if self._path else "the loss"

    def _entering(self, name: str, layer: nn.Module) -> Callable[[nn.Module, Any], None]:
        def enter(_module: nn.Module, _inputs: Any) -> None:
            self._path.append(describe(name, layer))

        return enter

    def _left(self, _module: nn.Module, _inputs: Any, _output: Any) -> None:
        self._path.pop()


class Operators(TorchDispatchMode):
    """Records every operator that runs, with the layer that first ran it."""

    def __init__(self, running: RunningLayer) -> None:
        """Take the current layer from `running`."""
        super().__init__()
        self._running = running
        self.seen: dict[OpOverload, str] = {}
        self.runs: Counter[str] = Counter()
        """The number of operators that each layer ran."""

    def __torch_dispatch__(
        self,
        func: OpOverload,
        types: Sequence[type],
        args: Sequence[Any] = (),
        kwargs: Mapping[str, Any] | None = None,
    ) -> Any:
        """Record the operator and run it."""
        layer = self._running.layer
        self.seen.setdefault(func, layer)
        self.runs[layer] += 1
        return func(*args, **(kwargs or {}))
