"""Models by name: built-in models and custom ones."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from coordinator.models.building import build

__all__ = ["build"]


def __getattr__(name: str) -> Any:
    """Load torch only to build a model, not to read a data set: the import takes seconds."""
    if name not in __all__:
        raise AttributeError(name)
    from coordinator.models import building  # noqa: PLC0415

    return getattr(building, name)
