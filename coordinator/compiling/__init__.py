"""Compile a torch module into graphs that train and predict without torch."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from coordinator.compiling.kits import Compiled, compile_kit

__all__ = ["Compiled", "compile_kit"]


def __getattr__(name: str) -> Any:
    """Load torch only to compile a model, not to bake one: the import takes seconds and 280 MB."""
    if name not in __all__:
        raise AttributeError(name)
    from coordinator.compiling import kits  # noqa: PLC0415

    return getattr(kits, name)
