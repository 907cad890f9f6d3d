"""Where in a module something happens, so that an error can name the layer."""

from __future__ import annotations

from collections import Counter
from typing import TYPE_CHECKING, Any, Self

from torch.utils._python_dispatch import TorchDispatchMode

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping, Sequence
    from types import TracebackType

    from torch import nn
    from torch._ops import OpOverload
    from torch.utils.hooks import RemovableHandle


class LayerRefused(Exception):
    """Why a layer cannot be compiled; whoever catches it knows which one was running."""


def describe(name: str, module: nn.Module) -> str:
    """The layer as a person finds it in the code."""
    kind = getattr(module, "stands_for", type(module).__name__)
    return f"layer {name!r} ({kind})" if name else f"the model itself ({kind})"


class Whereabouts:
    """Knows the innermost layer that runs; after an error, the one in which it arose."""

    def __init__(self, module: nn.Module) -> None:
        """Watch `module` while the context is open."""
        self._module = module
        self._path: list[str] = []
        self._hooks: list[RemovableHandle] = []

    def __enter__(self) -> Self:
        """Hook every layer."""
        for name, layer in self._module.named_modules():
            self._hooks.append(layer.register_forward_pre_hook(self._entering(name, layer)))
            self._hooks.append(layer.register_forward_hook(self._left))
        return self

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None, at: TracebackType | None) -> None:
        """Unhook; the path stays readable."""
        for hook in self._hooks:
            hook.remove()

    @property
    def layer(self) -> str:
        """The innermost layer that was entered and not left."""
        return self._path[-1] if self._path else "the loss"

    def _entering(self, name: str, layer: nn.Module) -> Callable[[nn.Module, Any], None]:
        def enter(_module: nn.Module, _inputs: Any) -> None:
            self._path.append(describe(name, layer))

        return enter

    def _left(self, _module: nn.Module, _inputs: Any, _output: Any) -> None:
        self._path.pop()


class Operators(TorchDispatchMode):
    """Notes every operator that runs, with the layer that first ran it."""

    def __init__(self, whereabouts: Whereabouts) -> None:
        """Ask `whereabouts` for the layer."""
        super().__init__()
        self._whereabouts = whereabouts
        self.seen: dict[OpOverload, str] = {}
        self.runs: Counter[str] = Counter()
        """How many operators each layer ran."""

    def __torch_dispatch__(
        self,
        func: OpOverload,
        types: Sequence[type],
        args: Sequence[Any] = (),
        kwargs: Mapping[str, Any] | None = None,
    ) -> Any:
        """Note the operator and run it."""
        layer = self._whereabouts.layer
        self.seen.setdefault(func, layer)
        self.runs[layer] += 1
        return func(*args, **(kwargs or {}))
